"""Calibration of predicted probabilities on the target, before and after temperature scaling on the sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.view import Results
from ldstyle.report.model import DASH, Absent, Column, Row, Table, Value, Word
from ldstyle.report.tables.entries import mean_of, nothing_done, over_seeds, row_header

SLUG, TITLE = "calibration", "Are probabilities right?"
_SCALINGS = {"before": "as predicted", "after": "scaled"}


def calibration_table(results: Results) -> Table | Absent:
    """Return the expected calibration error by method and label on the target, as predicted and scaled."""
    if not results.done:
        return nothing_done(results, SLUG, TITLE)
    labels = list(dict.fromkeys(label for cell in results.done for label in cell.vocabulary))
    rows: list[Row] = []
    breaks: list[int] = []
    for split in results.splits:
        here = results.on(split)
        block = [row for method in here.methods for row in _rows(here, method, labels)]
        breaks += [len(rows)] if rows and block else []
        rows += block
    if not rows:
        return Absent(SLUG, TITLE, "The runs were made before calibration was judged.", optional=True)
    caption = (
        "Expected calibration error on the target, in percent: the mean gap between predicted probability and observed "
        "frequency over 15 equal bins, by label and averaged over labels. Scaled: logits divided by one temperature "
        "per run, fitted to the validation parts of the sources; above 1 the network was too sure of itself. "
        f"{over_seeds(results.seeds).capitalize()}."
    )
    columns = (row_header(results), "target", "probabilities", "temperature", "mean", *labels)
    return Table(SLUG, TITLE, caption, tuple(map(Column, columns)), tuple(rows), tuple(breaks))


def _rows(results: Results, method: str, labels: Sequence[str]) -> list[Row]:
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
        values.append(mean_of(found.entry(method, metric=_error(scaling, labels))))
        values += [mean_of(found.entry(method, metric=_error(scaling, [label])), deviation=False) for label in labels]
        rows.append(Row(tuple(values), method=method, split=judged[0].split))
    return rows


def _error(scaling: str, labels: Sequence[str]) -> Callable[[CellResult], float | None]:
    """Return the metric that averages the errors of some labels; unknown ones are left out."""

    def error(cell: CellResult) -> float | None:
        errors = cell.calibration_errors(scaling)
        known = [value for label in labels if (value := errors.get(label)) is not None]
        return fmean(known) if known else None

    return error
