"""Summary of the results of a grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ldstyle.benchmark.grid.methods import BASELINE, ORACLE, leading_pair
from ldstyle.benchmark.results.data import differing_data
from ldstyle.benchmark.results.statistics import CONFIDENCE, Difference, Entry, best
from ldstyle.benchmark.results.view import Results
from ldstyle.report.model import at_least, plain, signed
from ldstyle.report.tables.entries import count_seeds, joined

_TIE = "\u00a0"
"""A space that keeps a number and its unit on one line."""

_BIAS = "The best of several methods was selected by the same numbers, which biases its gain up."


@dataclass(frozen=True)
class Figure:
    """A number that stands out.

    Attributes:
        value: The number, e.g. ``+2.3``.
        unit: Its unit, e.g. ``points``.
        meaning: Its meaning, in a few words.
    """

    value: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Summary:
    """A grid in short.

    Attributes:
        lead: What label-decoupling does and what it changed here, in one sentence; empty without a pair to compare.
        headline: The result, in one sentence.
        remarks: Qualifications of the result, a sentence each.
        figures: Its numbers.
        unfinished: Runs without a result, a line each.
    """

    headline: str
    remarks: tuple[str, ...]
    figures: tuple[Figure, ...]
    unfinished: tuple[str, ...]
    lead: str = ""


def summarize(results: Results, *, part: str = "all") -> Summary | None:
    """Return the best method, its gain over plain training, and the missing runs.

    Where no method has all results, the best method of each split is named instead.

    Args:
        results: The grid. Ablations and points of sweeps do not compete.
        part: Part of the target to judge by.

    Returns:
        The summary; ``None`` if there is no cell of a method.
    """
    grid = results.main
    if not grid.cells:
        return None
    runs = Figure(f"{len(grid.done)} of {len(grid.cells)}", "", f"runs finished, {count_seeds(len(grid.seeds))}")
    found = _best(grid, part=part)
    if found is None:
        return _by_split(grid, runs, part=part)
    rivals, winners = found
    figures = [_score(rivals[winners[0]], _named(winners, grid.titles))]
    gains, remarks = _gains(grid, rivals, winners, part=part)
    headline = _headline(winners, rivals, grid, part=part)
    decoupled = _decoupled(grid, part=part)
    gains += [_gain_figure(decoupled, grid.titles)] if decoupled is not None else []
    figures += [*gains, *_oracle(grid, winners[0]), runs]
    remarks += _qualifications(grid)
    lead = _lead(grid, decoupled, part=part)
    return Summary(headline, tuple(remarks), tuple(figures), _unfinished(grid), lead)


def _by_split(grid: Results, runs: Figure, *, part: str) -> Summary:
    """Return the summary of a grid in which no method has every split and seed."""
    claims, figures, remarks = [], [], list[str]()
    for split in grid.splits:
        here = grid.on(split)
        found = _best(here, part=part)
        if found is None:
            continue
        rivals, winners = found
        names, entry = _named(winners, grid.titles), rivals[winners[0]]
        where = f"{split} → {grid.targets[split]}"
        complete = sum(one.complete for one in rivals.values())
        of = f"the best of {complete}" if complete > 1 else "the only one"
        claims.append(f"{names} on {where} ({_percent(entry)}, {of})")
        figures.append(_score(entry, f"{names} on {where}"))
        remarks += [f"{where}: {remark}" for remark in _gains(here, rivals, winners, part=part)[1] if remark != _BIAS]
    headline = "No method has a result on every split and seed yet."
    if claims:
        headline = (
            f"No method has all splits and seeds. By split, of the methods with all of its seeds: {joined(claims)}."
        )
        remarks.append(_BIAS)
    lead = _lead(grid, _decoupled(grid, part=part), part=part)
    return Summary(headline, (*remarks, *_qualifications(grid)), (*figures, runs), _unfinished(grid), lead)


def _decoupled(grid: Results, *, part: str) -> Difference | None:
    """Return the difference of the first label-decoupled method to its global twin, if it has a value."""
    pair = leading_pair(grid.methods)
    found = None if pair is None else grid.difference(*pair, part=part)
    return found if found is not None and found.mean is not None else None


def _lead(grid: Results, decoupled: Difference | None, *, part: str) -> str:
    if decoupled is None or decoupled.mean is None:
        return ""
    method, twin = grid.titles[decoupled.method], grid.titles[decoupled.baseline]
    seeds = count_seeds(len(decoupled.values))
    if decoupled.low is not None and decoupled.high is not None:
        ends = f"{_points(decoupled.low)} to {_points(decoupled.high)}"
        spread = f"{100 * CONFIDENCE:.0f}{_TIE}% interval {ends} over {seeds}"
    else:
        spread = f"{_listed(decoupled)} for {seeds}" if len(decoupled.values) > 1 else seeds
    seen = _images(grid.without(ORACLE).count_images(part), part)
    change = f"{_points(decoupled.mean)}{_TIE}points ({spread})"
    return (
        f"{twin} mixes the style of whole training images; {method} mixes it label by label, each label with the same "
        f"label in an image of another domain: on {seen}, never seen in training, this changes mAP by {change}."
    )


def _best(grid: Results, *, part: str) -> tuple[dict[str, Entry], tuple[str, ...]] | None:
    """Return the entry of every rival and the best of them; ``None`` if none is complete."""
    rivals = {name: grid.entry(name, part=part) for name in grid.methods if name != ORACLE}
    winners = best(rivals)
    return (rivals, winners) if winners else None


def _gains(
    grid: Results, rivals: dict[str, Entry], winners: Sequence[str], *, part: str
) -> tuple[list[Figure], list[str]]:
    """Return the gain of the best method over plain training as a figure and in words."""
    if BASELINE not in rivals:
        return [], []
    others = [name for name in rivals if name != BASELINE]
    compared = [one for one in grid.compare(BASELINE, methods=others, part=part) if one.mean is not None]
    gain = _gain(compared, rivals, winners)
    if gain is None:
        return [], []
    return [_gain_figure(gain, grid.titles)], _gain_remarks(gain, grid.titles, compared=len(compared))


def _headline(winners: Sequence[str], entries: dict[str, Entry], grid: Results, *, part: str) -> str:
    names, splits = _named(winners, grid.titles), len(grid.splits)
    over = f"{splits} split{'' if splits == 1 else 's'} and {count_seeds(len(grid.seeds))}"
    whole = sum(entry.complete for entry in entries.values())
    rivals = f"{whole} methods" if whole == len(entries) else f"the {whole} methods that are complete"
    if whole == 1:
        claim = f"{names} reaches" if len(entries) == 1 else f"{names}, so far the only complete method, reaches"
    elif len(winners) == 1:
        claim = f"{names} is the best of {rivals}:"
    else:
        claim = f"{names} tie as the best of {rivals}:"
    seen = _images(grid.without(ORACLE).count_images(part), part)
    return f"{claim} {_percent(entries[winners[0]])} on {seen}, never seen in training, over {over}."


def _percent(entry: Entry) -> str:
    return f"{100 * (entry.mean or 0.0):.1f}{_TIE}%{_TIE}mAP"


def _images(counts: Mapping[str, int], part: str) -> str:
    """Return e.g. ``all 656 images of drone`` or ``all 5,756 images of 3 targets``."""
    if not counts:
        return "targets"
    of = next(iter(counts)) if len(counts) == 1 else f"{len(counts)} targets"
    total = f"{sum(counts.values()):,}{_TIE}images"
    return f"all {total} of {of}" if part == "all" else f"the {total} of the test part of {of}"


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
        spread = f" ({_listed(gain)}; {at_least(gain.smallest_p)})" if len(gain.values) > 1 else ""
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
        remarks.append(_BIAS)
    return remarks


def _corrected(compared: int) -> str:
    return f", corrected for {compared} comparisons" if compared > 1 else ""


def _oracle(grid: Results, winner: str) -> list[Figure]:
    """Return the gap to the oracle on the test part: it was trained on the rest of the target."""
    if ORACLE not in grid.methods:
        return []
    gap = grid.difference(ORACLE, winner, part="test").mean
    if gap is None:
        return []
    meaning = f"{grid.titles[winner]} against {grid.titles[ORACLE]}, which trains on the target; test part"
    return [Figure(_points(-gap), "points", meaning)]


def _score(entry: Entry, names: str) -> Figure:
    assert entry.mean is not None
    spread = "" if entry.sd is None else f", ± {plain(100 * entry.sd, digits=1)} over {count_seeds(len(entry.values))}"
    return Figure(plain(100 * entry.mean, digits=1), "% mAP", f"{names}{spread}")


def _qualifications(grid: Results) -> tuple[str, ...]:
    """Return how many runs have no result, how many cells were not planned, and which were run on other data."""
    counts = Counter(cell.status for cell in grid.cells if cell.status != "done")
    found = []
    if counts:
        listed = ", ".join(f"{number} {status}" for status, number in counts.items())
        found.append(f"{sum(counts.values())} of {len(grid.cells)} runs have no result: {listed}.")
    absent = len(grid.methods) * len(grid.splits) * len(grid.seeds) - len(grid.cells)
    if absent:
        found.append(f"{absent} combinations of method, split and seed were not requested.")
    return (*found, *differing_data(grid.cells))


def _unfinished(grid: Results) -> tuple[str, ...]:
    return tuple(
        f"{grid.titles[cell.method]}, {cell.split}, seed {cell.seed}: {cell.error or cell.status}"
        for cell in grid.cells
        if cell.status != "done"
    )


def _named(methods: Sequence[str], titles: dict[str, str]) -> str:
    return joined([titles[method] for method in methods])


def _listed(gain: Difference) -> str:
    values = [_points(value) for _, value in sorted(gain.values.items())]
    return " and ".join(values)


def _points(difference: float) -> str:
    """Return a difference in percentage points with its sign, e.g. ``+2.3``."""
    return signed(100 * difference)
