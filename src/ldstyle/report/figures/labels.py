"""Average precision of each label on the target, by method and split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ldstyle.benchmark.grid.methods import ORACLE
from ldstyle.benchmark.results.statistics import Entry
from ldstyle.benchmark.results.view import Results
from ldstyle.report.figures.style import (
    FAINT,
    INK,
    PART,
    Look,
    Plate,
    UnavailableError,
    arrange,
    looks,
    method_legend,
    new_figure,
    panels,
    require_done,
    seeds_per_method,
    shorten,
    split_title,
    target_text,
)

MEAN = "mean (mAP)"
_COLUMNS = 3
_ROWS = 30
"""Most rows of labels in a figure; of more, those are shown on which the methods differ most."""


def label_precision(results: Results) -> Plate:
    """Draw the average precision of each label: a point per method, a line over its seeds."""
    require_done(results)
    grid = results.main
    splits = grid.done_splits
    # The oracle was trained on most of the whole target.
    titles = {name: title for name, title in grid.done_titles.items() if name != ORACLE}
    table = {split: _table(grid, split, list(titles)) for split in splits}
    labels = list(grid.labels(part=PART))
    if not labels:
        raise UnavailableError(f"No finished cell has scores on {target_text(grid)}: the oracle has none.")
    shown = _most_telling(table, labels, most=max(6, _ROWS // -(-len(splits) // _COLUMNS)))
    left_out = f" Of {len(labels)} labels the {len(shown)} on which methods differ most." if shown != labels else ""
    caption = (
        f"Average precision of each label on {target_text(grid)} (%): mean of {seeds_per_method(grid)}, and a line "
        f"from the lowest to the highest.{left_out}"
    )
    values = {
        split: {
            method: {label: {str(seed): ap for seed, ap in entry.values.items()} for label, entry in row.items()}
            for method, row in rows.items()
        }
        for split, rows in table.items()
    }
    data = {"part": PART, "splits": splits, "titles": titles, "shown": shown, "values": values}
    return Plate(caption, lambda: _draw(table, [*shown, MEAN], titles, splits), data)


def _table(grid: Results, split: str, methods: Sequence[str]) -> dict[str, dict[str, Entry]]:
    """Return the average precision by method and label, and the mean over labels last."""
    by_label = grid.label_table(split=split, part=PART)
    return {method: {**by_label[method], MEAN: grid.entry(method, split=split, part=PART)} for method in methods}


def _most_telling(table: Mapping[str, Mapping[str, Mapping[str, Entry]]], labels: list[str], *, most: int) -> list[str]:
    """Return the labels over which the methods' means are spread widest, in their own order."""

    def spread(label: str) -> float:
        widths = []
        for rows in table.values():
            means = [row[label].mean for row in rows.values()]
            known = [mean for mean in means if mean is not None]
            widths.append(max(known) - min(known) if known else 0.0)
        return sum(widths)

    kept = set(sorted(labels, key=spread, reverse=True)[:most])
    return [label for label in labels if label in kept]


def _draw(
    table: Mapping[str, Mapping[str, Mapping[str, Entry]]],
    rows: Sequence[str],
    titles: Mapping[str, str],
    splits: Mapping[str, str],
) -> Figure:
    methods, look = list(titles), looks(list(titles))
    across, down = arrange(len(table), _COLUMNS)
    # Methods stand below each other within a label's row where there is room for it.
    apart = 0.085 if len(rows) * len(methods) * down <= 130 else 0.0
    row_height = max(0.24, apart * (len(methods) + 1.2))
    height = 0.75 + down * (0.45 + row_height * len(rows))
    figure = new_figure(height, width=7.1 if len(table) > 1 else 5.0)
    limits = _limits(table, rows)
    for number, (split, axes) in enumerate(zip(table, panels(figure, len(table), columns=_COLUMNS), strict=True)):
        one = axes[0]
        one.set_title(split_title(split, shorten(splits[split], 18)))
        for m, method in enumerate(methods):
            offset = (m - (len(methods) - 1) / 2) * apart / row_height
            _points(one, [table[split][method][row] for row in rows], look[method], offset)
        _rows(one, rows, named=number % across == 0)
        one.set(xlim=limits, xlabel="average precision (%)")
    method_legend(figure, titles, look, lines=False)
    return figure


def _points(axes: Axes, entries: Sequence[Entry], look: Look, offset: float) -> None:
    known = [(y + offset, entry) for y, entry in enumerate(entries) if entry.mean is not None]
    heights = [y for y, _ in known]
    ranges = [(100 * min(entry.values.values()), 100 * max(entry.values.values())) for _, entry in known]
    lows, highs = ([pair[side] for pair in ranges] for side in (0, 1))
    axes.hlines(heights, lows, highs, colors=look.colour, linewidth=0.8, zorder=2)
    means = [100 * entry.mean for _, entry in known if entry.mean is not None]
    axes.plot(means, heights, linestyle="none", markersize=4.2, zorder=3, **look.points())


def _rows(axes: Axes, rows: Sequence[str], *, named: bool) -> None:
    axes.set_yticks(range(len(rows)), [shorten(row) for row in rows] if named else [])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    for y in range(len(rows)):
        if y % 2:
            axes.axhspan(y - 0.5, y + 0.5, color=FAINT, alpha=0.35, linewidth=0, zorder=0)
    axes.axhline(len(rows) - 1.5, color=INK, linewidth=0.7)
    axes.grid(axis="x")


def _limits(table: Mapping[str, Mapping[str, Mapping[str, Any]]], rows: Sequence[str]) -> tuple[float, float]:
    """Return one range for all panels, to full tens."""
    values = [
        100 * value
        for of_split in table.values()
        for row in of_split.values()
        for name in rows
        for value in row[name].values.values()
    ]
    if not values:
        return 0.0, 100.0
    return max(0.0, 10 * math.floor(min(values) / 10 - 0.1)), min(102.0, 10 * math.ceil(max(values) / 10 + 0.1))
