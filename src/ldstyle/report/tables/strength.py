"""Strength of the augmentation: how much each method changes features, and how sharp its maps are."""

from __future__ import annotations

from collections.abc import Callable

from ldstyle.benchmark.grid.methods import global_twin
from ldstyle.benchmark.results.cell import CellResult, EpochLog
from ldstyle.benchmark.results.view import Results
from ldstyle.report.model import Absent, Column, Number, Row, Table, Value, Word
from ldstyle.report.tables.entries import mean_of, nothing_done, over_seeds, row_header

SLUG, TITLE = "strength", "How much do methods change features?"


def strength_table(results: Results) -> Table | Absent:
    """Return relative feature change and effective locations of the last epoch, by method and insertion point."""
    if not results.done:
        return nothing_done(results, SLUG, TITLE)
    last = {cell.cell: history[-1] for cell in results.done if (history := results.history(cell))}
    rows: list[Row] = []
    breaks: list[int] = []
    for split in results.splits:
        here = results.on(split).select(lambda cell: bool(_points(last.get(cell.cell))))
        block = [row for method in here.methods for row in _rows(here, method, last)]
        breaks += [len(rows)] if rows and block else []
        rows += block
    if not rows:
        reason = "No run has logged the strength of its augmentation: that takes a style method and its metrics.jsonl."
        return Absent(SLUG, TITLE, reason, optional=True)
    caption = (
        "Mean relative feature change ‖ΔF‖/‖F − mean‖ in the augmented steps of the last epoch, in percent, at each "
        "insertion point, and its ratio to that of the same operator on whole images. Locations: the effective number "
        "1/Σa² of a median attention map, in percent of the map. "
        f"{over_seeds(results.seeds)[0].upper()}{over_seeds(results.seeds)[1:]}."
    )
    columns = (row_header(results), "target", "insertion point", "relative change", "× twin", "locations")
    return Table(SLUG, TITLE, caption, tuple(map(Column, columns)), tuple(rows), tuple(breaks))


def _rows(results: Results, method: str, last: dict[str, EpochLog]) -> list[Row]:
    mine = results.select(lambda cell: cell.method == method)
    twin = global_twin(method)
    points = dict.fromkeys(point for cell in mine.done for point in _points(last.get(cell.cell)))
    rows = []
    for point in points:
        strength = mine.entry(method, metric=_strength(last, point))
        values: list[Value] = [Word(results.titles[method]), Word(mine.cells[0].target), Word(point)]
        values.append(mean_of(strength))
        other = results.entry(twin, metric=_strength(last, point)).mean if twin in results.methods else None
        ratio = strength.mean / other if strength.mean is not None and other else None
        values.append(Number(number=ratio, digits=2))
        values.append(mean_of(mine.entry(method, metric=_locations(last, point)), digits=0, deviation=False))
        rows.append(Row(tuple(values), method=method, split=mine.cells[0].split))
    return rows


def _points(log: EpochLog | None) -> dict[str, float | None]:
    return {} if log is None else dict(log.strength)


def _strength(last: dict[str, EpochLog], point: str) -> Callable[[CellResult], float | None]:
    return lambda cell: last[cell.cell].strength.get(point) if cell.cell in last else None


def _locations(last: dict[str, EpochLog], point: str) -> Callable[[CellResult], float | None]:
    return lambda cell: last[cell.cell].locations.get(point) if cell.cell in last else None
