"""What accuracy costs: training time relative to ERM against mAP."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ldstyle.report.figures.runs import Runs
from ldstyle.report.figures.style import GREY, Look, drawing, looks, method_legend, new_figure
from ldstyle.report.model import Absent, Picture
from ldstyle.report.order import BASELINE
from ldstyle.report.times import HOW, relative_times

SLUG, TITLE = "cost-accuracy", "Cost against accuracy"


def cost_and_accuracy(runs: Runs) -> Picture | Absent:
    """Draw the mean mAP of each method over its training time, relative to ERM's at the same split and seed."""
    points = {name: _point(runs, name) for name in runs.titles if name != "oracle"}
    known = {name: point for name, point in points.items() if point is not None}
    if not known:
        reason = "No method has finished all splits at a seed, with its time. `ldstyle bench run` runs what is missing."
        return Absent(SLUG, TITLE, reason)
    relative = "erm" in runs.titles
    without = [runs.titles[name] for name in points if name not in known]
    caption = (
        f"Mean mAP over the splits on {runs.part_text} against the time of a training run"
        f"{f', relative to ERM ({HOW})' if relative else ''}: means of {runs.seeds_text()}, bars "
        "from the lowest to the highest. Early stopping is part of the time, the evaluation is not."
        f"{' Not complete: ' + ', '.join(without) + '.' if without else ''}{_machines(runs)}"
    )

    def draw() -> Figure:
        return _draw(known, runs, relative=relative)

    data = {"part": runs.part, "relative_to_erm": relative, "titles": runs.titles, "points": known}
    return Picture(SLUG, TITLE, caption, drawing(draw), data)


def _point(runs: Runs, method: str) -> dict[str, Any] | None:
    """Return mAP and time by seed (time in seconds, or as a multiple of ERM's), both averaged over the splits."""
    entry = runs.main.entry(method, part=runs.part)
    times = relative_times(runs.done, method) if BASELINE in runs.titles else _seconds(runs, method)
    seeds = [seed for seed in entry.values if seed in times]
    if not seeds:
        return None
    return {"map": {str(s): entry.values[s] for s in seeds}, "time": {str(s): times[s] for s in seeds}}


def _seconds(runs: Runs, method: str) -> dict[int, float]:
    """Return the time of a run by seed, averaged over the splits, where all of them have one."""
    seconds = {(c.split, c.seed): c.wall_seconds for c in runs.done if c.method == method and c.wall_seconds}
    found = {seed: [seconds.get((split, seed)) for split in runs.splits] for _, seed in seconds}
    return {seed: float(np.mean([t for t in times if t])) for seed, times in found.items() if all(times)}


def _machines(runs: Runs) -> str:
    """Warn where times come from different machines or numbers of threads."""
    seen = {(m.get("host"), m.get("threads")) for cell in runs.done if (m := cell.record.get("machine"))}
    return f" Runs were made on {len(seen)} kinds of machine, so times are not comparable." if len(seen) > 1 else ""


def _draw(points: dict[str, dict[str, Any]], runs: Runs, *, relative: bool) -> Figure:
    figure = new_figure(3.6, width=4.8)
    axes = figure.add_subplot()
    look = looks(list(runs.titles))
    scale = 1 if relative else 1 / 60
    for name, point in points.items():
        _cross(axes, [scale * value for value in point["time"].values()], list(point["map"].values()), look[name])
    if "erm" in points:
        faint: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (1, 2)), "zorder": 0}
        axes.axhline(100 * float(np.mean(list(points["erm"]["map"].values()))), **faint)
        axes.axvline(scale * float(np.mean(list(points["erm"]["time"].values()))), **faint)
    axes.set_xlabel("training time relative to ERM" if relative else "training time (minutes)")
    axes.set_ylabel("mean mAP over splits (%)")
    axes.grid()
    axes.margins(0.12)
    method_legend(figure, {name: runs.titles[name] for name in points}, look, lines=False)
    return figure


def _cross(axes: Axes, times: list[float], scores: list[float], look: Look) -> None:
    percent = [100 * score for score in scores]
    x, y = float(np.mean(times)), float(np.mean(percent))
    axes.plot([min(times), max(times)], [y, y], color=look.colour, linewidth=0.8)
    axes.plot([x, x], [min(percent), max(percent)], color=look.colour, linewidth=0.8)
    axes.plot(x, y, linestyle="none", markersize=6.5, zorder=3, **look.points())
