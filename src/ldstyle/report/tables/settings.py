"""Settings: what is searched (Table 2), and what runs were made with, beside the selected values of Table 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ldstyle.benchmark.grid.methods import PAPER_METHODS, TITLES, load_method
from ldstyle.benchmark.paper import TABLE_2, TABLE_3, Selected
from ldstyle.benchmark.results.records import CellResult
from ldstyle.benchmark.search.spaces import Choice, Integers, LogUniform, Parameter, Range, Subsets, Uniform
from ldstyle.config import StyleConfig
from ldstyle.report.model import Absent, Table, Value
from ldstyle.report.order import ORACLE, group
from ldstyle.report.tables.cells import CellSet
from ldstyle.report.tables.values import DASH, seeds_text
from ldstyle.runs.settings import config_from, flatten, merge

SELECTED_METHOD = "ld-efdmix-gc"
_TABLE_3 = {
    "stages": "stages",
    "style.operator.alpha": "alpha",
    "style.gate_prob": "gate_prob",
    "style.operator.top_ratio": "top_ratio",
    "style.attention.refresh_every": "refresh_every",
    "style.warmup_epochs": "warmup_epochs",
}
"""The rows of Table 3: settings, and their names in the paper's figures."""

_OPERATORS = ("mixstyle", "efdmix", "csu")
_SHORT = {
    "optimizer.backbone_lr": "lr backbone",
    "optimizer.head_lr": "lr head",
    "optimizer.weight_decay": "decay",
}


def search_space_table() -> Table:
    """Return Table 2: what a search varies, in which range, and for which methods."""
    rows = []
    breaks = []
    for row, parameter in enumerate(TABLE_2):
        if row and parameter.shared != TABLE_2[row - 1].shared:
            breaks.append(row)
        cells = (parameter.symbol, parameter.setting, _range(parameter.range), _searched_for(parameter))
        rows.append(tuple(map(Value, cells)))
    caption = (
        "What ldstyle search varies, as in Table 2 of the paper. Learning rates and weight decay are searched once, "
        "with plain training, and shared by all methods. LD-X stands for both kinds of attention, (LD-)X also for the "
        "global method."
    )
    columns = ("parameter", "setting", "range", "searched for")
    return Table("search-space", "Search space", caption, columns, tuple(rows), tuple(breaks))


def selected_tables(results: Sequence[CellResult]) -> list[Table | Absent]:
    """Return the values that the runs of a set were made with, and LD-EFDMix-GC's beside those of Table 3."""
    cells = CellSet(results).without(ORACLE)
    if not cells.cells:
        return [Absent("selected", "Values of the runs", "There is no run of a method.")]
    found = [_values_table(cells)]
    if cells.preset == "paper" and SELECTED_METHOD in cells.methods:
        splits = [split for split in cells.splits if cells.of_the_paper(split)]
        found += [_beside_table_3(cells, splits)] if splits else []
    return list(found)


def _values_table(cells: CellSet) -> Table:
    """Return the values of Table 2's parameters by method; splits with equal values share a row."""
    by_row: dict[tuple[str, str], dict[str, Value]] = {}
    breaks: list[int] = []
    for method in cells.methods:
        groups: dict[tuple[tuple[str, Value], ...], list[str]] = {}
        for split in cells.splits:
            runs = [cell for cell in cells.cells if (cell.method, cell.split) == (method, split)]
            if runs:
                groups.setdefault(tuple(_values(runs).items()), []).append(split)
        previous = next(reversed(by_row), (method, ""))[0]
        breaks += [len(by_row)] if by_row and group(previous) != group(method) else []
        for values, splits in groups.items():
            by_row[method, "all" if len(splits) == len(cells.splits) else ", ".join(splits)] = dict(values)
    shown = [p for p in TABLE_2 if any(p.setting in values for values in by_row.values())]
    rows = tuple(
        (Value(cells.titles[method]), Value(splits), *(values.get(p.setting, Value(DASH)) for p in shown))
        for (method, splits), values in by_row.items()
    )
    headers = [_SHORT.get(parameter.setting, parameter.symbol) for parameter in shown]
    caption = (
        f"Values of the searched parameters (Table 2) that the runs of {seeds_text(cells.results.seeds)} were made "
        f"with, preset {cells.preset}; a dash where one is not searched for a method."
    )
    columns = (cells.row_header, "splits", *headers)
    return Table("selected", "Values of the runs", caption, columns, rows, tuple(breaks))


