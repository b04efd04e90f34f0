"""What the site changes: notebooks become pages, and references in docstrings plain code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):<code>~?([\w.]+)</code>")


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook, which stays a file to download."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        cells = json.loads(Path(notebook.abs_src_path).read_text(encoding="utf-8"))["cells"]
        page = str(PurePosixPath(notebook.src_uri).with_suffix(".md"))
        files.append(File.generated(config, page, content=notebook_page(notebook.src_uri, cells)))
    return files


def notebook_page(name: str, cells: Iterable[Mapping[str, Any]]) -> str:
    """Return the cells of a notebook as Markdown, with a link to the notebook at the end."""
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            longest = max(map(len, re.findall(r"`{3,}", source)), default=2)
            fence = "`" * (longest + 1)
            source = f"{fence}python\n{source}\n{fence}"
        parts.append(source)
    return "\n\n".join([*parts, f"[Download this notebook]({PurePosixPath(name).name}){{: download }}\n"])


def on_page_content(html: str, **_: Any) -> str:
    """Show ``:func:`fit``` as the name alone."""
    return _ROLE.sub(r"<code>\1</code>", html)
