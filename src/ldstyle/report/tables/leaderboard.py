"""The leaderboard: mAP by target, what a method gains over ERM and over its global twin, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from ldstyle.benchmark.grid.methods import BASELINE, ORACLE, global_twin, without_style
from ldstyle.benchmark.results.costs import read_costs
from ldstyle.benchmark.results.statistics import LEAST_VALUES, Difference
from ldstyle.benchmark.results.view import Results
from ldstyle.report.model import Absent, Change, Column, Number, Row, Table, Value, Word
from ldstyle.report.tables.cost import HOW, relative_times
from ldstyle.report.tables.entries import (
    BOLD,
    change_of,
    competing,
    heading,
    mean_of,
    nothing_done,
    part_text,
    row_header,
)

SLUG, TITLE = "leaderboard", "Leaderboard"
PART = "all"
"""Part of the target that methods are ranked on: all of its images."""
MEASURED = (
    "CPU time of training relative to ERM, from steps that alternate in one process; SWAD's extra validations and the "
    "sweeps of cached attention count"
)


def leaderboard_table(results: Results) -> Table | Absent:
    """Return the methods in order of their gain over ERM on the whole target."""
    here = results.without(ORACLE)
    if not here.done:
        return nothing_done(here, SLUG, TITLE)
    if BASELINE not in here.methods:
        command = results.command("run", ["erm"])
        return Absent(SLUG, TITLE, f"There is no ERM to compare with. Add it with `{command}`.", optional=True)
    gains = {method: _paired(here, method, BASELINE) for method in here.methods if method != BASELINE}
    ranks = {method: gain.mean for method, gain in gains.items() if gain is not None and gain.mean is not None}
    ranks[BASELINE] = 0.0
    few = _too_few(gains)
    ranked = sorted(here.methods, key=lambda method: (method in few, -ranks.get(method, float("-inf"))))
    by_split = {split: here.on(split).entries(part=PART) for split in here.splits}
    best = {split: competing(entries) for split, entries in by_split.items()}
    others = {method: other for method in here.methods if (other := without_style(method)) in here.methods and other}
    additions = list(dict.fromkeys(others.values()))
    averages = here.entries(part=PART) if len(here.splits) > 1 else {}
    leading = competing(averages)
    measured = read_costs(results.folder, damaged=results.damaged)
    rows = []
    for method in ranked:
        values: list[Value] = [Word(here.titles[method], note=_valley_note(here, method))]
        for split, entries in by_split.items():
            entry = entries.get(method)
            values.append(Value() if entry is None else mean_of(entry, best=method in best[split]))
        values += [mean_of(averages[method], best=method in leading)] if averages else []
        values.append(mean_of(_where_requested(here, method).entry(method, metric=lambda cell: cell.validation_map)))
        values.append(_change(gains.get(method)))
        twin = global_twin(method)
        values.append(_change(_paired(here, method, twin)) if twin in here.methods else Value())
        values += [_change(_paired(here, method, one) if others.get(method) == one else None) for one in additions]
        values.append(_cost(here, method, measured))
        rows.append(Row(tuple(values), method=method))
    last = f"; methods with fewer than {LEAST_VALUES} seeds last" if few else ""
    caption = (
        f"mAP on {part_text(here, PART)} in percent, mean ± standard deviation over seeds, in order of the mean "
        f"difference to ERM{last}. Source validation: mAP on the sources' validation parts, by which the model of a "
        "run was selected. Differences are in percentage points, paired by seed, over the targets and seeds that both "
        "methods have, with a 95 % percentile bootstrap interval (below 3 seeds, their values). Twin: the same "
        f"operator on whole images. Cost: {MEASURED if measured else f'training time relative to ERM, {HOW}'}. {BOLD}."
    )
    columns = [Column(row_header(here)), *(heading(here, split) for split in here.splits)]
    columns += [Column("average")] if averages else []
    differences = ("ERM", "twin", *(here.titles[one] for one in additions))
    columns += [Column("source validation"), *(Column(f"minus {name}") for name in differences), Column("cost")]
    return Table(SLUG, TITLE, caption, tuple(columns), tuple(rows))


def _valley_note(results: Results, method: str) -> str:
    """Return in how many runs SWAD averaged the last segment alone; empty if in none."""
    done = [cell for cell in results.of(method) if cell.status == "done"]
    count = sum(cell.no_valley for cell in done)
    return f"no valley found in {count} of {len(done)} runs, which average the last segment alone" if count else ""


def _where_requested(results: Results, method: str) -> Results:
    """Return the splits that a method was requested on, with the seeds of all methods."""
    splits = {cell.split for cell in results.of(method)}
    return results.select(lambda cell: cell.split in splits)


def _common(results: Results, method: str, baseline: str) -> Results:
    """Return the cells of two methods on the splits that both were requested on, with the seeds of either."""
    splits = {cell.split for cell in results.of(method)} & {cell.split for cell in results.of(baseline)}
    return results.select(lambda cell: cell.method in (method, baseline) and cell.split in splits)


def _paired(results: Results, method: str, baseline: str) -> Difference | None:
    """Compare two methods where both were requested; ``None`` if nowhere."""
    common = _common(results, method, baseline)
    return common.difference(method, baseline, part=PART) if common.cells else None


def _too_few(gains: Mapping[str, Difference | None]) -> set[str]:
    """Return the methods with too few pairs to be ranked among those with enough, if any has enough."""
    pairs = {method: 0 if gain is None else len(gain.values) for method, gain in gains.items()}
    if max(pairs.values(), default=0) < LEAST_VALUES:
        return set()
    return {method for method, count in pairs.items() if count < LEAST_VALUES}


def _cost(results: Results, method: str, measured: Mapping[str, float]) -> Value:
    """Return the measured cost relative to ERM, or where nothing was measured the ratio of the runs' times."""
    if measured:
        return Number(number=measured[method], digits=2, unit=" ×") if method in measured else Value()
    ratios = relative_times(_common(results, method, BASELINE), method)
    return Number(number=fmean(ratios.values()), digits=2, unit=" ×") if ratios else Value()


def _change(difference: Difference | None) -> Value:
    return Change() if difference is None else change_of(difference, interval=True)
