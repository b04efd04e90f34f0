"""The setup of a grid: data sets (Table 1), search space (Table 2), and settings of the runs next to Table 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ldstyle.benchmark.grid.methods import ORACLE, PAPER_METHODS, TITLES, group, load_method
from ldstyle.benchmark.paper import TABLE_2, TABLE_3
from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.view import Results
from ldstyle.benchmark.search.spaces import Choice, Integers, LogUniform, Parameter, Range, Subsets, Uniform
from ldstyle.config import StyleConfig
from ldstyle.data.domains.table1 import PAPER_TABLE_1, Statistics, count
from ldstyle.report.model import Absent, Column, Number, Row, Table, Value, Word
from ldstyle.report.tables.entries import heading, is_the_papers, row_header, seeds_text
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
    """Return Table 2: the parameters of a search, their ranges, and the methods that have them."""
    rows = []
    breaks = []
    for row, parameter in enumerate(TABLE_2):
        if row and parameter.shared != TABLE_2[row - 1].shared:
            breaks.append(row)
        cells = (parameter.symbol, parameter.setting, _range(parameter.range), _searched_for(parameter))
        rows.append(Row(tuple(map(Word, cells))))
    caption = (
        "Parameters that ldstyle search varies, as in Table 2 of the paper. Learning rates and weight decay are "
        "searched once, with plain training, and shared by all methods. LD-X stands for both kinds of attention, "
        "(LD-)X also for the global method."
    )
    columns = ("parameter", "setting", "range", "searched for")
    return Table("search-space", "Search space", caption, tuple(map(Column, columns)), tuple(rows), tuple(breaks))


def selected_tables(results: Results) -> list[Table | Absent]:
    """Return the searched settings of the runs, and those of LD-EFDMix-GC next to Table 3."""
    cells = results.without(ORACLE)
    if not cells.cells:
        return [Absent("selected", "Settings of the runs", "There is no run of a method.")]
    found: list[Table | Absent] = [_values_table(cells)]
    if cells.preset == "paper" and SELECTED_METHOD in cells.methods:
        splits = [split for split in cells.splits if is_the_papers(cells, split)]
        found += [_next_to_table_3(cells, splits)] if splits else []
    return found


def _values_table(results: Results) -> Table:
    """Return the values of Table 2's parameters by method; splits with equal values share a row."""
    by_row: dict[tuple[str, tuple[str, ...]], dict[str, Value]] = {}
    breaks: list[int] = []
    for method in results.methods:
        groups: dict[tuple[tuple[str, Value], ...], list[str]] = {}
        for split in results.splits:
            runs = results.of(method, split)
            if runs:
                groups.setdefault(tuple(_values(runs).items()), []).append(split)
        previous = next(reversed(by_row), (method, ()))[0]
        breaks += [len(by_row)] if by_row and group(previous) != group(method) else []
        by_row |= {(method, tuple(splits)): dict(values) for values, splits in groups.items()}
    shown = [p for p in TABLE_2 if any(p.setting in values for values in by_row.values())]
    rows = []
    for (method, splits), values in by_row.items():
        of_splits = Word("all" if len(splits) == len(results.splits) else ", ".join(splits))
        entries = (Word(results.titles[method]), of_splits, *(values.get(p.setting, Value()) for p in shown))
        only = splits[0] if len(splits) == 1 < len(results.splits) else None
        rows.append(Row(entries, method=method, split=only))
    headers = [_SHORT.get(parameter.setting, parameter.symbol) for parameter in shown]
    caption = (
        f"Values of the searched parameters (Table 2) in the runs of {seeds_text(results.seeds)}, preset "
        f"{results.preset}; a dash where one is not searched for a method."
    )
    columns = tuple(map(Column, (row_header(results), "splits", *headers)))
    return Table("selected", "Settings of the runs", caption, columns, tuple(rows), tuple(breaks))


