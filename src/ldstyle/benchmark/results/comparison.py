"""Entries of tables: means over seeds, and differences paired by seed.

Seeds are the unit of replication. A cell that failed, is missing or has no value for a metric is named in the table,
and its seed is left out of that entry only. :class:`~ldstyle.benchmark.results.view.Results` computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ldstyle.benchmark.results.statistics import smallest_p


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
        """Return ``mean ± sd`` in percent, and the seeds without a value."""
        if self.mean is None:
            return f"– ({_reasons(self.absent)})" if self.absent else "–"
        text = f"{100 * self.mean:.1f}" + ("" if self.sd is None else f" ± {100 * self.sd:.1f}")
        return text if self.complete else f"{text} ({len(self.values)} seeds; {_reasons(self.absent)})"


@dataclass(frozen=True)
class Difference:
    """Paired differences ``method − baseline`` by seed.

    Attributes:
        method: The method.
        baseline: The method it is compared with.
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


def best(entries: Mapping[str, Entry], *, digits: int = 1) -> tuple[str, ...]:
    """Return the names of the best complete entries; all of them where they tie at the digits that are printed."""
    means = {
        name: round(100 * entry.mean, digits)
        for name, entry in entries.items()
        if entry.mean is not None and entry.complete
    }
    return tuple(name for name, mean in means.items() if mean == max(means.values()))


def _reasons(absent: Mapping[int, str]) -> str:
    """Return e.g. ``failed: seed 3; missing: seeds 1, 4``."""
    by_reason: dict[str, list[int]] = {}
    for seed, reason in absent.items():
        by_reason.setdefault(reason, []).append(seed)
    return "; ".join(
        f"{reason}: seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        for reason, seeds in by_reason.items()
    )
