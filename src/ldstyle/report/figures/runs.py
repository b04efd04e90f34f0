"""What figures are made from: the cells of one grid, and the folder that holds what they left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ldstyle.benchmark.grid.methods import method_title
from ldstyle.benchmark.results.comparison import Results
from ldstyle.benchmark.results.reading import DamagedFileError, left_out, read_json_lines, reading
from ldstyle.benchmark.results.records import CellResult
from ldstyle.report.order import ORACLE, is_main, method_rank, split_rank
from ldstyle.report.tables.cells import part_text

METRICS = "metrics.jsonl"


class UnavailableError(Exception):
    """Something a figure needs is not there; the text says what, and what to do about it."""


@dataclass(frozen=True, eq=False)
class Runs:
    """The cells of one grid.

    Args:
        folder: The results folder.
        results: Cells of it, all of one preset.
        part: Part of the target that is reported on: ``all``, or ``test`` as in the paper.
        damaged: Files that could not be read; more are added as they are met.
    """

    folder: Path
    results: Sequence[CellResult]
    part: Literal["test", "all"] = "all"
    damaged: list[DamagedFileError] = field(default_factory=list)

    def __post_init__(self) -> None:
        presets = sorted({result.preset for result in self.results})
        if len(presets) > 1:
            raise ValueError(f"The cells of one set must be of one preset; got {presets}. Make a set of each.")

    @cached_property
    def main(self) -> Results:
        """The results of methods, without ablations and sweeps."""
        return Results(self.main_cells)

    @cached_property
    def main_cells(self) -> tuple[CellResult, ...]:
        """The cells of methods, without ablations and sweeps, in the order of methods, splits and seeds."""
        cells = [
            # Ablations call the full method otherwise, and whichever ran first has named its record.
            replace(cell, title=method_title(cell.method) or cell.title)
            for cell in self.results
            if is_main(cell.method)
        ]
        return tuple(sorted(cells, key=lambda cell: (method_rank(cell.method), split_rank(cell.split), cell.seed)))

    @cached_property
    def done(self) -> tuple[CellResult, ...]:
        """The cells of methods that are done."""
        return tuple(cell for cell in self.main_cells if cell.status == "done")

    @cached_property
    def titles(self) -> dict[str, str]:
        """Name in tables of each method that has a finished cell, in the order of the methods."""
        return {cell.method: cell.title for cell in self.done}

    @property
    def scored(self) -> dict[str, str]:
        """The methods that have scores on the part of the target; the oracle was trained on most of the whole."""
        return {name: title for name, title in self.titles.items() if self.part == "test" or name != ORACLE}

    @cached_property
    def splits(self) -> dict[str, str]:
        """Target of each split that has a finished cell."""
        return dict(sorted({cell.split: cell.target for cell in self.done}.items(), key=lambda one: split_rank(one[0])))

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The domains in the order of the benchmark, where the splits' names tell it."""
        for cell in self.done:
            number = re.fullmatch(r"s(\d+)", cell.split)
            if number:
                place = int(number[1]) - 1
                return (*cell.sources[:place], cell.target, *cell.sources[place:])
        return tuple(dict.fromkeys(name for cell in self.done for name in (*cell.sources, cell.target)))

    @property
    def part_text(self) -> str:
        """What the scores are of, and of how many images."""
        return part_text([cell for cell in self.done if cell.method != ORACLE], self.part)

    def seeds_text(self) -> str:
        """How many seeds there are, in words."""
        counts = sorted({sum(cell.method == m and cell.split == s for cell in self.done)
                         for m in self.titles for s in self.splits} - {0})  # fmt: skip
        if not counts:
            return "no seeds"
        text = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"{text} seed{'s' if counts[-1] > 1 else ''}"

    def history(self, cell: CellResult) -> list[dict[str, Any]]:
        """Return the rows of a cell's ``metrics.jsonl``; none if it was not kept, and none that is damaged."""
        path = self.folder / cell.cell / METRICS
        if not path.exists():
            return []
        rows: list[dict[str, Any]] = []
        with left_out(self.damaged), reading(path, within=self.folder):
            for row in read_json_lines(path, within=self.folder, damaged=self.damaged):
                with left_out(self.damaged), reading(path, within=self.folder):
                    rows.append(_checked(row))
        return rows

    def has(self, cell: CellResult, name: str) -> bool:
        """Whether a file of a cell is there, and not by a link that leads out of the results folder."""
        path = self.folder / cell.cell / name
        return path.is_file() and path.resolve().is_relative_to(self.folder.resolve())

    def require_done(self) -> None:
        """Refuse a set of which nothing is done."""
        if not self.done:
            raise UnavailableError("No cell is done. Run `ldstyle bench run` and watch it by `ldstyle bench status`.")


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics that has what figures show."""
    for value in (row["epoch"], row["loss"], row["validation"]["map"]):
        if value is not None and not isinstance(value, int | float):
            raise TypeError(f"epoch, loss and mAP must be numbers; got {value!r}")
    for table in (row.get("localization") or {}).values():
        for name in ("pointing", "iou", "pointing_chance", "iou_chance"):
            float(table["mean"][name] or 0)
    return row


def split_title(split: str, target: str) -> str:
    """Name a split by its target."""
    return f"{' '.join(split.split())}: target {target}"
