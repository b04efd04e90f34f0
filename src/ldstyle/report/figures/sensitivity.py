"""The sensitivity figure: one setting of a method at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ldstyle.benchmark.grid.methods import TITLES
from ldstyle.benchmark.paper import TABLE_3
from ldstyle.benchmark.results.statistics import Entry
from ldstyle.benchmark.results.view import Results
from ldstyle.benchmark.studies import SWEEPS, Sweep, sweep_points, value_text
from ldstyle.report.figures.style import (
    GREY,
    INK,
    PART,
    Look,
    Plate,
    UnavailableError,
    arrange,
    looks,
    new_figure,
    panels,
    target_text,
)

_SELECTED = {"stages": "stages", "top-ratio": "top_ratio", "refresh": "refresh_every"}
"""Column of Table 3 with the paper's selected value of a sweep."""

_LOGARITHMIC = ("temperature", "bank")
_COLUMNS = 3


def sensitivity_panels(results: Results) -> Plate:
    """Draw the mAP over the values of each of the five sweeps; the paper's selected values are marked."""
    swept = results.select(lambda cell: "~" in cell.method and cell.status == "done")
    if not swept.cells:
        command = results.command("sensitivity")
        raise UnavailableError(f"There are no sweeps among these results. Run `{command}`.", optional=True)
    split, target = swept.cells[0].split, swept.cells[0].target
    swept = swept.on(split)
    found = {sweep.name: sweep_points(results, sweep, split=split, part=PART) for sweep in SWEEPS}
    means = {sweep.name: results.main.entry(sweep.base, split=split, part=PART).mean for sweep in SWEEPS}
    marked = "Dotted: the value that Table 3 selects for this target. " if target in TABLE_3 else ""
    caption = (
        f"mAP on {target_text(swept)} ({split}) as one setting varies; seed{'s' * (len(swept.seeds) > 1)} "
        f"{', '.join(map(str, swept.seeds))}, shared by all points and different from those of the main runs. "
        f"{marked}Dashed: mean of the main runs of the same method, where there are any. One run per point and seed: "
        "differences within the spread of seeds mean nothing."
    )
    data = {
        "part": PART,
        "split": split,
        "target": target,
        "sweeps": {
            sweep.name: {
                "method": sweep.base,
                "setting": sweep.setting,
                "points": [_plain(value, entry) for value, entry in found[sweep.name]],
                "selected_in_the_paper": _selected(sweep, target),
                "mean_of_main_runs": means[sweep.name],
            }
            for sweep in SWEEPS
        },
    }
    return Plate(caption, lambda: _draw(found, means, target), data)


def _plain(value: Any, entry: Entry) -> dict[str, Any]:
    shown = list(value) if isinstance(value, tuple) else value
    return {"value": shown, "map": {str(seed): score for seed, score in entry.values.items()}}


def _selected(sweep: Sweep, target: str) -> Any:
    if target not in TABLE_3 or sweep.name not in _SELECTED:
        return None
    value = getattr(TABLE_3[target], _SELECTED[sweep.name])
    return list(value) if isinstance(value, tuple) else value


def _draw(found: dict[str, list[tuple[Any, Entry]]], means: dict[str, float | None], target: str) -> Figure:
    across, down = arrange(len(SWEEPS), _COLUMNS)
    figure = new_figure(0.3 + 2 * down)
    look = looks(list(dict.fromkeys(sweep.base for sweep in SWEEPS)))
    grid = panels(figure, len(SWEEPS), columns=_COLUMNS, sharey=True)
    for number, (sweep, (axes,)) in enumerate(zip(SWEEPS, grid, strict=True)):
        _sweep(axes, sweep, found[sweep.name], look[sweep.base], target)
        mean = means[sweep.name]
        if mean is not None:
            axes.axhline(100 * mean, color=look[sweep.base].colour, linewidth=0.9, linestyle="--", zorder=1)
        axes.set_title(f"({'abcde'[number]}) {sweep.title}")
        axes.set_xlabel(TITLES[sweep.base], size=7)
        axes.tick_params(labelleft=True)
        if number % across == 0:
            axes.set_ylabel("mAP (%)")
        axes.grid(axis="y")
    entries = [Line2D([], [], color=INK, linestyle="--", linewidth=0.9, label="mean of the main runs")]
    if target in TABLE_3:
        entries.append(Line2D([], [], color=GREY, linestyle=":", label="selected in the paper"))
    figure.legend(handles=entries, loc="outside lower center", ncols=2)
    return figure


def _sweep(axes: Axes, sweep: Sweep, points: Sequence[tuple[Any, Entry]], look: Look, target: str) -> None:
    values = [value for value, _ in points]
    chosen = _selected(sweep, target)
    if sweep.setting == "stages":  # sets of stages have no order that a line could follow
        positions: list[float] = list(range(len(values)))
        axes.set_xticks(positions, [value_text(value) for value in values], rotation=45, ha="right", size=6.5)
        chosen = values.index(tuple(chosen)) if chosen is not None and tuple(chosen) in values else None
    else:
        positions = [float(value) for value in values]
        if sweep.name in _LOGARITHMIC:
            axes.set_xscale("log")
        axes.set_xticks(positions, [value_text(value) for value in values])
        axes.minorticks_off()
    if chosen is not None:
        axes.axvline(chosen, color=GREY, linewidth=1.2, linestyle=":", zorder=1)
    measured = [(x, entry) for x, (_, entry) in zip(positions, points, strict=True) if entry.mean is not None]
    for x, entry in measured:
        axes.plot([x] * len(entry.values), [100 * value for value in entry.values.values()], linestyle="none",
                  marker="_", color=look.colour, alpha=0.6)  # fmt: skip
    line = "none" if sweep.setting == "stages" else look.line
    heights = [100 * entry.mean for _, entry in measured if entry.mean is not None]
    axes.plot([x for x, _ in measured], heights, linestyle=line, zorder=3, **look.points())
