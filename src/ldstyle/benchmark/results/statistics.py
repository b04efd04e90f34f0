"""Statistics of paired differences: a bootstrap interval, an exact sign-flip test, and Holm's correction.

The sign-flip test asks how often the differences would add up to as much if each had come with the other sign, and
needs no distribution. With n pairs its p-value is at least 2 / 2^n, so five pairs cannot reach 0.05.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ldstyle.seeding import derive_seed

CONFIDENCE = 0.95
RESAMPLES = 10_000
LEAST_VALUES = 3
"""Fewest values that give an interval: means of two, resampled, lie between the two, whatever they are."""

NOT_REQUESTED = "not requested"
"""Why a seed that other rows have has no value in a row that was planned without it."""

EXACT_PAIRS = 18
"""Most pairs whose sign flips are enumerated; beyond, as many flips are drawn as that number would have."""


def bootstrap_interval(
    values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float | None, float | None]:
    """Return the percentile bootstrap interval of a mean, or twice ``None`` below three values.

    The draws follow from ``seed`` and the number of values.
    """
    if len(values) < LEAST_VALUES:
        return None, None
    generator = np.random.Generator(np.random.PCG64DXSM(derive_seed("bootstrap", seed, len(values))))
    chosen = generator.integers(len(values), size=(resamples, len(values)))
    means = np.asarray(values, dtype=np.float64)[chosen].mean(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def sign_flip_test(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of the mean of paired differences, over all flips of their signs.

    Exact up to 18 pairs; beyond, from drawn flips with the observed one counted in. A difference of zero is a pair
    like any other: it does not move the sum, so ties bring no evidence. ``None`` without pairs.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values):
        return None
    observed = abs(float(values.sum()))
    # Equal sums must count as equal although they were added up in another order.
    limit = observed - 1e-9 * float(np.abs(values).sum())
    if len(values) <= EXACT_PAIRS:
        return float(np.mean(np.abs(_all_flips(len(values)) @ values) >= limit))
    generator = np.random.Generator(np.random.PCG64DXSM(derive_seed("sign flips", len(values))))
    draws, extreme, block = 1 << EXACT_PAIRS, 0, 1 << 12
    for _ in range(draws // block):
        flips = generator.choice([-1.0, 1.0], size=(block, len(values)))
        extreme += int((np.abs(flips @ values) >= limit).sum())
    return (extreme + 1) / (draws + 1)


def smallest_p(pairs: int) -> float:
    """Return the smallest p-value that :func:`sign_flip_test` can give for a number of pairs."""
    # Beyond the exact test the observed flip counts in, so it is one of all that were drawn.
    return 1 / ((1 << EXACT_PAIRS) + 1) if pairs > EXACT_PAIRS else min(1.0, 2.0 ** (1 - pairs))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for the number of tests by Holm's step-down method; ``None`` is no test and stays."""
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    so_far = 0.0
    for rank, (p, i) in enumerate(order):
        so_far = max(so_far, min(1.0, p * (len(order) - rank)))
        corrected[i] = so_far
    return corrected


def _all_flips(count: int) -> NDArray[np.float64]:
    bits = np.arange(1 << count)[:, None] >> np.arange(count) & 1
    return np.where(bits, -1.0, 1.0)


@dataclass(frozen=True)
class Entry:
    """One entry of a table.

    Attributes:
        values: The metric by seed, seeds ascending.
        absent: Why a seed has no value: ``failed``, ``running``, ``missing``, ``not requested`` or ``undefined``.
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
