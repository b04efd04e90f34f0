"""From the results of cells to tables: means, paired differences by seed, and a corrected test.

Seeds are the unit of replication. A cell that failed, is missing or has no value for a metric is named in the table,
and its seed is left out of that entry only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from ldstyle.benchmark.results.statistics import bootstrap_interval, holm, sign_flip_test, smallest_p


class Result(Protocol):
    """What the statistics read of a cell's result."""

    @property
    def method(self) -> str:
        """Name of the method."""

    @property
    def split(self) -> str:
        """Name of the split."""

    @property
    def seed(self) -> int:
        """Seed of the run."""

    @property
    def status(self) -> str:
        """``done``, or why there is nothing: ``failed``, ``running``, ``missing``."""

    @property
    def scores(self) -> Mapping[str, Any]:
        """Score tables by part of the target: ``test`` as in the paper, and ``all``; ``None`` where there is none."""


@dataclass(frozen=True)
class Entry:
    """One entry of a table.

    Attributes:
        values: The metric by seed, seeds ascending.
        absent: Why a seed has no value: ``failed``, ``running``, ``missing`` or ``undefined``.
    """

    values: Mapping[int, float]
    absent: Mapping[int, str]

    @cached_property
    def mean(self) -> float | None:
        """Mean over the seeds that have a value; ``None`` without any."""
        return float(np.mean(list(self.values.values()))) if self.values else None

    @cached_property
    def sd(self) -> float | None:
        """Standard deviation over seeds (ddof 1); ``None`` below two values."""
        return float(np.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else None

    @property
    def complete(self) -> bool:
        """Whether every seed has a value."""
        return not self.absent

    def __str__(self) -> str:
        """Return ``mean ± sd`` in percent, and what is not in it."""
        if self.mean is None:
            return f"– ({_reasons(self.absent)})" if self.absent else "–"
        text = f"{100 * self.mean:.1f}" + ("" if self.sd is None else f" ± {100 * self.sd:.1f}")
        return text if self.complete else f"{text} ({len(self.values)} seeds; {_reasons(self.absent)})"


@dataclass(frozen=True)
class Difference:
    """Paired differences ``method − baseline`` by seed.

    Attributes:
        method: The method.
        baseline: What it is compared with.
        values: Difference by seed; over several splits the mean of each seed's differences.
        absent: Seeds without a pair, and why.
        ties: Pairs that are exactly equal.
        low: Lower end of the bootstrap interval; ``None`` below three seeds.
        high: Upper end of it.
        p: Two-sided p-value of the exact sign-flip test; ``None`` without pairs.
        p_holm: The same, corrected by Holm's method over the methods compared.
    """

    method: str
    baseline: str
    values: Mapping[int, float]
    absent: Mapping[int, str]
    ties: int
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None = None

    @property
    def mean(self) -> float | None:
        """Mean difference; ``None`` without pairs."""
        return float(np.mean(list(self.values.values()))) if self.values else None

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that the test by seed can give for so many pairs, before correction."""
        return smallest_p(len(self.values))


class Results:
    """Results of cells, looked up by method, split and seed.

    Args:
        results: One per cell; a cell that was never run may be left out.
        seeds: Seeds every entry should have; by default all that occur.

    Raises:
        ValueError: A cell occurs twice.
    """

    def __init__(self, results: Iterable[Result], *, seeds: Sequence[int] | None = None) -> None:
        self._cells: dict[tuple[str, str, int], Result] = {}
        for result in results:
            cell = (result.method, result.split, result.seed)
            if cell in self._cells:
                raise ValueError(f"Each cell must occur once; got {cell} twice. Read results with read_results().")
            self._cells[cell] = result
        self.methods = tuple(dict.fromkeys(method for method, _, _ in self._cells))
        self.splits = tuple(dict.fromkeys(split for _, split, _ in self._cells))
        found = (seed for _, _, seed in self._cells)
        self.seeds = tuple(sorted(set(found if seeds is None else seeds)))

    def value(self, method: str, split: str, seed: int, *, part: str, metric: str) -> float | str:
        """Return a metric of a cell, or why there is none. ``ap.LABEL`` is a label's average precision."""
        result = self._cells.get((method, split, seed))
        if result is None:
            return "missing"
        if result.status != "done":
            return result.status
        name, _, label = metric.partition(".")
        # The oracle has no table of the whole target, most of which it was trained on.
        found: Any = (result.scores[part] or {}).get(name)
        found = (found or {}).get(label) if label else found
        return "undefined" if found is None else float(found)

    def entry(self, method: str, *, split: str | None = None, part: str = "test", metric: str = "map") -> Entry:
        """Return the entry of a method on a split, or averaged over the splits seed by seed.

        A seed has an average only if it has a value on every split.
        """
        splits = self.splits if split is None else (split,)
        values: dict[int, float] = {}
        absent: dict[int, str] = {}
        for seed in self.seeds:
            found = [self.value(method, one, seed, part=part, metric=metric) for one in splits]
            numbers, reasons = _apart(found)
            if reasons:
                absent[seed] = reasons[0]
            else:
                values[seed] = float(np.mean(numbers))
        return Entry(values, absent)

    def labels(self, *, part: str = "test") -> tuple[str, ...]:
        """Return the labels that occur in the results, in their order."""
        done = (result.scores[part] for result in self._cells.values() if result.status == "done")
        return tuple(dict.fromkeys(label for table in done if table for label in table["ap"]))

    def label_table(self, *, split: str | None = None, part: str = "test") -> dict[str, dict[str, Entry]]:
        """Return the average precision by method and label."""
        return {
            method: {
                label: self.entry(method, split=split, part=part, metric=f"ap.{label}")
                for label in self.labels(part=part)
            }
            for method in self.methods
        }

    def difference(
        self,
        method: str,
        baseline: str,
        *,
        split: str | None = None,
        part: str = "test",
        metric: str = "map",
        unit: Literal["seed", "cell"] = "seed",
    ) -> Difference:
        """Compare a method with a baseline, paired by seed and split.

        Args:
            method: The method.
            baseline: What to compare it with.
            split: A split, or ``None`` for all of them.
            part: Part of the target.
            metric: The metric.
            unit: What a sign is flipped for in the test: all splits of a seed together, which is safe where they
                share data, or each cell. The interval always resamples seeds.
        """
        splits = self.splits if split is None else (split,)
        pairs: dict[int, list[float]] = {}
        absent: dict[int, str] = {}
        for seed in self.seeds:
            ours, why = _apart(self.value(method, one, seed, part=part, metric=metric) for one in splits)
            theirs, why_not = _apart(self.value(baseline, one, seed, part=part, metric=metric) for one in splits)
            if why or why_not:
                absent[seed] = why[0] if why else f"{why_not[0]} for {baseline}"
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
        metric: str = "map",
        unit: Literal["seed", "cell"] = "seed",
    ) -> list[Difference]:
        """Compare methods (by default all but the oracle) with a baseline; p-values are corrected over them."""
        chosen = [m for m in self.methods if m != "oracle"] if methods is None else methods
        found = [
            self.difference(method, baseline, split=split, part=part, metric=metric, unit=unit)
            for method in chosen
            if method != baseline
        ]
        corrected = holm([one.p for one in found])
        return [Difference(**{**vars(one), "p_holm": p_holm}) for one, p_holm in zip(found, corrected, strict=True)]

    def oracle_gap(self, *, split: str | None = None, part: str = "test", metric: str = "map") -> list[Difference]:
        """Return how far each method stays below the oracle, paired by seed: ``oracle − method``."""
        others = [method for method in self.methods if method != "oracle"]
        return [self.difference("oracle", method, split=split, part=part, metric=metric) for method in others]


def best(entries: Mapping[str, Entry], *, digits: int = 1) -> tuple[str, ...]:
    """Return the names of the best complete entries; all of them where they tie at the digits that are printed."""
    means = {
        name: round(100 * entry.mean, digits)
        for name, entry in entries.items()
        if entry.mean is not None and entry.complete
    }
    return tuple(name for name, mean in means.items() if mean == max(means.values()))


def _apart(found: Iterable[float | str]) -> tuple[list[float], list[str]]:
    """Separate values from reasons for there being none."""
    listed = list(found)
    return [one for one in listed if not isinstance(one, str)], [one for one in listed if isinstance(one, str)]


def _reasons(absent: Mapping[int, str]) -> str:
    """Return e.g. ``failed: seed 3; missing: seeds 1, 4``."""
    by_reason: dict[str, list[int]] = {}
    for seed, reason in absent.items():
        by_reason.setdefault(reason, []).append(seed)
    return "; ".join(
        f"{reason}: seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        for reason, seeds in by_reason.items()
    )