def _beside_table_3(cells: CellSet, splits: Sequence[str]) -> Table:
    headers = [name for split in splits for name in (cells.heading(split), f"{split} (paper)")]
    symbols = {parameter.setting: parameter.symbol for parameter in TABLE_2}
    rows = []
    for setting, name in _TABLE_3.items():
        row = [Value(symbols[setting])]
        for split in splits:
            runs = [cell for cell in cells.on(split).cells if cell.method == SELECTED_METHOD]
            row += [_values(runs).get(setting, Value(DASH)), _printed(TABLE_3[cells.first(split).target], name)]
        rows.append(tuple(row))
    title = f"Values of {TITLES[SELECTED_METHOD]} beside Table 3"
    caption = (
        f"Values that {TITLES[SELECTED_METHOD]} was run with over {seeds_text(cells.results.seeds)}, beside those that "
        "the paper selected for each split."
    )
    return Table("selected-paper", title, caption, ("parameter", *headers), tuple(rows))


def _values(runs: Sequence[CellResult]) -> dict[str, Value]:
    """Return the values that runs of a method on a split share, by setting."""
    each = [_parameters(_settings_of(run)) for run in runs]
    values: dict[str, Value] = {}
    for setting in dict.fromkeys(name for found in each for name in found):
        first = each[0].get(setting)
        same = all(found.get(setting) == first for found in each)
        values[setting] = _value(first) if same else Value("varies", note="not the same for all seeds")
    return values


def _parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the parameters of Table 2 that a run has."""
    flat = dict(flatten(settings))
    try:
        config = config_from(merge(dict(settings), {"out": "run"}))
    except ValueError:
        # Settings of another version of this package: what stands in them under the name of a parameter is shown.
        return {p.setting: flat[p.setting] for p in TABLE_2 if p.setting in flat}
    return {p.setting: flat[p.setting] for p in TABLE_2 if p.setting in flat and p.applies(config.style)}


def _settings_of(run: CellResult) -> Mapping[str, Any]:
    found: Mapping[str, Any] = run.record.get("config") or run.record.get("settings") or {}
    return found


def _printed(selected: Selected, name: str) -> Value:
    return _value(getattr(selected, name))


def _value(value: Any) -> Value:
    if value is None:
        return Value(DASH)
    if isinstance(value, list | tuple):
        return Value(" + ".join(map(str, value)))
    return Value(f"{value:g}", float(value)) if isinstance(value, int | float) else Value(str(value))


def _range(values: Range) -> str:
    match values:
        case Uniform(low, high):
            return f"{low:g} to {high:g}"
        case LogUniform(low, high):
            return f"{low:g} to {high:g}, logarithmic"
        case Integers(low, high):
            return f"{low}, …, {high}"
        case Choice(choices):
            return ", ".join(map(str, choices))
        case Subsets(members):
            return f"subsets of {', '.join(map(str, members))}"


@cache
def _styles() -> dict[str, StyleConfig | None]:
    """Return the style of each of the paper's methods."""
    given = {"data": {"root": ".", "sources": ["a", "b"]}, "out": "run"}
    methods = [method for method in PAPER_METHODS if method != ORACLE]
    return {method: config_from(merge(load_method(method).settings, given)).style for method in methods}


def _searched_for(parameter: Parameter) -> str:
    """Name the methods that have a parameter by as few groups as do."""
    left = {method for method, style in _styles().items() if parameter.applies(style)}
    names = []
    for name, members in _groups().items():
        if members <= left:
            names.append(name)
            left -= members
    return ", ".join([*names, *(TITLES[method] for method in _styles() if method in left)])


def _groups() -> dict[str, set[str]]:
    """Return groups of methods as the paper names them, large ones first."""
    styles = _styles()
    decoupled = {method for method in styles if method.startswith("ld-")}
    cached = {method for method in decoupled if method.endswith("-gc")}
    groups = {
        "all methods": set(styles),
        "all augmentations": {method for method, style in styles.items() if style is not None},
        "all LD variants": decoupled,
        "GC variants": cached,
        "LLAM variants": decoupled - cached,
    }
    by_operator = {name: {method for method in decoupled if name in method.split("-")} for name in _OPERATORS}
    groups |= {f"(LD-){TITLES[name]}": {name, *members} for name, members in by_operator.items()}
    return groups | {TITLES[f"ld-{name}"]: members for name, members in by_operator.items()}
