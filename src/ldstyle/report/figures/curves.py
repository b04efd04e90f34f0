"""By epoch: loss and source-validation mAP, strength of the augmentation, and localization of the attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ldstyle.benchmark.results.cell import EpochLog
from ldstyle.benchmark.results.view import Results
from ldstyle.report.figures.style import (
    GREY,
    Look,
    Plate,
    UnavailableError,
    arrange,
    looks,
    method_legend,
    new_figure,
    panels,
    seeds_per_method,
    shorten,
    split_title,
)

_STRENGTH = {"strength": "relative feature change (%)", "locations": "effective locations (% of the map)"}
_COLUMNS = 3
_CHANCE: dict[str, Any] = {"color": GREY, "linewidth": 1.2, "linestyle": (0, (1, 2))}
_Series = dict[str, dict[str, dict[str, Any]]]  # split -> name of a line -> seed -> its columns


def training_curves(results: Results) -> Plate:
    """Draw training loss and source-validation mAP by epoch: a thin line per seed, a strong one for their mean."""
    grid = results.main
    series: _Series = {}
    for cell in grid.done:
        rows = grid.history(cell)
        if rows:
            curve: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in ("epoch", "loss", "map")}
            curve["selected"] = cell.selected_epoch
            series.setdefault(cell.split, {}).setdefault(cell.method, {})[str(cell.seed)] = curve
    if not grid.done:
        raise UnavailableError(f"No cell is done. Run `{results.command()}` first.")
    if not series:
        where = f"'{results.folder}' contains no CELL/metrics.jsonl of its finished cells."
        raise UnavailableError(f"{where} Copy them from the folder in which the grid was run.")
    caption = (
        f"Training loss and mean mAP on the sources' validation parts by epoch. Thin: one seed each "
        f"({seeds_per_method(grid)}), with a point at the epoch whose model was selected; strong: their mean, up to "
        "the last epoch of the shortest run."
    )
    titles = {name: title for name, title in grid.titles.items() if any(name in split for split in series.values())}
    quantities = {"loss": "training loss", "map": "validation mAP (%)"}
    return _plate(grid, caption, series, titles, looks(list(titles)), quantities)


def localization_curves(results: Results) -> Plate:
    """Draw the agreement of the attention in use with the masks by epoch, next to a uniform map."""
    names = ("pointing", "iou", "pointing_chance", "iou_chance")

    def read(row: EpochLog) -> dict[str, dict[str, float | None]]:
        return {point: {name: getattr(scores, name) for name in names} for point, scores in row.localization.items()}

    series, titles = _by_point(results.main, read)
    if not series:
        preset = results.preset if results.cells else "small"
        command = f"ldstyle bench run --data synthetic --methods ld --preset {preset} --results synthetic-results"
        raise UnavailableError(
            "No run has compared its attention with masks: that takes label-decoupled methods, data with masks, such "
            f"as synthetic scenes (`{command}`), and their metrics.jsonl."
        )
    caption = (
        "Attention in use against the masks of the labels, by epoch, averaged over labels: how often its maximum is "
        "in the label's region, and the intersection over union of the region and the equally many highest locations. "
        "Learned attention is judged at each of its insertion points on the sources' validation parts, cached maps on "
        f"training images. Thin: one seed each ({seeds_per_method(results.main)}); strong: their mean. Grey: a uniform "
        "map."
    )
    quantities = {"pointing": "pointing accuracy (%)", "iou": "IoU (%)"}
    return _plate(results.main, caption, series, titles, _point_looks(titles), quantities)


def strength_curves(results: Results) -> Plate:
    """Draw how much each insertion point changes features, and over how many locations its attention spreads."""

    def read(row: EpochLog) -> dict[str, dict[str, float | None]]:
        points = dict.fromkeys((*row.strength, *row.locations))
        return {p: {"strength": row.strength.get(p), "locations": row.locations.get(p)} for p in points}

    series, titles = _by_point(results.main, read)
    if not series:
        raise UnavailableError(
            "No run has logged the strength of its augmentation: that takes a style method and its metrics.jsonl."
        )
    curves = [curve for lines in series.values() for seeds in lines.values() for curve in seeds.values()]
    quantities = {name: text for name, text in _STRENGTH.items() if any(_known(curve[name]) for curve in curves)}
    caption = (
        "Mean relative change of the features at each insertion point by epoch, and the median number of effective "
        "locations, 1/Σa², of the attention there as a fraction of the map: 100 % is a uniform map. Global methods "
        f"have no attention. Thin: one seed each ({seeds_per_method(results.main)}); strong: their mean."
    )
    return _plate(results.main, caption, series, titles, _point_looks(titles), quantities)


def _plate(
    grid: Results,
    caption: str,
    series: _Series,
    titles: dict[str, str],
    look: dict[str, Look],
    quantities: Mapping[str, str],
) -> Plate:
    splits = grid.done_splits
    data = {"splits": splits, "titles": titles, "curves": series}
    return Plate(caption, lambda: _draw(series, splits, titles, look, quantities), data)


def _by_point(
    grid: Results, read: Callable[[EpochLog], Mapping[str, Mapping[str, float | None]]]
) -> tuple[_Series, dict[str, str]]:
    """Return the curves of each insertion point that has any value, and the titles of their lines by method."""
    series: _Series = {}
    titles: dict[str, str] = {}
    for cell in sorted(grid.done, key=lambda cell: grid.methods.index(cell.method)):
        curves: dict[str, dict[str, list[Any]]] = {}
        for row in grid.history(cell):
            for point, values in read(row).items():
                curve = curves.setdefault(point, {"epoch": [], **{name: [] for name in values}})
                for name, value in {"epoch": row.epoch, **values}.items():
                    curve[name].append(value)
        for point, curve in curves.items():
            if not any(_known(values) for name, values in curve.items() if name != "epoch"):
                continue
            name, title = f"{cell.method}/{point}", grid.titles[cell.method]
            titles[name] = title if point == "cached" else f"{title}, {shorten(point, 14)}"
            series.setdefault(cell.split, {}).setdefault(name, {})[str(cell.seed)] = curve
    return series, titles


def _known(values: Iterable[float | None]) -> bool:
    return any(value is not None for value in values)


def _point_looks(titles: Mapping[str, str]) -> dict[str, Look]:
    """Give the deeper insertion points of a method another line and a hollow marker."""
    by_method = looks(list(dict.fromkeys(name.split("/")[0] for name in titles)))
    found: dict[str, Look] = {}
    seen: dict[str, int] = {}
    for name in titles:
        method = name.split("/")[0]
        depth = seen[method] = seen.get(method, -1) + 1
        look = by_method[method]
        found[name] = look if depth == 0 else Look(look.colour, look.marker, (":", "-.")[depth % 2], "none")
    return found


def _draw(
    series: _Series,
    splits: Mapping[str, str],
    titles: dict[str, str],
    look: dict[str, Look],
    quantities: Mapping[str, str],
) -> Figure:
    """Draw a panel per split with one axes per quantity, all quantities on shared scales."""
    shown = [split for split in splits if split in series]
    across, down = arrange(len(shown), _COLUMNS)
    width = 7.1 if across > 1 else 4.2
    figure = new_figure(0.6 + down * 1.75 * len(quantities), width=width)
    for split, axes in zip(
        shown, panels(figure, len(shown), columns=_COLUMNS, rows_each=len(quantities), sharex=True), strict=True
    ):
        axes[0].set_title(split_title(split, shorten(splits[split], 18)))
        for one, (quantity, text) in zip(axes, quantities.items(), strict=True):
            for name, seeds in series[split].items():
                _lines(one, seeds, quantity, look[name])
            _chance(one, series[split], quantity)
            one.grid(axis="y")
            one.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
            if shown.index(split) % across == 0:
                one.set_ylabel(text)
        axes[-1].set_xlabel("epoch")
        axes[-1].tick_params(labelbottom=True)
    _share_scales(figure, len(quantities))
    others = {"chance": _CHANCE} if "iou" in quantities else {}
    method_legend(figure, titles, look, others=others)
    return figure


def _lines(axes: Axes, seeds: Mapping[str, Mapping[str, Any]], quantity: str, look: Look) -> None:
    if not any(_known(curve[quantity]) for curve in seeds.values()):
        return
    curves = {seed: _percent(curve[quantity], quantity) for seed, curve in seeds.items()}
    single = len(curves) == 1
    for seed, values in curves.items():
        epochs = seeds[seed]["epoch"]
        axes.plot(epochs, values, linestyle=look.line, color=look.colour, linewidth=0.6, alpha=0.45)
        chosen = seeds[seed].get("selected")
        if chosen is not None and chosen in epochs:
            axes.plot(chosen, values[epochs.index(chosen)], linestyle="none", markersize=3.5, **look.points())
    epochs, mean = _mean(seeds, curves)
    axes.plot(epochs, mean, linestyle=look.line, color=look.colour, linewidth=1.2 if single else 1.6)
    if "selected" not in next(iter(seeds.values())) and len(epochs):
        axes.plot(epochs[-1], mean[-1], linestyle="none", **look.points())


def _mean(
    seeds: Mapping[str, Mapping[str, Any]], curves: Mapping[str, Sequence[float]]
) -> tuple[list[int], list[float]]:
    """Average over seeds at the epochs that all of them have: later ones would be a mean of fewer, better runs."""
    shared = set.intersection(*(set(curve["epoch"]) for curve in seeds.values()))
    epochs = sorted(shared)
    values = [[curves[seed][seeds[seed]["epoch"].index(epoch)] for seed in seeds] for epoch in epochs]
    return epochs, [float(np.mean(of_epoch)) for of_epoch in values]


def _percent(values: Iterable[float | None], quantity: str) -> list[float]:
    scale = 1 if quantity == "loss" else 100
    return [float("nan") if value is None else scale * value for value in values]


def _chance(axes: Axes, lines: Mapping[str, Mapping[str, Mapping[str, Any]]], quantity: str) -> None:
    """Draw the mean level of chance, which depends on the images alone."""
    name = f"{quantity}_chance"
    levels = [value for seeds in lines.values() for curve in seeds.values() for value in curve.get(name, ()) if value]
    if levels:
        axes.axhline(100 * float(np.mean(levels)), zorder=1, **_CHANCE)


def _share_scales(figure: Figure, rows_each: int) -> None:
    """Give every quantity one scale over all splits, so that panels can be compared."""
    used = [axes for axes in figure.axes if axes.lines]
    for row in range(rows_each):
        same = [axes for axes in used if axes.get_subplotspec().rowspan.start % rows_each == row]  # type: ignore[union-attr]
        limits = np.array([axes.get_ylim() for axes in same])
        for axes in same:
            axes.set_ylim(limits[:, 0].min(), limits[:, 1].max())
