"""The table of all runs, and the filter that the whole page obeys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ldstyle.benchmark.results.records import CellResult
from ldstyle.benchmark.results.status import duration
from ldstyle.report.html.items import body_cell, header_cell, method_titles, scrolling_table
from ldstyle.report.html.markup import Markup, element, join
from ldstyle.report.model import Value
from ldstyle.report.order import is_main

_COLUMNS = (
    "Method",
    "Split",
    "Target",
    "Seed",
    "Status",
    "mAP",
    "Test mAP",
    "Validation mAP",
    "Epochs",
    "Time",
    "Grid",
)
_NUMERIC = frozenset({"Seed", "mAP", "Test mAP", "Validation mAP", "Epochs", "Time"})
_NOTE = (
    "mAP is of the whole target, test mAP of its test part, validation mAP of held-back images of the sources. "
    "What is chosen here is chosen on the whole page: tables hide the rows and columns of other methods and splits, "
    "and the image browser its models. Numbers stay as they are, over all seeds. Press / to type."
)


def render_runs(runs: Mapping[str, Sequence[CellResult]]) -> Markup:
    """Return one row per run of every grid, below the filter."""
    cells = [(name, cell) for name, grid in runs.items() for cell in grid]
    if not cells:
        return element("p", "There are no runs.", class_="absent")
    several = len(runs) > 1
    columns = _COLUMNS if several else _COLUMNS[:-1]
    header = [header_cell(column, numeric=column in _NUMERIC) for column in columns]
    titles = {name: method_titles(grid) for name, grid in runs.items()}
    rows = [_row(name, cell, columns, titles[name][cell.method], several=several) for name, cell in cells]
    return join(
        element("p", _NOTE, class_="caption"),
        _filter(runs),
        scrolling_table("Runs", header, rows, id="run-table"),
    )


def run_key(grid: str, cell: str, *, several: bool) -> str:
    """Return what a run is called on a page: grids may have cells of one name."""
    return f"{grid}/{cell}" if several else cell


def _row(name: str, cell: CellResult, columns: Sequence[str], title: str, *, several: bool) -> Markup:
    whole, test = (cell.scores.get(part) or {} for part in ("all", "test"))
    wall = cell.wall_seconds
    values = {
        "Method": Value(title),
        "Split": Value(cell.split),
        "Target": Value(cell.target),
        "Seed": Value(str(cell.seed), cell.seed),
        "Status": Value(cell.status),
        "mAP": _share(whole.get("map")),
        "Test mAP": _share(test.get("map")),
        "Validation mAP": _share(cell.validation_map),
        "Epochs": Value(str(cell.epochs), cell.epochs),
        "Time": Value("–") if wall is None else Value(duration(wall), wall),
        "Grid": Value(name),
    }
    marks = {"Status": f"status status-{cell.status}"}
    after = {"Status": element("span", cell.error, class_="note") if cell.error else Markup()}
    entries = [
        body_cell(
            values[column],
            after.get(column, Markup()),
            first=column == "Method",
            numeric=column in _NUMERIC,
            mark=marks.get(column),
        )
        for column in columns
    ]
    names = {"data_method": cell.method, "data_split": cell.split, "data_seed": str(cell.seed), "data_grid": name}
    return element("tr", *entries, data_run=run_key(name, cell.cell, several=several), **names)


def _share(value: float | None) -> Value:
    return Value("–") if value is None else Value(f"{100 * value:.1f}", value)


def _filter(runs: Mapping[str, Sequence[CellResult]]) -> Markup:
    cells = [cell for grid in runs.values() for cell in grid]
    groups: dict[str, dict[str, str]] = {
        # Points of sweeps are too many for buttons; typing finds them.
        "method": {
            method: title for grid in runs.values() for method, title in method_titles(grid).items() if is_main(method)
        },
        "split": {cell.split: f"{cell.split}, {cell.target}" for cell in cells},
        "seed": {str(seed): str(seed) for seed in sorted({cell.seed for cell in cells})},
        "grid": {name: name for name in runs},
    }
    label = element("label", "Filter runs", for_="run-search", class_="hidden-label")
    hint = "Filter runs, e.g. efdmix s1"
    search = element("input", type="search", id="run-search", placeholder=hint, autocomplete="off")
    chosen = [_chips(group, choices) for group, choices in groups.items() if len(choices) > 1]
    return element("div", element("div", label, search), *chosen, class_="filters", id="run-filter", role="search")


def _chips(group: str, choices: Mapping[str, str]) -> Markup:
    chip = {"type": "button", "class_": "chip", "aria_pressed": "false", "data_group": group}
    chips = [element("button", text, value=value, **chip) for value, text in choices.items()]
    return element("fieldset", element("legend", group.title()), *chips)
