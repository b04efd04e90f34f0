"""Scores of methods: a table per split with a column per label, the paper's labels beside ours, and the summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ldstyle.benchmark.paper import TABLE_7, TABLES_BY_TARGET, SplitRow
from ldstyle.benchmark.results.comparison import Difference, Entry
from ldstyle.benchmark.results.statistics import LEAST_VALUES, smallest_p
from ldstyle.report.model import Absent, Table, Value
from ldstyle.report.order import BASELINE, ORACLE
from ldstyle.report.tables.cells import PARTS, CellSet, competing, count_images, part_text, rules
from ldstyle.report.tables.values import (
    DASH,
    Statistic,
    count_seeds,
    interval_header,
    interval_of,
    of_difference,
    of_entry,
    of_score,
    over_seeds,
    p_of,
    plain,
    seeds_text,
    signed,
)

METRICS = {"map": "mAP", "cf1": "CF1", "of1": "OF1"}
BOLD = "Bold: the best of a column and all that tie with it as printed"
OUT_OF_COMPETITION = f"{BOLD}; the oracle, trained on the target itself, does not compete."
_UNTOLD = "The oracle is left out: it was trained on most of the whole target."
_BESIDE = "Beside ours the paper's, over 5 seeds."


def split_table(cells: CellSet, split: str, *, part: str) -> Table | Absent:
    """Return the scores on a split: average precision by label, then mAP, CF1 and OF1 with their deviations."""
    slug, here = f"split-{split}-{part}", _of_part(cells.on(split), part)
    target, sources = cells.first(split).target, cells.first(split).sources
    title = f"{split}: target {target}, {PARTS[part]}"
    if here.is_empty:
        return here.nothing(slug, title)
    labels = here.results.labels(part=part)
    printed = TABLES_BY_TARGET[target] if part == "test" and cells.of_the_paper(split) else None
    columns = [_column(here, part, f"ap.{label}", deviation=False) for label in labels]
    columns += [_column(here, part, metric) for metric in METRICS]
    headers = [*labels, *METRICS.values()]
    if printed is not None:
        columns += [{method: _printed(printed.get(method), metric) for method in here.methods} for metric in METRICS]
        headers += [f"{name} (paper)" for name in METRICS.values()]
    caption = (
        f"{_images_of(here, part, target)}, trained on {_and(sources)}: average precision by label and its mean (mAP), "
        f"macro (CF1) and micro F1 (OF1) in percent, {over_seeds(here.results.seeds)}. "
        f"{OUT_OF_COMPETITION if ORACLE in here.methods else BOLD + '.'}"
    )
    if part == "all" and ORACLE in cells.on(split).methods:
        caption += f" {_UNTOLD}"
    return _table(here, slug, title, caption + (f" {_BESIDE}" if printed is not None else ""), headers, columns)


def label_paper_table(cells: CellSet, split: str) -> Table | None:
    """Return the average precision of each label beside the paper's; ``None`` where the split is not the paper's."""
    here, target = cells.on(split), cells.first(split).target
    if here.is_empty or not cells.of_the_paper(split):
        return None
    printed = TABLES_BY_TARGET[target]
    columns, headers = [], []
    for label in here.results.labels():
        columns += [_column(here, "test", f"ap.{label}", deviation=False)]
        columns += [{method: _printed_label(printed.get(method), label) for method in here.methods}]
        headers += [label, f"{label} (paper)"]
    caption = (
        f"Average precision by label on the test part of {target} in percent, mean over "
        f"{seeds_text(here.results.seeds)}, beside the paper's over 5 seeds. {OUT_OF_COMPETITION}"
    )
    return _table(here, f"split-{split}-labels", f"{split}: labels beside the paper's", caption, headers, columns)


def summary_table(cells: CellSet, *, part: str) -> Table | Absent:
    """Return the mAP on every split and on average, and the gain over ERM with its interval and corrected p-value."""
    slug, title = f"summary-{part}", f"All splits, {PARTS[part]}"
    here = _of_part(cells, part)
    if here.is_empty:
        return here.nothing(slug, title)
    several = len(here.splits) > 1
    # Seeds of its own for each split: one that a split was never run with is missing from the average only.
    columns = [_column(here.on(split), part, "map") for split in here.splits] if several else []
    headers = [here.heading(split) for split in here.splits] if several else []
    columns.append(_column(here, part, "map"))
    headers.append("average" if several else f"mAP, {here.heading(here.splits[0])}")
    gains = _gains(here, part)
    if gains:
        columns.append({method: of_difference(gain) for method, gain in gains.items()})
        headers.append("gain over ERM")
    if gains and len(here.results.seeds) > 1:
        columns += [
            {method: interval_of(gain) for method, gain in gains.items()},
            {method: p_of(gain) for method, gain in gains.items()},
        ]
        headers += [interval_header(gains.values()), "p (Holm)"]
    if part == "test" and here.is_the_papers:
        columns += [dict(_printed_averages(here)), dict(_printed_gains(here))]
        headers += ["average (paper)", "gain (paper)"]
    return _table(here, slug, title, _summary_caption(cells, here, part, gains.values()), headers, columns)


def _summary_caption(cells: CellSet, here: CellSet, part: str, gains: Iterable[Difference]) -> str:
    seeds = here.results.seeds
    averages = ", averages seed by seed" if len(here.splits) > 1 else ""
    caption = (
        f"mAP on {part_text(here.cells, part)} in percent, {over_seeds(seeds)}"
        f"{averages}. {OUT_OF_COMPETITION if ORACLE in here.methods else BOLD + '.'}"
    )
    if gains:
        caption += f" {explain_pairs(len(seeds), gains)}"
    if part == "all" and ORACLE in cells.methods:
        caption += f" {_UNTOLD}"
    return caption + (f" {_BESIDE}" if part == "test" and here.is_the_papers else "")


def explain_pairs(seeds: int, found: Iterable[Difference]) -> str:
    """Say how differences are judged, and what so many seeds can show at best.

    Args:
        seeds: Number of seeds of the table.
        found: The differences that are shown; some may have fewer seeds.
    """
    if seeds < 2:
        return "One seed tells nothing about how sure differences are."
    tested = (
        "an exact two-sided sign-flip test, corrected by Holm's method over the rows; with "
        f"{count_seeds(seeds)} its p-value is at least {smallest_p(seeds):.2g} before correction."
    )
    if seeds < LEAST_VALUES:
        return f"Differences are paired by seed: the values of the seeds, too few for an interval, and {tested}"
    few = any(1 < len(one.values) < LEAST_VALUES for one in found)
    listed = f" Below {LEAST_VALUES} seeds there is no interval; their values are listed." if few else ""
    return f"Differences are paired by seed: 95 % percentile bootstrap interval of the mean, and {tested}{listed}"


def _of_part(cells: CellSet, part: str) -> CellSet:
    return cells.without(ORACLE) if part == "all" else cells


def _column(cells: CellSet, part: str, metric: str, *, deviation: bool = True) -> dict[str, Value]:
    entries: dict[str, Entry] = {m: cells.results.entry(m, part=part, metric=metric) for m in cells.methods}
    first = competing(entries)
    undefined = "no image is known to have the label" if metric.startswith("ap.") else ""
    return {
        m: of_entry(entry, deviation=deviation, best=m in first, undefined=undefined) for m, entry in entries.items()
    }


def _gains(cells: CellSet, part: str) -> dict[str, Difference]:
    if BASELINE not in cells.methods:
        return {}
    rivals = [method for method in cells.methods if method not in (BASELINE, ORACLE)]
    return {gain.method: gain for gain in cells.results.compare(BASELINE, methods=rivals, part=part)}


def _table(
    cells: CellSet, slug: str, title: str, caption: str, headers: list[str], columns: list[dict[str, Value]]
) -> Table:
    """Set columns by method side by side; a method without an entry has a dash."""
    rows = tuple(
        (Value(cells.titles[method]), *(column.get(method, Value(DASH)) for column in columns))
        for method in cells.methods
    )
    return Table(slug, title, caption, (cells.row_header, *headers), rows, rules(cells.methods))


def _printed(row: SplitRow | None, metric: str) -> Value:
    return Value(DASH) if row is None else of_score(getattr(row, metric))


def _printed_label(row: SplitRow | None, label: str) -> Value:
    value = None if row is None else row.ap.get(label)
    return Value(DASH) if value is None else Statistic(plain(value, digits=1), value)


def _printed_averages(cells: CellSet) -> Iterator[tuple[str, Value]]:
    for method in cells.methods:
        if method in TABLE_7:
            average = TABLE_7[method].average
            yield method, Value(plain(average, digits=1), average)


def _printed_gains(cells: CellSet) -> Iterator[tuple[str, Value]]:
    for method in cells.methods:
        gain = TABLE_7[method].gain if method in TABLE_7 else None
        if gain is not None:
            yield method, Value(signed(gain), gain)


def _images_of(cells: CellSet, part: str, target: str) -> str:
    count = count_images(cells.cells, part).get(target)
    if part == "all":
        return f"All images of {target}" if count is None else f"All {count:,} images of {target}"
    return f"Test part of {target}" + ("" if count is None else f" ({count:,} images)")


def _and(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
