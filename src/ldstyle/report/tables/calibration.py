"""Whether predicted probabilities are right on the target, before and after temperature scaling on the sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ldstyle.benchmark.results.comparison import Results
from ldstyle.benchmark.results.records import CellResult
from ldstyle.report.model import Absent, Table, Value
from ldstyle.report.tables.cells import CellSet
from ldstyle.report.tables.observed import Observation
from ldstyle.report.tables.values import DASH, of_entry, over_seeds

SLUG, TITLE = "calibration", "Are probabilities right?"
_SCALINGS = {"before": "as predicted", "after": "scaled"}


def calibration_table(cells: CellSet) -> Table | Absent:
    """Return the expected calibration error by method and label on the target, as predicted and scaled."""
    if cells.is_empty:
        return cells.nothing(SLUG, TITLE)
    labels = list(dict.fromkeys(label for cell in cells.cells for label in cell.vocabulary))
    rows: list[tuple[Value, ...]] = []
    breaks: list[int] = []
    for split in cells.splits:
        here = cells.on(split)
        block = [row for method in here.methods for row in _rows(here, method, labels)]
        breaks += [len(rows)] if rows and block else []
        rows += block
    if not rows:
        return Absent(SLUG, TITLE, "The runs were made before calibration was judged.", optional=True)
    caption = (
        "Expected calibration error on the target, in percent: the mean gap between predicted probability and observed "
        "frequency over 15 equal bins, by label and averaged over labels. Scaled: logits divided by one temperature "
        "per run, fitted to the validation parts of the sources; above 1 the network was too sure of itself. "
        f"{over_seeds(cells.results.seeds).capitalize()}."
    )
    columns = (cells.row_header, "target", "probabilities", "temperature", "mean", *labels)
    return Table(SLUG, TITLE, caption, columns, tuple(rows), tuple(breaks))


def _rows(cells: CellSet, method: str, labels: Sequence[str]) -> list[tuple[Value, ...]]:
    judged = [cell for cell in cells.cells if cell.method == method and cell.record.get("calibration")]
    if not judged:
        return []
    head = (Value(cells.titles[method]), Value(judged[0].target))
    rows = []
    for scaling, title in _SCALINGS.items():
        found = Results(
            Observation(cell.method, cell.split, cell.seed, cell.status, {"test": _errors(cell, scaling)})
            for cell in judged
        )
        temperature = of_entry(found.entry(method, metric="temperature"), scale=1.0, digits=2)
        errors = [of_entry(found.entry(method, metric="mean"))]
        errors += [of_entry(found.entry(method, metric=f"label {label}"), deviation=False) for label in labels]
        rows.append((*head, Value(title), temperature if scaling == "after" else Value(DASH), *errors))
    return rows


def _errors(cell: CellResult, scaling: str) -> Mapping[str, Any]:
    """Return the errors of a run on the whole target, or on its test part where it has seen the rest."""
    judged = cell.record["calibration"]
    errors = (judged["all"] or judged["test"])[scaling]
    known = [error for error in errors.values() if error is not None]
    mean = fmean(known) if known else None
    by_label = {f"label {label}": error for label, error in errors.items()}
    return {"temperature": judged["temperature"], "mean": mean, **by_label}
