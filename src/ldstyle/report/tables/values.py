"""From statistics to entries of tables: a text to read, a number to sort by, and why something is not whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ldstyle.benchmark.paper import Score
from ldstyle.benchmark.results.comparison import Difference, Entry
from ldstyle.benchmark.results.statistics import LEAST_VALUES
from ldstyle.report.model import Value

DASH = "–"
MINUS = "−"
PAPER_SEEDS = 5
"""Seeds of the paper's means and deviations."""


@dataclass(frozen=True)
class Statistic(Value):
    """An entry with what lies behind it, in the unit that is printed; CSV has a column for each.

    Attributes:
        sd: Standard deviation over seeds.
        n: Number of seeds, or of pairs.
        low: Lower end of an interval.
        high: Upper end of it.
    """

    sd: float | None = None
    n: int | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Repeated(Value):
    """An entry that shows what lies behind another one; CSV, which has that beside the other, leaves its column out."""


def number(value: float | None, *, digits: int = 0) -> Value:
    """Return a number with some digits after the point; ``None`` is a dash."""
    return Value(DASH) if value is None else Value(plain(value, digits=digits), value)


def of_entry(
    entry: Entry,
    *,
    scale: float = 100.0,
    digits: int = 1,
    deviation: bool = True,
    best: bool = False,
    undefined: str = "",
) -> Statistic:
    """Return mean ± standard deviation; where seeds are left out, their number stands beside it.

    Args:
        entry: The values by seed.
        scale: What they are multiplied by; 100 for percent.
        digits: Digits after the point.
        deviation: Whether the deviation is printed.
        best: Whether it is the best of its column.
        undefined: Why a finished run may have no value.
    """
    note = why_not_whole(entry.values, entry.absent, undefined=undefined)
    if entry.mean is None:
        return Statistic(DASH, note=note, n=0)
    sd = None if entry.sd is None else scale * entry.sd
    text = plain(scale * entry.mean, digits=digits)
    if deviation and sd is not None:
        text += f" ± {plain(sd, digits=digits)}"
    return Statistic(
        text + _left(entry.values, entry.absent), scale * entry.mean, best, note, sd=sd, n=len(entry.values)
    )


def of_difference(difference: Difference, *, interval: bool = False, best: bool = False) -> Statistic:
    """Return a mean difference in percentage points with its sign, and if wanted its interval.

    Below three seeds there is no interval; the values of the seeds are listed instead.
    """
    note = why_not_whole(difference.values, difference.absent)
    if difference.mean is None:
        return Statistic(DASH, note=note, n=0)
    low, high = (None if end is None else 100 * end for end in (difference.low, difference.high))
    text = signed(100 * difference.mean)
    if interval and low is not None and high is not None:
        text += f" {_ends(low, high)}"
    elif interval and len(difference.values) > 1:
        text += f" ({_by_seed(difference)})"
    text += _left(difference.values, difference.absent)
    return Statistic(text, 100 * difference.mean, best, note, n=len(difference.values), low=low, high=high)


def interval_of(difference: Difference) -> Value:
    """Return the bootstrap interval of a difference in percentage points.

    Below three seeds it is the list of their values and the smallest p-value they allow; below two a dash.
    """
    if difference.low is not None and difference.high is not None:
        return Repeated(_ends(100 * difference.low, 100 * difference.high), 100 * difference.low)
    if len(difference.values) < 2:
        return Value(DASH)
    return Repeated(f"{_by_seed(difference)}; {at_least(difference)}", 100 * min(difference.values.values()))


def interval_header(differences: Iterable[Difference]) -> str:
    """Return the header of a column of :func:`interval_of`."""
    counts = [len(one.values) for one in differences if len(one.values) > 1]
    if not counts or min(counts) >= LEAST_VALUES:
        return "95 % interval"
    return "by seed" if max(counts) < LEAST_VALUES else "95 % interval, or by seed"


def at_least(difference: Difference) -> str:
    """Return the smallest p-value that the exact test can give for these pairs, e.g. ``p ≥ 0.5``."""
    return f"p ≥ {difference.smallest_p:.2g}"


def p_of(difference: Difference, *, corrected: bool = True) -> Value:
    """Return a p-value; a dash below two pairs, of which no test could tell anything."""
    p = difference.p_holm if corrected else difference.p
    if p is None or len(difference.values) < 2:
        return Value(DASH)
    return Value("< 0.001" if p < 0.001 else f"{p:.3f}", p)


def of_score(score: Score) -> Statistic:
    """Return a mean and deviation of the paper."""
    text = f"{plain(score.mean, digits=1)} ± {plain(score.sd, digits=1)}"
    return Statistic(text, score.mean, sd=score.sd, n=PAPER_SEEDS)


def plain(value: float, *, digits: int) -> str:
    """Return a number with some digits after the point and a true minus sign."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.removeprefix("-")
    return text.replace("-", MINUS)


def signed(value: float, *, digits: int = 1) -> str:
    """Return a number with its sign; what rounds to zero has none."""
    text = plain(value, digits=digits)
    return text if text.startswith(MINUS) or float(text) == 0 else f"+{text}"


def seeds_text(seeds: Sequence[int]) -> str:
    """Return e.g. ``5 seeds (0–4)``, ``2 seeds (0, 7)`` or ``1 seed (3)``."""
    return f"{count_seeds(len(seeds))} ({_listed(seeds)})"


def count_seeds(n: int) -> str:
    """Return ``1 seed`` or ``N seeds``."""
    return f"{n} seed{'' if n == 1 else 's'}"


def over_seeds(seeds: Sequence[int]) -> str:
    """Return what entries are: ``mean ± standard deviation over 5 seeds (0–4)``, or just the one seed."""
    return f"{'mean ± standard deviation over ' if len(seeds) > 1 else ''}{seeds_text(seeds)}"


def why_not_whole(values: Mapping[int, float], absent: Mapping[int, str], *, undefined: str = "") -> str:
    """Return e.g. ``3 of 5 seeds; seed 1 failed; seed 4 missing``, or nothing if every seed is there.

    Args:
        values: The values by seed.
        absent: Why a seed has none: ``failed``, ``running``, ``missing`` or ``undefined``.
        undefined: Why a finished run may have no value.
    """
    if not absent:
        return ""
    by_reason: dict[str, list[int]] = {}
    for seed, reason in absent.items():
        by_reason.setdefault(reason, []).append(seed)
    parts = [f"{len(values)} of {count_seeds(len(values) + len(absent))}"] if values else []
    for reason, seeds in by_reason.items():
        which = f"seed{'s' if len(seeds) > 1 else ''} {_listed(seeds)}"
        if reason == "undefined":
            parts.append(f"{undefined} ({which})" if undefined else f"{which} without a value")
        else:
            parts.append(f"{which} {reason}")
    return "; ".join(parts)


def _left(values: Mapping[int, float], absent: Mapping[int, str]) -> str:
    return f" (n = {len(values)})" if absent else ""


def _by_seed(difference: Difference) -> str:
    return ", ".join(signed(100 * value) for _, value in sorted(difference.values.items()))


def _ends(low: float, high: float) -> str:
    return f"[{signed(low)}, {signed(high)}]"


def _listed(seeds: Sequence[int]) -> str:
    ordered = sorted(seeds)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}–{ordered[-1]}"
    return ", ".join(map(str, ordered))
