"""Which images are meant: files, folders, patterns, and lists on standard input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from ldstyle.data.domains.scene_table import ARRAYS, IMAGE_SUFFIXES

STANDARD_INPUT = "-"
_PATTERN = frozenset("*?[")
_SUFFIXES = IMAGE_SUFFIXES | {ARRAYS}


def list_images(names: Iterable[str], *, standard_input: BinaryIO | None = None) -> list[Path]:
    """Expand names to image files, each once, in the order given.

    Args:
        names: Files; folders, searched at any depth for image files in the order of their names; patterns, in which
            ``**`` stands for any depth; and ``-`` for the names on standard input.
        standard_input: Holds a name per line, or names ended by NUL bytes as by ``find -print0``.

    Returns:
        The files. A name that is no folder and no pattern is taken as it is, so a missing file is found when read.

    Raises:
        FileNotFoundError: A folder or pattern holds no image.
    """
    found: dict[Path, None] = {}
    for name in names:
        if name == STANDARD_INPUT:
            if standard_input is None:
                raise ValueError("'-' stands for standard input, of which there is none. Name the images instead.")
            found |= dict.fromkeys(_listed(standard_input))
        else:
            found |= dict.fromkeys(_expanded(name))
    if not found:
        raise FileNotFoundError("No image is named. Give files, folders, patterns, or '-' for standard input.")
    return list(found)


def _listed(stream: BinaryIO) -> Iterator[Path]:
    content = stream.read()
    separator = b"\0" if b"\0" in content else b"\n"
    for line in content.split(separator):
        name = line.rstrip(b"\r") if separator == b"\n" else line
        if name.strip():
            yield from _expanded(name.decode("utf-8", errors="surrogateescape"))


def _expanded(name: str) -> list[Path]:
    path = Path(name).expanduser()
    if path.is_dir():
        matches = sorted(file for file in path.rglob("*") if _is_image(file))
    elif _PATTERN & set(name) and not path.exists():
        start = Path(path.anchor)
        matches = sorted(file for file in start.glob(str(path.relative_to(start))) if file.is_file())
    else:
        return [path]
    if not matches:
        suffixes = ", ".join(sorted(_SUFFIXES))
        raise FileNotFoundError(f"No image found by '{name}'. Folders are searched for {suffixes}.")
    return matches


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and path.is_file()


def sheet_names(paths: Sequence[Path]) -> list[Path]:
    """Name a PNG for each image: by its own name where that is unique, else by its folders too.

    Args:
        paths: Different image files.
    """
    stems = Counter(path.stem for path in paths)
    names = [path.stem if stems[path.stem] == 1 else _flat(path) for path in paths]
    return [Path(f"{name}.png") for name in names]


def _flat(path: Path) -> str:
    parts = path.resolve().parts[1:]
    return "__".join(part.replace("__", "_") for part in parts).replace(".", "_")
