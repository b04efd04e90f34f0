"""Paired differences with intervals: methods against ERM, their global twins, and additions such as SWAD alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ldstyle.benchmark.grid.methods import BASELINE, ORACLE, global_twin, without_style
from ldstyle.benchmark.results.statistics import LEAST_VALUES, Difference, smallest_p
from ldstyle.benchmark.results.view import Results, correct
from ldstyle.report.figures.style import (
    FAINT,
    INK,
    PART,
    QUIET,
    Look,
    Plate,
    UnavailableError,
    arrange,
    looks,
    new_figure,
    panels,
    seeds_per_method,
    shorten,
    small_screen,
    split_title,
    target_text,
)
from ldstyle.report.model import DASH, signed

AVERAGE = "average"
_COLUMNS = 4
_Groups = Mapping[str, Sequence[Difference]]
_COUNTERPARTS = {"global twin": global_twin, "without style": without_style}
"""What a method is compared with in each group below ERM's."""


def paired_differences(results: Results) -> Plate:
    """Draw the paired differences in mAP on each split and on average, with 95 % intervals."""
    grid = results.main
    splits = grid.done_splits
    panels_ = ([AVERAGE] if len(splits) > 1 else []) + list(splits)
    found = {panel: _groups(grid, None if panel == AVERAGE else panel) for panel in panels_}
    kept = {panel: groups for panel, groups in found.items() if any(one.values for g in groups.values() for one in g)}
    if not kept:
        command = results.command("run", ["erm", "efdmix", "ld-efdmix-gc"])
        raise UnavailableError(
            "There is nothing to compare: that takes ERM and another method, or a label-decoupled method and its "
            f"global twin, at the same seeds. Run e.g. `{command}`."
        )
    caption = (
        f"Difference in mAP on {target_text(grid)}, in points, paired by seed ({seeds_per_method(grid)}): each method "
        "minus ERM, each label-decoupled method minus its global twin, each method with a style and another addition "
        "such as SWAD minus that addition alone, divided by rules. Bars: 95 % bootstrap "
        f"intervals over seeds, too narrow where seeds are few and left out below {LEAST_VALUES}; small strokes: "
        f"single seeds; at the right the means. {_power(kept)}The average is over all splits."
    )
    data = {
        "part": PART,
        "splits": splits,
        "titles": grid.done_titles,
        "differences": {
            panel: {name: [_plain(one) for one in group] for name, group in groups.items()}
            for panel, groups in kept.items()
        },
    }
    return Plate(caption, lambda: _draw(kept, grid), data)


def _power(found: Mapping[str, _Groups]) -> str:
    """Return the smallest p-value that the largest number of pairs allows."""
    pairs = max(len(one.values) for groups in found.values() for group in groups.values() for one in group)
    return f"The exact test's smallest p-value is {smallest_p(pairs):.2g}, before correction. "


def _groups(grid: Results, split: str | None) -> dict[str, list[Difference]]:
    """Return the comparisons of a panel; p-values are corrected within each group."""
    groups: dict[str, list[Difference]] = {}
    methods = [name for name in grid.done_titles if name != ORACLE]
    if BASELINE in methods:
        groups["ERM"] = grid.compare(BASELINE, methods=methods, split=split, part=PART)
    for group, other in _COUNTERPARTS.items():
        pairs = {name: base for name in methods if (base := other(name)) in grid.done_titles and base}
        groups[group] = correct(grid.difference(name, base, split=split, part=PART) for name, base in pairs.items())
    return {name: group for name, group in groups.items() if group}


def _plain(one: Difference) -> dict[str, Any]:
    return {
        "method": one.method,
        "baseline": one.baseline,
        "mean": one.mean,
        "low": one.low,
        "high": one.high,
        "by_seed": {str(seed): value for seed, value in one.values.items()},
        "absent": {str(seed): why for seed, why in one.absent.items()},
        "p": one.p,
        "p_holm": one.p_holm,
    }