def _next_to_table_3(results: Results, splits: Sequence[str]) -> Table:
    columns = [c for s in splits for c in (heading(results, s), Column(f"{s} (paper)", split=s))]
    symbols = {parameter.setting: parameter.symbol for parameter in TABLE_2}
    rows = []
    for setting, name in _TABLE_3.items():
        row: list[Value] = [Word(symbols[setting])]
        for split in splits:
            ours = _values(results.of(SELECTED_METHOD, split)).get(setting, Value())
            row += [ours, _value(getattr(TABLE_3[results.targets[split]], name))]
        rows.append(Row(tuple(row)))
    title = f"Settings of {TITLES[SELECTED_METHOD]} next to Table 3"
    caption = (
        f"Settings of {TITLES[SELECTED_METHOD]} in the runs of {seeds_text(results.seeds)}, next to those that the "
        "paper selected for each split."
    )
    return Table("selected-paper", title, caption, (Column("parameter"), *columns), tuple(rows))


def _values(runs: Sequence[CellResult]) -> dict[str, Value]:
    """Return the values that runs of a method on a split share, by setting."""
    each = [_parameters(run.settings) for run in runs]
    values: dict[str, Value] = {}
    for setting in dict.fromkeys(name for found in each for name in found):
        first = each[0].get(setting)
        same = all(found.get(setting) == first for found in each)
        values[setting] = _value(first) if same else Word("varies", note="not the same for all seeds")
    return values


def _parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the parameters of Table 2 that a run has."""
    flat = dict(flatten(settings))
    try:
        style = config_from(merge(dict(settings), {"out": "run"})).style
    except ValueError:
        # Settings of another version of this package: values under the name of a parameter are shown.
        return {p.setting: flat[p.setting] for p in TABLE_2 if p.setting in flat}
    return {p.setting: flat[p.setting] for p in TABLE_2 if p.setting in flat and p.applies(style)}


def _value(value: Any) -> Value:
    if value is None:
        return Value()
    if isinstance(value, list | tuple):
        return Word(" + ".join(map(str, value)))
    return Number(number=float(value)) if isinstance(value, int | float) else Word(str(value))


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


def dataset_table(results: Results) -> Table | Absent:
    """Return Table 1 for the data of the runs, if they can be read."""
    slug, title = "dataset", "Data sets"
    done = [cell for cell in results.done if cell.data is not None]
    if not done:
        command = results.command()
        return Absent(slug, title, f"No cell is done, so there is no record of the data. Run `{command}` first.")
    # The oracle has read its target alone, whose labels may be fewer.
    cell = max(sorted(done, key=lambda cell: cell.cell), key=lambda cell: len(cell.vocabulary))
    domains = results.domains
    try:
        tables = results.read_domains(cell, domains, require_images=False)
    except (OSError, ValueError) as error:
        return Absent(slug, title, f"The data cannot be read here: {error}")
    sides: dict[str, Statistics] = {}
    for domain in domains:
        archive = tables[domain].archive
        sides[domain] = count(tables[domain])
        sides |= {f"{domain} (paper)": PAPER_TABLE_1[archive]} if archive is not None else {}
    rows = [
        Row((Word("images"), *(Number(number=side.images, digits=0) for side in sides.values()))),
        Row((Word("labels per image"), *(Number(number=s.labels_per_image, digits=2) for s in sides.values()))),
    ]
    for label in cell.vocabulary:
        positives = (Number(number=side.positives.get(label), digits=0) for side in sides.values())
        rows.append(Row((Word(label), *positives)))
    next_to = " Next to our counts, the paper's Table 1." if len(sides) > len(domains) else ""
    unknown = any(value.number is None for row in rows for value in row.values[1:])
    dashes = " Labels that a data set leaves unknown have a dash." if unknown else ""
    caption = f"Images, labels per image, and images that have each label, in all parts together.{next_to}{dashes}"
    return Table(slug, title, caption, tuple(map(Column, ("", *sides))), tuple(rows), (2,))
