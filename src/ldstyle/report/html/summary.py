"""What a grid has come to, in a few words and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ldstyle.benchmark.results.comparison import Difference, Entry, Results, best
from ldstyle.benchmark.results.records import CellResult
from ldstyle.benchmark.results.same_data import differing_data
from ldstyle.benchmark.results.statistics import CONFIDENCE
from ldstyle.report.order import BASELINE, ORACLE
from ldstyle.report.tables.cells import CellSet, count_images
from ldstyle.report.tables.values import at_least, count_seeds, plain, signed

_TIE = "\u00a0"
"""A space that does not break a line between a number and what belongs to it."""


@dataclass(frozen=True)
class Figure:
    """A number that stands out.

    Attributes:
        value: The number, e.g. ``+2.3``.
        unit: What it counts, e.g. ``points``.
        meaning: What it says.
    """

    value: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Summary:
    """A grid in short.

    Attributes:
        headline: The result, in one sentence.
        remarks: What must be known to judge it, a sentence each.
        figures: Its numbers.
        unfinished: Runs without a result, a line each.
    """

    headline: str
    remarks: tuple[str, ...]
    figures: tuple[Figure, ...]
    unfinished: tuple[str, ...]


def summarize(results: Sequence[CellResult], *, part: str = "all") -> Summary | None:
    """Say which method is best, what it gains over plain training, and what is missing.

    Args:
        results: The cells of one grid: one preset, each cell once. Ablations and points of sweeps do not compete.
        part: Part of the target to judge by.

    Returns:
        The summary; ``None`` if there is no cell of a method.
    """
    grid = CellSet(results)
    if not grid.cells:
        return None
    rivals = {name: grid.results.entry(name, part=part) for name in grid.methods if name != ORACLE}
    winners = best(rivals)
    done = sum(cell.status == "done" for cell in grid.cells)
    runs = Figure(f"{done} of {len(grid.cells)}", "", f"runs finished, {count_seeds(len(grid.results.seeds))}")
    if not winners:
        headline = "No method has a result on every split and seed yet."
        return Summary(headline, _whole(grid), (runs,), _unfinished(grid))
    compared = _compared(grid.results, rivals, part=part)
    gain = _gain(compared, rivals, winners)
    figures = [_score(rivals[winners[0]], _named(winners, grid.titles))]
    remarks = []
    if gain is not None:
        figures.append(_gain_figure(gain, grid.titles))
        remarks += _gain_remarks(gain, grid.titles, compared=len(compared))
    figures += _oracle(grid, winners[0])
    headline = _headline(winners, rivals, grid, part=part)
    return Summary(headline, (*remarks, *_whole(grid)), (*figures, runs), _unfinished(grid))


def _headline(winners: Sequence[str], entries: dict[str, Entry], grid: CellSet, *, part: str) -> str:
    names, mean = _named(winners, grid.titles), entries[winners[0]].mean
    assert mean is not None
    splits = len(grid.splits)
    over = f"{splits} split{'' if splits == 1 else 's'} and {count_seeds(len(grid.results.seeds))}"
    whole = sum(entry.complete for entry in entries.values())
    rivals = f"{whole} methods" if whole == len(entries) else f"the {whole} methods that are complete"
    if whole == 1:
        claim = f"{names} reaches" if len(entries) == 1 else f"{names}, so far the only complete method, reaches"
    elif len(winners) == 1:
        claim = f"{names} is the best of {rivals}:"
    else:
        claim = f"{names} share first place of {rivals}:"
    seen = _images(count_images(grid.without(ORACLE).cells, part), part)
    return f"{claim} {100 * mean:.1f}{_TIE}%{_TIE}mAP on {seen}, never seen in training, over {over}."


def _images(counts: Mapping[str, int], part: str) -> str:
    """Return e.g. ``all 656 images of drone`` or ``all 5,756 images of 3 targets``."""
    if not counts:
        return "targets"
    of = next(iter(counts)) if len(counts) == 1 else f"{len(counts)} targets"
    total = f"{sum(counts.values()):,}{_TIE}images"
    return f"all {total} of {of}" if part == "all" else f"the {total} of the test part of {of}"


def _compared(results: Results, entries: dict[str, Entry], *, part: str) -> list[Difference]:
    """Compare all methods that have pairs with plain training, if that was run."""
    if BASELINE not in entries:
        return []
    others = [name for name in entries if name != BASELINE]
    return [one for one in results.compare(BASELINE, methods=others, part=part) if one.mean is not None]


def _gain(compared: Sequence[Difference], entries: dict[str, Entry], winners: Sequence[str]) -> Difference | None:
    """Choose the comparison of the best method, or of the best but plain training where that wins."""
    others = {name: entry for name, entry in entries.items() if name != BASELINE}
    chosen = [name for name in winners if name != BASELINE] or list(best(others))
    found = [one for one in compared if one.method in chosen]
    return max(found, key=lambda one: one.mean or 0.0, default=None)


def _gain_figure(gain: Difference, titles: dict[str, str]) -> Figure:
    assert gain.mean is not None
    if gain.low is not None and gain.high is not None:
        spread = f" ({_points(gain.low)} to {_points(gain.high)})"
    else:
        spread = f" ({_listed(gain)}; {at_least(gain)})" if len(gain.values) > 1 else ""
    return Figure(_points(gain.mean), "points", f"{titles[gain.method]} over {titles[gain.baseline]}{spread}")


def _gain_remarks(gain: Difference, titles: dict[str, str], *, compared: int) -> list[str]:
    name, baseline = titles[gain.method], titles[gain.baseline]
    seeds = count_seeds(len(gain.values))
    if len(gain.values) < 2:
        remarks = [f"One seed gives no interval: the difference between {name} and {baseline} may be chance."]
    elif gain.low is None or gain.high is None:
        differs = f"{name} differs from {baseline} by {_listed(gain)} points of mAP, seed by seed"
        least = f"the smallest p-value that the exact test can give for them is {gain.smallest_p:.2g}"
        remarks = [f"{differs}. {seeds.capitalize()} give no interval, and {least}: the difference may be chance."]
    else:
        tested = "" if gain.p_holm is None else f"; p{_TIE}={_TIE}{gain.p_holm:.2g}" + _corrected(compared)
        interval = f"{100 * CONFIDENCE:.0f}{_TIE}% interval {_points(gain.low)} to {_points(gain.high)} over {seeds}"
        differs = f"{name} differs from {baseline} by {_points(gain.mean or 0.0)} points of mAP"
        remarks = [f"{differs}; {interval}{tested}."]
        if gain.low <= 0 <= gain.high:
            remarks.append("The interval includes zero, so these runs do not show which of the two is better.")
    if compared > 1:
        remarks.append(f"{name} was picked as the best of {compared} by these very numbers, which flatters it.")
    return remarks


def _corrected(compared: int) -> str:
    return f", corrected for {compared} comparisons" if compared > 1 else ""


def _oracle(grid: CellSet, winner: str) -> list[Figure]:
    """Return the gap to the oracle on the test part: it was trained on the rest of the target."""
    if ORACLE not in grid.methods:
        return []
    gap = grid.results.difference(ORACLE, winner, part="test").mean
    if gap is None:
        return []
    meaning = f"{grid.titles[winner]} against {grid.titles[ORACLE]}, which trains on the target; test part"
    return [Figure(_points(-gap), "points", meaning)]


def _score(entry: Entry, names: str) -> Figure:
    assert entry.mean is not None
    spread = "" if entry.sd is None else f", ± {plain(100 * entry.sd, digits=1)} over seeds"
    return Figure(plain(100 * entry.mean, digits=1), "% mAP", f"{names}{spread}")


def _whole(grid: CellSet) -> tuple[str, ...]:
    """Say how many runs have no result, how many cells nobody asked for, and which were run on other data."""
    counts = Counter(cell.status for cell in grid.cells if cell.status != "done")
    found = []
    if counts:
        listed = ", ".join(f"{number} {status}" for status, number in counts.items())
        found.append(f"{sum(counts.values())} of {len(grid.cells)} runs have no result: {listed}.")
    absent = len(grid.methods) * len(grid.splits) * len(grid.results.seeds) - len(grid.cells)
    if absent:
        found.append(f"{absent} combinations of method, split and seed were not asked for and count as missing.")
    return (*found, *differing_data(grid.cells))


def _unfinished(grid: CellSet) -> tuple[str, ...]:
    return tuple(
        f"{grid.titles[cell.method]}, {cell.split}, seed {cell.seed}: {cell.error or cell.status}"
        for cell in grid.cells
        if cell.status != "done"
    )


def _named(methods: Sequence[str], titles: dict[str, str]) -> str:
    names = [titles[method] for method in methods]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _listed(gain: Difference) -> str:
    values = [_points(value) for _, value in sorted(gain.values.items())]
    return " and ".join(values)


def _points(share: float) -> str:
    """Return a difference of shares in percentage points with its sign, e.g. ``+2.3``."""
    return signed(100 * share)
