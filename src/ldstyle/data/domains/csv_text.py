"""Label tables as text: comma, tab or semicolon; any line ending; with or without a byte-order mark."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.domains.scene_table import Report, fail
from ldstyle.messages import first_few

# Tables that pandas wrote with gaps in a column hold floats.
CELLS = {"": -1, "0": 0, "0.0": 0, "1": 1, "1.0": 1}


@dataclass(frozen=True)
class Sheet:
    """A table of text cells.

    Attributes:
        path: The file it was read from.
        header: Names of the columns, unique.
        rows: The cells below the header, stripped; each row as long as the header.
        lines: Line of the file that each row stands on, for messages.
    """

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def column(self, name: str) -> tuple[str, ...]:
        """Return the cells of one column."""
        position = self.header.index(name)
        return tuple(row[position] for row in self.rows)

    def take(self, rows: Sequence[int]) -> Sheet:
        """Return the sheet of the given rows."""
        return replace(self, rows=tuple(self.rows[i] for i in rows), lines=tuple(self.lines[i] for i in rows))


def read_sheet(path: Path) -> Sheet:
    """Read a text table; the delimiter is the one its first line uses, empty lines are passed over."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if "\0" in text:
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "it has NUL bytes, as UTF-16 text does")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"A label table must be UTF-8 text; '{path}' is not ({error.reason}). Save it as CSV in UTF-8."
        ) from error
    reader = csv.reader(io.StringIO(text), delimiter=_delimiter(text.split("\n", 1)[0]))
    numbered = [(reader.line_num, tuple(cell.strip() for cell in row)) for row in reader if any(map(str.strip, row))]
    if len(numbered) < 2:
        raise ValueError(f"A label table needs a header and at least one row; '{path}' has {len(numbered)} lines.")
    header = _header(path, numbered[0][1])
    width = len(header)
    ragged = [str(line) for line, row in numbered[1:] if len(row) < width or any(row[width:])]
    if ragged:
        raise ValueError(
            f"Every row must have the {width} cells of the header; {len(ragged)} lines of '{path}' do not: "
            f"{first_few(ragged)}."
        )
    lines, rows = zip(*numbered[1:], strict=True)
    return Sheet(path, header, tuple(row[:width] for row in rows), lines)


def read_header(path: Path) -> tuple[str, ...]:
    """Return the cells of a text table's first line, without judging them."""
    return read_start(path)[0]


def read_start(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the cells of a text table's first two lines, without judging them."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header = file.readline()
        first = next((line for line in file if line.strip()), "")
    header_cells, first_cells = (
        tuple(cell.strip() for cell in next(csv.reader([line], delimiter=_delimiter(header)), []))
        for line in (header, first)
    )
    return header_cells, first_cells


def _delimiter(line: str) -> str:
    return next((mark for mark in "\t,;" if mark in line), ",")


def _header(path: Path, cells: tuple[str, ...]) -> tuple[str, ...]:
    while cells and not cells[-1]:
        cells = cells[:-1]
    repeated = sorted({name for name in cells if cells.count(name) > 1})
    if repeated:
        raise ValueError(f"Column names must be unique; '{path}' repeats {first_few(repeated)}. Rename or remove them.")
    return cells


def parse_labels(sheet: Sheet, columns: Sequence[str], *, extra: bool = False) -> NDArray[np.int8]:
    """Return the label cells as (N, columns) int8, blank as -1; any cell that is none of 0, 1, blank is an error.

    Args:
        sheet: The table.
        columns: Its label columns.
        extra: Whether some may turn out to be no labels; the error then explains how to name them.
    """
    cells = [sheet.column(name) for name in columns]
    bad = [
        f"{cell} (line {line}, column {name})"
        for name, column in zip(columns, cells, strict=True)
        for line, cell in zip(sheet.lines, column, strict=True)
        if cell not in CELLS
    ]
    if bad:
        odd = [name for name, column in zip(columns, cells, strict=True) if not CELLS.keys() >= set(column)]
        hint = f" Columns that are no labels are named by --ignore {' '.join(odd)} (setting data.ignore)."
        raise ValueError(
            f"Labels must be 0, 1 or blank (unknown); {len(bad)} cells of '{sheet.path}' are not: {first_few(bad)}."
            f"{hint if extra else ''}"
        )
    values = np.array([[CELLS[cell] for cell in column] for column in cells], dtype=np.int8)
    return values.reshape(len(columns), len(sheet.rows)).T


def drop_duplicates(sheet: Sheet, column: str, keys: Sequence[str], *, report: Report = fail) -> Sheet:
    """Return the sheet with one row per key; repeated rows are reported, and contradicting ones are always an error.

    Args:
        sheet: The table.
        column: Name of the column the keys come from.
        keys: What identifies each row: the cells of ``column`` brought to one spelling.
        report: What to do about repeats; if it returns, the first of each is kept.
    """
    positions = defaultdict(list)
    for i, key in enumerate(keys):
        positions[key].append(i)
    repeated = {key: rows for key, rows in positions.items() if len(rows) > 1}
    if not repeated:
        return sheet
    named = [f"{key} (lines {', '.join(str(sheet.lines[i]) for i in rows)})" for key, rows in repeated.items()]
    message = f"Each image must have one row; {len(repeated)} in '{sheet.path}' have several: {first_few(named)}."
    own = sheet.header.index(column)
    if any(len({sheet.rows[i][:own] + sheet.rows[i][own + 1 :] for i in rows}) > 1 for rows in repeated.values()):
        raise ValueError(f"{message} Their labels differ: keep the right row.")
    report(ValueError(f"{message} Remove the repeats."))
    return sheet.take([rows[0] for rows in positions.values()])
