"""Scores of methods: a table per split with a column per label, next to the paper's, the summary, and calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from ldstyle.benchmark.grid.methods import BASELINE, ORACLE
from ldstyle.benchmark.paper import TABLE_7, TABLES_BY_TARGET, SplitRow
from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.statistics import Difference
from ldstyle.benchmark.results.view import Results
from ldstyle.report.model import DASH, Absent, Column, Number, Row, Table, Value, Word
from ldstyle.report.tables.entries import (
    BOLD,
    METRICS,
    PARTS,
    capital,
    change_of,
    competing,
    explain_pairs,
    heading,
    interval_header,
    interval_of,
    is_the_papers,
    joined,
    mean_of,
    method_table,
    nothing_done,
    over_seeds,
    p_of,
    part_text,
    row_header,
    rows_by_split,
    score_of,
    seeds_text,
)

_OUT_OF_COMPETITION = f"{BOLD}; the oracle, trained on the target itself, does not compete."
_LEFT_OUT = "The oracle is left out: it was trained on most of the whole target."
_NEXT_TO_OURS = "Next to ours the paper's, over 5 seeds."
_SCALINGS = {"before": "as predicted", "after": "scaled"}


def split_table(results: Results, split: str, *, part: str) -> Table | Absent:
    """Return the scores on a split: average precision by label, then mAP, CF1 and OF1 with their deviations."""
    every = results.on(split)
    slug, here = f"split-{split}-{part}", _of_part(every, part)
    target, sources = every.cells[0].target, every.cells[0].sources
    title = f"{split}: target {target}, {PARTS[part]}"
    if not here.done:
        return nothing_done(here, slug, title)
    columns = [(Column(label), _column(here, part, f"ap.{label}", deviation=False)) for label in here.labels(part=part)]
    columns += [(Column(name), _column(here, part, metric)) for metric, name in METRICS.items()]
    printed = TABLES_BY_TARGET[target] if part == "test" and is_the_papers(results, split) else None
    if printed is not None:
        columns += [
            (Column(f"{name} (paper)"), {method: _printed(printed.get(method), metric) for method in here.methods})
            for metric, name in METRICS.items()
        ]
    count = here.count_images(part).get(target)
    if part == "all":
        images = f"All images of {target}" if count is None else f"All {count:,} images of {target}"
    else:
        images = f"Test part of {target}" + ("" if count is None else f" ({count:,} images)")
    caption = (
        f"{images}, trained on {joined(sources)}: average precision by label and its mean (mAP), "
        f"macro (CF1) and micro F1 (OF1) in percent, {over_seeds(here.seeds)}. {_bold(here)}"
    )
    caption += f" {_LEFT_OUT}" if part == "all" and ORACLE in every.methods else ""
    caption += "" if printed is None else f" {_NEXT_TO_OURS}"
    return method_table(here, slug, title, caption, columns, split=split)


def label_paper_table(results: Results, split: str) -> Table | None:
    """Return the average precision of each label next to the paper's; ``None`` if the split is not the paper's."""
    here, target = results.on(split), results.targets[split]
    if not here.done or not is_the_papers(results, split):
        return None
    printed = TABLES_BY_TARGET[target]
    columns = []
    for label in here.labels():
        papers = {method: _printed_label(printed.get(method), label) for method in here.methods}
        columns += [(Column(label), _column(here, "test", f"ap.{label}", deviation=False))]
        columns += [(Column(f"{label} (paper)"), papers)]
    caption = (
        f"Average precision by label on the test part of {target} in percent, mean over {seeds_text(here.seeds)}, next "
        f"to the paper's over 5 seeds. {_OUT_OF_COMPETITION}"
    )
    title = f"{split}: labels next to the paper's"
    return method_table(here, f"split-{split}-labels", title, caption, columns, split=split)


def summary_table(results: Results, *, part: str) -> Table | Absent:
    """Return the mAP on every split and on average, and the gain over ERM with its interval and corrected p-value."""
    slug, title = f"summary-{part}", f"All splits, {PARTS[part]}"
    here = _of_part(results, part)
    if not here.done:
        return nothing_done(here, slug, title)
    several = len(here.splits) > 1
    # Each split has seeds of its own: one that a split was never run with is missing from the average only.
    columns: list[tuple[Column, Mapping[str, Value]]] = [
        (heading(here, split), _column(here.on(split), part, "map")) for split in here.splits if several
    ]
    average = Column("average" if several else f"mAP, {heading(here, here.splits[0]).title}")
    columns.append((average, _column(here, part, "map")))
    gains = _gains(here, part)
    if gains:
        columns.append((Column("gain over ERM"), {method: change_of(gain) for method, gain in gains.items()}))
    if gains and len(here.seeds) > 1:
        intervals = {method: interval_of(gain) for method, gain in gains.items()}
        columns.append((Column(interval_header(gains.values())), intervals))
        columns.append((Column("p (Holm)"), {method: p_of(gain) for method, gain in gains.items()}))
    whole_paper = part == "test" and all(is_the_papers(here, split) for split in here.splits)
    whole_paper = whole_paper and set(here.targets.values()) == TABLES_BY_TARGET.keys()
    if whole_paper:
        papers = {method: TABLE_7[method] for method in here.methods if method in TABLE_7}
        averages = {method: Number(number=row.average, digits=1) for method, row in papers.items()}
        printed = {m: Number(number=row.gain, digits=1, signed=True) for m, row in papers.items()}
        columns += [(Column("average (paper)"), averages), (Column("gain (paper)"), printed)]
    caption = _summary_caption(results, here, part, gains.values())
    return method_table(here, slug, title, caption + (f" {_NEXT_TO_OURS}" if whole_paper else ""), columns)


def _summary_caption(results: Results, here: Results, part: str, gains: Iterable[Difference]) -> str:
    averages = ", averages seed by seed" if len(here.splits) > 1 else ""
    caption = f"mAP on {part_text(here, part)} in percent, {over_seeds(here.seeds)}{averages}. {_bold(here)}"
    if gains:
        caption += f" {explain_pairs(len(here.seeds), gains)}"
    return caption + (f" {_LEFT_OUT}" if part == "all" and ORACLE in results.methods else "")


def _bold(results: Results) -> str:
    return _OUT_OF_COMPETITION if ORACLE in results.methods else f"{BOLD}."


def _of_part(results: Results, part: str) -> Results:
    return results.without(ORACLE) if part == "all" else results


def _column(results: Results, part: str, metric: str, *, deviation: bool = True) -> dict[str, Value]:
    entries = results.entries(part=part, metric=metric)
    first = competing(entries)
    undefined = "no image is known to have the label" if metric.startswith("ap.") else ""
    return {
        m: mean_of(entry, deviation=deviation, best=m in first, undefined=undefined) for m, entry in entries.items()
    }


def _gains(results: Results, part: str) -> dict[str, Difference]:
    if BASELINE not in results.methods:
        return {}
    rivals = [method for method in results.methods if method not in (BASELINE, ORACLE)]
    return {gain.method: gain for gain in results.compare(BASELINE, methods=rivals, part=part)}


def _printed(row: SplitRow | None, metric: str) -> Value:
    return Value() if row is None else score_of(getattr(row, metric))


def _printed_label(row: SplitRow | None, label: str) -> Value:
    return Number(number=None if row is None else row.ap.get(label), digits=1)


def calibration_table(results: Results) -> Table | Absent:
    """Return the expected calibration error by method and label on the target, as predicted and scaled."""
    slug, title = "calibration", "Are probabilities right?"
    if not results.done:
        return nothing_done(results, slug, title)
    labels = list(dict.fromkeys(label for cell in results.done for label in cell.vocabulary))
    rows, breaks = rows_by_split(results, lambda here, method: _calibration_rows(here, method, labels))
    if not rows:
        return Absent(slug, title, "The runs were made before calibration was judged.", optional=True)
    caption = (
        "Expected calibration error on the target, in percent: the mean gap between predicted probability and observed "
        "frequency over 15 equal bins, by label and averaged over labels. Scaled: logits divided by one temperature "
        "per run, fitted to the validation parts of the sources; above 1 the network was too sure of itself. "
        f"{capital(over_seeds(results.seeds))}."
    )
    columns = (row_header(results), "target", "probabilities", "temperature", "mean", *labels)
    return Table(slug, title, caption, tuple(map(Column, columns)), rows, breaks)


def _calibration_rows(results: Results, method: str, labels: Sequence[str]) -> list[Row]:
    judged = [cell for cell in results.of(method) if cell.calibration_errors("before")]
    if not judged:
        return []
    found = results.select(lambda cell: cell in judged)
    rows = []
    for scaling, title in _SCALINGS.items():
        temperature: Value = Word(DASH)
        if scaling == "after":
            temperature = mean_of(found.entry(method, metric=lambda cell: cell.temperature), scale=1.0, digits=2)
        values: list[Value] = [Word(results.titles[method]), Word(judged[0].target), Word(title), temperature]
        values.append(mean_of(found.entry(method, metric=_calibration_error(scaling, labels))))
        values += [
            mean_of(found.entry(method, metric=_calibration_error(scaling, [label])), deviation=False)
            for label in labels
        ]
        rows.append(Row(tuple(values), method=method, split=judged[0].split))
    return rows


def _calibration_error(scaling: str, labels: Sequence[str]) -> Callable[[CellResult], float | None]:
    """Return the metric that averages the errors of some labels; unknown ones are left out."""

    def error(cell: CellResult) -> float | None:
        errors = cell.calibration_errors(scaling)
        known = [value for label in labels if (value := errors.get(label)) is not None]
        return fmean(known) if known else None

    return error
