"""Cost against accuracy: training time relative to ERM, and mAP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ldstyle.benchmark.grid.methods import BASELINE, ORACLE
from ldstyle.benchmark.results.view import Results
from ldstyle.report.figures.style import (
    GREY,
    PART,
    Look,
    Plate,
    UnavailableError,
    looks,
    method_legend,
    new_figure,
    seeds_per_method,
    target_text,
)
from ldstyle.report.tables.cost import HOW, relative_times


def cost_and_accuracy(results: Results) -> Plate:
    """Draw the mean mAP of each method over its training time, relative to ERM's at the same split and seed."""
    grid = results.main
    titles = {name: title for name, title in grid.done_titles.items() if name != ORACLE}
    points = {name: _point(grid, name) for name in titles}
    known = {name: point for name, point in points.items() if point is not None}
    if not known:
        reason = "No method has finished all splits at a seed, with its time."
        raise UnavailableError(f"{reason} `{results.command()}` runs what is missing.")
    relative = BASELINE in titles
    without = [titles[name] for name in points if name not in known]
    caption = (
        f"Mean mAP over the splits on {target_text(grid)} against the time of a training run"
        f"{f', relative to ERM ({HOW})' if relative else ''}: means of {seeds_per_method(grid)}, bars "
        "from the lowest to the highest. Early stopping is part of the time, the evaluation is not."
        f"{' Not complete: ' + ', '.join(without) + '.' if without else ''}{_machines(grid)}"
    )
    data = {"part": PART, "relative_to_erm": relative, "titles": grid.done_titles, "points": known}
    return Plate(caption, lambda: _draw(known, grid.done_titles, relative=relative), data)


def _point(grid: Results, method: str) -> dict[str, Any] | None:
    """Return mAP and time by seed (time in seconds, or as a multiple of ERM's), both averaged over the splits."""
    entry = grid.entry(method, part=PART)
    times = relative_times(grid, method) if BASELINE in grid.done_titles else _seconds(grid, method)
    seeds = [seed for seed in entry.values if seed in times]
    if not seeds:
        return None
    return {"map": {str(s): entry.values[s] for s in seeds}, "time": {str(s): times[s] for s in seeds}}


def _seconds(grid: Results, method: str) -> dict[int, float]:
    """Return the time of a run by seed, averaged over the splits, where all of them have one."""
    seconds = {(c.split, c.seed): c.wall_seconds for c in grid.done if c.method == method and c.wall_seconds}
    found = {seed: [seconds.get((split, seed)) for split in grid.done_splits] for _, seed in seconds}
    return {seed: float(np.mean([t for t in times if t])) for seed, times in found.items() if all(times)}


def _machines(grid: Results) -> str:
    """Warn where times come from different machines or numbers of threads."""
    seen = {machine for cell in grid.done if (machine := cell.machine).host is not None}
    return f" Runs were made on {len(seen)} kinds of machine, so times are not comparable." if len(seen) > 1 else ""


def _draw(points: dict[str, dict[str, Any]], titles: Mapping[str, str], *, relative: bool) -> Figure:
    figure = new_figure(3.6, width=4.8)
    axes = figure.add_subplot()
    look = looks(list(titles))
    scale = 1 if relative else 1 / 60
    for name, point in points.items():
        _cross(axes, [scale * value for value in point["time"].values()], list(point["map"].values()), look[name])
    if BASELINE in points:
        faint: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (1, 2)), "zorder": 0}
        axes.axhline(100 * float(np.mean(list(points[BASELINE]["map"].values()))), **faint)
        axes.axvline(scale * float(np.mean(list(points[BASELINE]["time"].values()))), **faint)
    axes.set_xlabel("training time relative to ERM" if relative else "training time (minutes)")
    axes.set_ylabel("mean mAP over splits (%)")
    axes.grid()
    axes.margins(0.12)
    method_legend(figure, {name: titles[name] for name in points}, look, lines=False)
    return figure


def _cross(axes: Axes, times: list[float], scores: list[float], look: Look) -> None:
    percent = [100 * score for score in scores]
    x, y = float(np.mean(times)), float(np.mean(percent))
    axes.plot([min(times), max(times)], [y, y], color=look.colour, linewidth=0.8)
    axes.plot([x, x], [min(percent), max(percent)], color=look.colour, linewidth=0.8)
    axes.plot(x, y, linestyle="none", markersize=6.5, zorder=3, **look.points())
