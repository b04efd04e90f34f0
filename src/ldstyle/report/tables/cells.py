"""One set of cells, in an order that depends on what they are and not on when they were run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ldstyle.benchmark.grid.methods import method_title
from ldstyle.benchmark.paper import TABLES_BY_TARGET
from ldstyle.benchmark.results.comparison import Entry, Results, best
from ldstyle.benchmark.results.records import CellResult
from ldstyle.report.model import Absent
from ldstyle.report.order import ORACLE, group, is_main, method_rank, split_rank
from ldstyle.report.tables.values import count_seeds

PARTS = {"all": "whole target", "test": "test part"}
"""Parts of the target that are reported on: all images of it, and the paper's number."""


class CellSet:
    """The cells of one grid: one preset, all methods but ablations and points of sweeps.

    Args:
        results: Cells of one results folder and preset, in any order.

    Raises:
        ValueError: The cells are of several presets.

    Attributes:
        cells: The cells in order of split, method and seed.
        results: Their statistics.
        methods: Names of the methods: plain and global ones, label-decoupled ones, the user's own, the oracle.
        splits: Names of the splits.
    """

    def __init__(self, results: Sequence[CellResult]) -> None:
        presets = sorted({cell.preset for cell in results})
        if len(presets) > 1:
            raise ValueError(f"Tables are of one preset; got {presets}. Make them for each preset apart.")
        chosen = [cell for cell in results if is_main(cell.method)]
        self.cells = tuple(sorted(chosen, key=_place))
        self.results = Results(self.cells)
        self.methods = tuple(sorted(self.results.methods, key=method_rank))
        self.splits = self.results.splits

    @cached_property
    def titles(self) -> dict[str, str]:
        """Names of the methods in tables."""
        return {method: _title(method, self.cells) for method in self.methods}

    @property
    def preset(self) -> str:
        """Name of the preset."""
        return self.cells[0].preset

    @property
    def row_header(self) -> str:
        """Header of the column of methods, with the number of seeds."""
        return f"method ({count_seeds(len(self.results.seeds))})"

    def on(self, split: str) -> CellSet:
        """Return the cells of a split."""
        return CellSet([cell for cell in self.cells if cell.split == split])

    def without(self, *methods: str) -> CellSet:
        """Return the cells of all other methods."""
        return CellSet([cell for cell in self.cells if cell.method not in methods])

    def first(self, split: str) -> CellResult:
        """Return a cell of a split, to look up its domains."""
        return next(cell for cell in self.cells if cell.split == split)

    def heading(self, split: str) -> str:
        """Return a split as a column is headed: ``s1 → ucm``."""
        return f"{split} → {self.first(split).target}"

    def of_the_paper(self, split: str) -> bool:
        """Whether a split is one of the paper's, at its size."""
        cell = self.first(split)
        return cell.preset == "paper" and {*cell.sources, cell.target} == TABLES_BY_TARGET.keys()

    @property
    def is_the_papers(self) -> bool:
        """Whether the splits are the paper's three, at its size."""
        targets = {self.first(split).target for split in self.splits}
        return targets == TABLES_BY_TARGET.keys() and all(map(self.of_the_paper, self.splits))

    @property
    def is_empty(self) -> bool:
        """Whether not a single cell is done."""
        return not any(cell.status == "done" for cell in self.cells)

    def nothing(self, slug: str, title: str) -> Absent:
        """Say that no cell is done, and what became of them."""
        counts = {status: sum(cell.status == status for cell in self.cells) for status in ("failed", "running")}
        known = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        reason = f"None of {len(self.cells)} cells is done{f' ({known})' if known else ''}."
        if not self.cells:
            return Absent(slug, title, "No cell has such a score. Add methods with `ldstyle bench run --methods all`.")
        return Absent(slug, title, f"{reason} Run them with `ldstyle bench run`; `ldstyle bench status` shows how far.")


def count_images(cells: Sequence[CellResult], part: str) -> dict[str, int]:
    """Return how many images of each target the finished cells were scored on."""
    counts: dict[str, int] = {}
    for cell in sorted(cells, key=_place):
        scored = ((cell.scores.get(part) or {}).get("n") or 0) if cell.status == "done" else 0
        counts[cell.target] = max(scored, counts.get(cell.target, 0))
    return {target: count for target, count in counts.items() if count}


def part_text(cells: Sequence[CellResult], part: str) -> str:
    """Return what scores are of: ``the whole target (656 images of drone)``."""
    counts = [f"{count:,} of {target}" for target, count in count_images(cells, part).items()]
    images = f" ({', '.join(counts)})".replace(" of ", " images of ", 1) if counts else ""
    return f"the {'whole target' if part == 'all' else 'test part of the target'}{images}"


def rules(methods: Sequence[str]) -> tuple[int, ...]:
    """Return the rows that begin another group of methods."""
    return tuple(row for row in range(1, len(methods)) if group(methods[row]) != group(methods[row - 1]))


def competing(entries: dict[str, Entry]) -> tuple[str, ...]:
    """Return the best of the methods, all that tie; the oracle does not compete, and one alone is not the best."""
    rivals = {method: entry for method, entry in entries.items() if method != ORACLE}
    return best(rivals) if len(rivals) > 1 else ()


def _title(method: str, cells: Sequence[CellResult]) -> str:
    title = method_title(method)
    return title if title is not None else min(cell.title for cell in cells if cell.method == method)


def _place(cell: CellResult) -> tuple[list[tuple[int, str]], tuple[int, int, str], int]:
    return split_rank(cell.split), method_rank(cell.method), cell.seed
