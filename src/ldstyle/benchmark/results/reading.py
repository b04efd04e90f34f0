"""Read the files of a results folder, which may be damaged or somebody else's.

A reader raises :class:`DamagedFileError` for a file that cannot be used, whatever the reason, so that one bad file is
named and left out instead of ending the command. No reader follows a link out of the results folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from ldstyle.data.domains.scene_table import file_stem
from ldstyle.messages import first_line

_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, RecursionError, OSError, SafetensorError)


class DamagedFileError(ValueError):
    """A file that cannot be used.

    Attributes:
        path: The file.
        reason: Why, as the end of a sentence that begins with the file.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"'{path}' {reason}")
        self.path, self.reason = path, reason


@dataclass(frozen=True)
class Predictions:
    """Predictions kept for one domain.

    Attributes:
        scores: Probabilities, (N, L).
        labels: Labels 1 and 0, or -1 where unknown, (N, L).
        keys: Key of each image, N of them.
    """

    scores: npt.NDArray[np.floating[Any]]
    labels: npt.NDArray[np.int8]
    keys: tuple[str, ...]


def is_plain(name: object) -> bool:
    """Whether a value is a name that stays in its folder: text without separators, and not ``.`` or ``..``."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def require_plain(name: object) -> str:
    """Return a name of a file or folder.

    Raises:
        ValueError: It is no text, is empty, or leads to another folder.
    """
    if not isinstance(name, str) or not is_plain(name):
        raise ValueError(f"a name must be text without '/' and '\\', and not '.' or '..'; got {name!r}")
    return name


def cell_folder(results: Path, cell: str) -> Path:
    """Return the folder of a cell.

    Raises:
        ValueError: The name, or a link, leads out of the results folder.
    """
    folder = results / require_plain(cell)
    if not folder.resolve().is_relative_to(results.resolve()):
        raise ValueError(f"'{folder}' leads out of the results folder, to '{folder.resolve()}'. Replace the link.")
    return folder


@contextmanager
def reading(path: Path, *, within: Path) -> Iterator[None]:
    """Turn everything that goes wrong with a file into a :class:`DamagedFileError` that names it.

    Args:
        path: The file.
        within: The results folder, which links must not leave.
    """
    try:
        _require_file(path, within)
        yield
    except DamagedFileError:
        raise
    except KeyError as error:
        raise DamagedFileError(path, f"has no entry {error}") from error
    except _UNREADABLE as error:
        raise DamagedFileError(path, f"cannot be read: {first_line(error)}") from error


@contextmanager
def left_out(damaged: list[DamagedFileError] | None) -> Iterator[None]:
    """Go on without a damaged file, and add it to ``damaged``, if that is a list, once."""
    try:
        yield
    except DamagedFileError as error:
        if damaged is not None and str(error) not in map(str, damaged):
            damaged.append(error)


def read_json(path: Path, *, within: Path) -> dict[str, Any]:
    """Read a JSON file that holds entries by name."""
    with reading(path, within=within):
        return as_entries(json.loads(path.read_text(encoding="utf-8")))


def read_json_lines(path: Path, *, within: Path, damaged: list[DamagedFileError] | None = None) -> list[dict[str, Any]]:
    """Read a file of one JSON object per line; a damaged line is added to ``damaged`` and left out.

    Raises:
        DamagedFileError: Nothing of the file can be read.
    """
    rows: list[dict[str, Any]] = []
    with reading(path, within=within):
        lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            with left_out(damaged), reading_line(path, number, within=within):
                rows.append(as_entries(json.loads(line)))
    return rows


@contextmanager
def reading_line(path: Path, number: int, *, within: Path) -> Iterator[None]:
    """As :func:`reading`, for one line of a file, counted from 1."""
    try:
        with reading(path, within=within):
            yield
    except DamagedFileError as error:
        raise DamagedFileError(path, f"line {number} {error.reason}") from error


def read_predictions(results: Path, cell: str, target: str) -> Predictions:
    """Read the predictions of a finished cell for all images of its target."""
    path = results / cell / f"predictions-{file_stem(target)}.safetensors"
    with reading(path, within=results):
        cell_folder(results, cell)
        with safe_open(path, framework="np") as file:
            scores, labels = (file.get_tensor(f"all/{target}/{part}") for part in ("scores", "labels"))
            keys = tuple(json.loads(file.metadata()["keys"])[f"all/{target}"])
        if scores.ndim != 2 or scores.shape != labels.shape or len(keys) != len(scores):
            shapes = f"{scores.shape}, {labels.shape} and {len(keys)}"
            raise ValueError(f"scores, labels and keys must be (N, L), (N, L) and N; got {shapes}")
    return Predictions(scores, labels, keys)


def as_entries(value: object) -> dict[str, Any]:
    """Return a value that must be a mapping by name, as JSON has it."""
    if not isinstance(value, Mapping):
        raise TypeError(f"it must hold entries by name; got {type(value).__name__}")
    return dict(value)


def _require_file(path: Path, within: Path) -> None:
    if not path.resolve().is_relative_to(within.resolve()):
        raise DamagedFileError(path, f"leads out of '{within}', to '{path.resolve()}', and is not read")
    if not path.is_file():
        raise DamagedFileError(path, "is no regular file" if path.exists() else "is missing")


def typed(name: str, value: Any, *kinds: type) -> Any:
    """Return a value that must be of one of some types; a bool is not a number.

    Raises:
        TypeError: It is of another type.
    """
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{name} must be {' or '.join(kind.__name__ for kind in kinds)}; got {value!r:.60}")
    return value


def texts(name: str, values: Any) -> tuple[str, ...]:
    """Return a list that must contain text only."""
    return tuple(typed(name, value, str) for value in typed(name, values, list, tuple))