def _draw(found: Mapping[str, _Groups], grid: Results) -> Figure:
    rows = _rows(found)
    across, down = arrange(len(found), _COLUMNS)
    figure = new_figure(0.3 + down * (0.75 + 0.19 * max(3, len(rows))), width=7.1 if across > 1 else 5.2)
    look, limits = looks(list(grid.done_titles)), _limits(found)
    every = panels(figure, len(found), columns=_COLUMNS, sharex=True)
    for number, (panel, (axes,)) in enumerate(zip(found, every, strict=True)):
        title = "average over splits" if panel == AVERAGE else split_title(panel, shorten(grid.done_splits[panel], 12))
        axes.set_title(title, size=8 if across < _COLUMNS else 7)
        by_pair = {(name, one.method): one for name, group in found[panel].items() for one in group}
        for y, row in enumerate(rows):
            if row in by_pair:
                _interval(axes, y, by_pair[row], look[row[1]])
        room = 30 if len(found) == 1 and not small_screen() else 22
        _names(axes, rows, grid, room=room if number % across == 0 else 0)
        _numbers(axes, rows, by_pair)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.grid(axis="x")
        axes.set_xlim(*limits)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("difference in mAP (points)" if across < _COLUMNS else "difference (points)")
    return figure


def _rows(found: Mapping[str, _Groups]) -> list[tuple[str, str]]:
    """Return group and method of every row; a row without a method divides the groups."""
    groups: dict[str, dict[str, None]] = {}
    for of_panel in found.values():
        for name, group in of_panel.items():
            groups.setdefault(name, {}).update({one.method: None for one in group})
    rows: list[tuple[str, str]] = []
    for name, methods in groups.items():
        rows += [(name, "")] * bool(rows) + [(name, method) for method in methods]
    return rows


def _interval(axes: Axes, y: int, one: Difference, look: Look) -> None:
    if one.mean is None:
        return
    values = [100 * value for value in one.values.values()]
    axes.plot(values, [y] * len(values), linestyle="none", marker="|", markersize=5, color=look.colour, alpha=0.55)
    if one.low is not None and one.high is not None:
        axes.plot([100 * one.low, 100 * one.high], [y, y], color=look.colour, linewidth=1.8, solid_capstyle="butt")
    axes.plot(100 * one.mean, y, linestyle="none", markersize=5.2, zorder=4, **look.points())


def _names(axes: Axes, rows: Sequence[tuple[str, str]], grid: Results, *, room: int) -> None:
    """Name the rows, with at most ``room`` characters per method; 0 leaves them without names."""
    axes.set_yticks(range(len(rows)), [_row_name(*row, grid, room=room) if room else "" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    for y, (_, method) in enumerate(rows):
        if not method:
            axes.axhline(y, color=QUIET, linewidth=0.7)
        elif y % 2:
            axes.axhspan(y - 0.5, y + 0.5, color=FAINT, alpha=0.35, linewidth=0, zorder=0)


def _row_name(group: str, method: str, grid: Results, *, room: int) -> str:
    if not method:
        return ""
    baseline = "ERM" if group == "ERM" else grid.titles[str(_COUNTERPARTS[group](method))]
    return f"{shorten(grid.titles[method], room)} − {shorten(baseline, room)}"


def _limits(found: Mapping[str, _Groups]) -> tuple[float, float]:
    """Return one range for all panels, zero in it, with room for the numbers on the right."""
    every = [one for groups in found.values() for group in groups.values() for one in group]
    values = [100 * value for one in every for value in (*one.values.values(), one.low, one.high) if value is not None]
    low, high = min(0.0, *values), max(0.0, *values)
    width = max(high - low, 0.5)
    return low - 0.06 * width, high + 0.45 * width


def _numbers(axes: Axes, rows: Sequence[tuple[str, str]], by_pair: Mapping[tuple[str, str], Difference]) -> None:
    """Write the differences inside a panel at its right edge."""
    for y, row in enumerate(rows):
        one = by_pair.get(row)
        if one is None:
            continue
        text = DASH if one.mean is None else signed(100 * one.mean)
        axes.text(0.98, y, text, transform=axes.get_yaxis_transform(), ha="right", va="center", size=6.5, color=INK)
