"""Hooks of the site: notebooks become pages, and references in docstrings become plain code.

With ``LDSTYLE_NOTEBOOKS=run``, as in ``make docs``, notebooks are executed first and their pages show the outputs.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):<code>~?([\w.]+)</code>")


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook, which stays a file to download."""
    run = os.environ.get("LDSTYLE_NOTEBOOKS") == "run"
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = Path(notebook.abs_src_path)
        cells = executed_cells(path) if run else json.loads(path.read_text(encoding="utf-8"))["cells"]
        page, pictures = notebook_page(notebook.src_uri, cells)
        uri = PurePosixPath(notebook.src_uri)
        files.append(File.generated(config, str(uri.with_suffix(".md")), content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, str(uri.with_name(name)), content=content))
    return files


def executed_cells(path: Path) -> list[Any]:
    """Execute a notebook in an empty folder and return its cells with their outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=None, resources={"metadata": {"path": folder}}).execute()
    return list(notebook.cells)


def notebook_page(name: str, cells: Iterable[Mapping[str, Any]]) -> tuple[str, dict[str, bytes]]:
    """Convert a notebook to Markdown, with a link to the notebook at the end.

    Args:
        name: Path of the notebook in the documentation.
        cells: Its cells, with or without outputs.

    Returns:
        The page, and the content of each picture in it by file name.
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(source)
            continue
        parts.append(_fenced(source, "python"))
        printed = ""
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{PurePosixPath(name).stem}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({picture})")
            elif output["output_type"] != "stream":
                printed += "".join(data.get("text/plain", "")) + "\n"
            elif output["name"] == "stdout":
                printed += "".join(output["text"])
        if printed := _plain(printed):
            parts.append(_fenced(printed, "text"))
    return "\n\n".join([*parts, f"[Download this notebook]({PurePosixPath(name).name}){{: download }}\n"]), pictures


def _plain(printed: str) -> str:
    """Remove the escape codes of a terminal, and rich's advice to install widgets for progress bars."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    return re.sub(r".*UserWarning: install \"ipywidgets\".*\n(support\n)?.*warnings\.warn.*\n?", "", text).strip("\n")


def _fenced(text: str, language: str) -> str:
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def on_page_content(html: str, **_: Any) -> str:
    """Show ``:func:`fit``` as the name alone."""
    return _ROLE.sub(r"<code>\1</code>", html)
