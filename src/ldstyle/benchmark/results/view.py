"""The one view of a grid's cells: their order and names, their statistics, and the files of their runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from ldstyle.benchmark.grid.cells import order_domains
from ldstyle.benchmark.grid.commands import run_command
from ldstyle.benchmark.grid.methods import METHODS, ORACLE, method_rank, method_title, plain_name
from ldstyle.benchmark.results.cell import CellResult, EpochLog
from ldstyle.benchmark.results.data import DataAccess
from ldstyle.benchmark.results.reading import DamagedFileError, left_out, read_json_lines, reading
from ldstyle.benchmark.results.statistics import (
    NOT_REQUESTED,
    Difference,
    Entry,
    bootstrap_interval,
    holm,
    sign_flip_test,
)
from ldstyle.benchmark.studies import is_main
from ldstyle.data.domains.scene_table import SceneTable

Metric: TypeAlias = str | Callable[[CellResult], float | None]
"""A metric of the scores by name (``map``, ``cf1``, ``of1``, ``ap.LABEL``), or a function of a finished cell."""

METRICS = "metrics.jsonl"
NO_ACCESS = DataAccess()


class Results:
    """The cells of one grid. Their order depends on their names, not on when they ran.

    Args:
        cells: One per method, split and seed; a cell that was never run may be left out. All are of one preset.
        folder: The results folder; without one, only records are available.
        name: Name of the grid on a page.
        access: Data that may be read outside the folder.
        seeds: Seeds every entry should have; by default all that occur.
        damaged: Collects the files that could not be read.

    Attributes:
        cells: The cells in order of split, method and seed.
        methods: Names of the methods: plain and global ones, label-decoupled ones, custom ones, the oracle.
        splits: Names of the splits.
        seeds: The seeds, ascending.

    Raises:
        ValueError: A cell occurs twice, or the cells are of several presets.
    """

    def __init__(
        self,
        cells: Iterable[CellResult],
        *,
        folder: Path | None = None,
        name: str = "",
        access: DataAccess = NO_ACCESS,
        seeds: Sequence[int] | None = None,
        damaged: list[DamagedFileError] | None = None,
    ) -> None:
        self.folder, self.name, self.access = folder, name, access
        self.damaged: list[DamagedFileError] = [] if damaged is None else damaged
        ordered = sorted(cells, key=lambda cell: (_split_rank(cell.split), method_rank(cell.method), cell.seed))
        presets = sorted({cell.preset for cell in ordered})
        if len(presets) > 1:
            raise ValueError(f"The cells of one view must be of one preset; got {presets}. Make a view of each.")
        self._cells: dict[tuple[str, str, int], CellResult] = {}
        for cell in ordered:
            key = (cell.method, cell.split, cell.seed)
            if key in self._cells:
                raise ValueError(f"Each cell must occur once; got {key} twice. Read results with read_results().")
            self._cells[key] = cell
        self.cells = tuple(ordered)
        self.methods = tuple(sorted({cell.method for cell in self.cells}, key=method_rank))
        self.splits = tuple(dict.fromkeys(cell.split for cell in self.cells))
        self.seeds = tuple(sorted({cell.seed for cell in self.cells} if seeds is None else set(seeds)))
        self._unknown = NOT_REQUESTED if seeds is None else "missing"

    # ---- Parts of the view

    def select(self, keep: Callable[[CellResult], bool]) -> Results:
        """Return a view of some cells, with the seeds that these have."""
        cells = [cell for cell in self.cells if keep(cell)]
        return Results(cells, folder=self.folder, name=self.name, access=self.access, damaged=self.damaged)

    @cached_property
    def main(self) -> Results:
        """The rows of the benchmark, without ablations and points of sweeps."""
        return self.select(lambda cell: is_main(cell.method))

    def on(self, split: str) -> Results:
        """Return the cells of a split."""
        return self.select(lambda cell: cell.split == split)

    def without(self, *methods: str) -> Results:
        """Return the cells of all other methods."""
        return self.select(lambda cell: cell.method not in methods)

    @cached_property
    def done(self) -> tuple[CellResult, ...]:
        """The finished cells."""
        return tuple(cell for cell in self.cells if cell.status == "done")

    @cached_property
    def done_titles(self) -> dict[str, str]:
        """Titles of the methods that have a finished cell."""
        done = {cell.method for cell in self.done}
        return {method: title for method, title in self.titles.items() if method in done}

    @cached_property
    def done_splits(self) -> dict[str, str]:
        """Target of each split that has a finished cell."""
        done = {cell.split for cell in self.done}
        return {split: target for split, target in self.targets.items() if split in done}

    def of(self, method: str, split: str | None = None) -> list[CellResult]:
        """Return the cells of a method, on a split or on all."""
        return [cell for cell in self.cells if cell.method == method and split in (None, cell.split)]

    # ---- Names

    @property
    def preset(self) -> str:
        """Name of the preset."""
        return self.cells[0].preset

    @cached_property
    def titles(self) -> dict[str, str]:
        """Names of the methods in tables. A row of the benchmark keeps its title where an ablation gave it another."""
        return {method: self._title(method) for method in self.methods}

    def _title(self, method: str) -> str:
        title = method_title(method)
        return title if title is not None else min(cell.title for cell in self.of(method))

    @cached_property
    def targets(self) -> dict[str, str]:
        """Target of each split."""
        return {split: next(cell.target for cell in self.cells if cell.split == split) for split in self.splits}

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The domains in the order of the benchmark."""
        cells = (order_domains(cell.split, cell.sources, cell.target) for cell in self.cells)
        return tuple(dict.fromkeys(name for names in cells for name in names))

    def count_images(self, part: str) -> dict[str, int]:
        """Return how many images of each target the finished cells were scored on."""
        counts: dict[str, int] = {}
        for cell in self.done:
            counts[cell.target] = max(cell.images(part), counts.get(cell.target, 0))
        return {target: count for target, count in counts.items() if count}

    # ---- Statistics

    def value(self, method: str, split: str, seed: int, *, part: str, metric: Metric) -> float | str:
        """Return a metric of a cell, or the reason why there is none."""
        cell = self._cells.get((method, split, seed))
        if cell is None:
            return self._unknown
        if cell.status != "done":
            return cell.status
        # The oracle has no table of the whole target, most of which it was trained on.
        found = cell.score(metric, part) if isinstance(metric, str) else metric(cell)
        return "undefined" if found is None else float(found)

    def _values(
        self, method: str, seed: int, split: str | None, part: str, metric: Metric
    ) -> tuple[list[float], list[str]]:
        """Return the values of a seed on a split or on all, and the reasons of those that are absent."""
        splits = self.splits if split is None else (split,)
        found = [self.value(method, one, seed, part=part, metric=metric) for one in splits]
        return [one for one in found if not isinstance(one, str)], [one for one in found if isinstance(one, str)]

    def entry(self, method: str, *, split: str | None = None, part: str = "test", metric: Metric = "map") -> Entry:
        """Return the entry of a method on a split, or averaged over the splits seed by seed.

        A seed has an average only if it has a value on every split.
        """
        values: dict[int, float] = {}
        absent: dict[int, str] = {}
        for seed in self.seeds:
            numbers, reasons = self._values(method, seed, split, part, metric)
            if reasons:
                absent[seed] = _why(reasons)
            else:
                values[seed] = float(np.mean(numbers))
        return Entry(values, absent)

    def entries(self, *, part: str = "test", metric: Metric = "map") -> dict[str, Entry]:
        """Return the entry of every method over the splits."""
        return {method: self.entry(method, part=part, metric=metric) for method in self.methods}

    def labels(self, *, part: str = "test") -> tuple[str, ...]:
        """Return the labels that occur in the scores, in their order."""
        tables = (cell.scores.get(part) for cell in self.done)
        return tuple(dict.fromkeys(label for table in tables if table for label in table.ap))

    def label_table(self, *, split: str | None = None, part: str = "test") -> dict[str, dict[str, Entry]]:
        """Return the average precision by method and label."""
        labels = self.labels(part=part)
        return {
            method: {label: self.entry(method, split=split, part=part, metric=f"ap.{label}") for label in labels}
            for method in self.methods
        }

    def difference(
        self,
        method: str,
        baseline: str,
        *,
        split: str | None = None,
        part: str = "test",
        metric: Metric = "map",
        unit: Literal["seed", "cell"] = "seed",
    ) -> Difference:
        """Compare a method with a baseline, paired by seed and split.

        Args:
            method: The method.
            baseline: The method to compare it with.
            split: A split, or ``None`` for all of them.
            part: Part of the target.
            metric: The metric.
            unit: Unit whose sign the test flips: all splits of a seed together, which is safe where they share data,
                or each cell. The interval always resamples seeds.
        """
        pairs: dict[int, list[float]] = {}
        absent: dict[int, str] = {}
        for seed in self.seeds:
            ours, why = self._values(method, seed, split, part, metric)
            theirs, why_not = self._values(baseline, seed, split, part, metric)
            if why or why_not:
                absent[seed] = _why([*why, *(f"{reason} for {baseline}" for reason in why_not)])
            else:
                pairs[seed] = [a - b for a, b in zip(ours, theirs, strict=True)]
        values = {seed: float(np.mean(cells)) for seed, cells in pairs.items()}
        cells = [value for values_of_seed in pairs.values() for value in values_of_seed]
        low, high = bootstrap_interval(list(values.values()))
        p = sign_flip_test(list(values.values()) if unit == "seed" else cells)
        ties = sum(value == 0 for value in cells)
        return Difference(method, baseline, values, absent, ties, low, high, p)

    def compare(
        self,
        baseline: str,
        *,
        methods: Sequence[str] | None = None,
        split: str | None = None,
        part: str = "test",
    ) -> list[Difference]:
        """Compare methods (by default all but the oracle) with a baseline; p-values are corrected over them."""
        chosen = [m for m in self.methods if m != ORACLE] if methods is None else methods
        differences = (self.difference(one, baseline, split=split, part=part) for one in chosen if one != baseline)
        return correct(differences)

    def oracle_gap(self, *, split: str | None = None) -> list[Difference]:
        """Return how far each method stays below the oracle, paired by seed: ``oracle − method``."""
        others = [method for method in self.methods if method != ORACLE]
        return [self.difference(ORACLE, method, split=split) for method in others]

    # ---- Files of the runs

    def has(self, cell: CellResult, name: str) -> bool:
        """Whether a file of a cell exists, and not through a link out of the results folder."""
        if self.folder is None:
            return False
        path = self.folder / cell.cell / name
        return path.is_file() and path.resolve().is_relative_to(self.folder.resolve())

    def history(self, cell: CellResult) -> list[EpochLog]:
        """Return the lines of a cell's ``metrics.jsonl``; empty if it was not kept. Damaged lines are left out."""
        if self.folder is None or not (path := self.folder / cell.cell / METRICS).exists():
            return []
        rows: list[EpochLog] = []
        with left_out(self.damaged), reading(path, within=self.folder):
            for row in read_json_lines(path, within=self.folder, damaged=self.damaged):
                with left_out(self.damaged), reading(path, within=self.folder):
                    rows.append(EpochLog.from_entries(row))
        return rows

    def read_domains(
        self, cell: CellResult, names: Sequence[str], *, require_images: bool = True
    ) -> dict[str, SceneTable]:
        """Read domains as a run did, from the data that may be read.

        Raises:
            OSError: The data are not there, or may not be read.
            ValueError: They are not as they were.
        """
        tables = self.access.read(cell, names, within=self.folder, require_images=require_images)
        return {table.domain: table for table in tables}

    def command(
        self, kind: Literal["run", "ablations", "sensitivity", "status"] = "run", methods: Collection[str] = ()
    ) -> str:
        """Return a command that extends or shows this grid, with all options that it needs to run as printed.

        Args:
            kind: Which command of ``ldstyle bench``.
            methods: Methods to run; by default those of the grid that have names.
        """
        if kind == "run" and not methods:
            methods = [name for name in self.main.methods if plain_name(name) in (*METHODS, ORACLE)]
        short = f"ldstyle bench {kind}" + (f" --methods {shlex.join(methods)}" if methods else "")
        if self.folder is None:
            return short
        if kind == "status":
            return shlex.join(["ldstyle", "bench", "status", "--results", str(self.folder.absolute())])
        try:
            return run_command(self.folder, list(methods), preset=self.preset if self.cells else None, command=kind)
        except (ValueError, TypeError, LookupError, OSError):  # the plans are not those of a grid that could be run
            return short


def _why(reasons: Sequence[str]) -> str:
    """Return the first reason that tables show; seeds that were never requested go without."""
    return next((one for one in reasons if not one.startswith(NOT_REQUESTED)), reasons[0])


def correct(differences: Iterable[Difference]) -> list[Difference]:
    """Return differences with p-values corrected over all of them by Holm's method."""
    found = list(differences)
    corrected = holm([one.p for one in found])
    return [Difference(**{**vars(one), "p_holm": p_holm}) for one, p_holm in zip(found, corrected, strict=True)]


def _split_rank(split: str) -> list[tuple[int, str]]:
    """Return the position of a split: ``s2`` before ``s10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", split)]
