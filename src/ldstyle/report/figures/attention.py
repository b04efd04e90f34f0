"""Where learned and cached attention look, against the masks of the labels where there are any."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.benchmark.records import CellResult
from ldstyle.data.figures import pick_samples
from ldstyle.data.tables import SceneTable
from ldstyle.deploy.overlay import Explainer, blend
from ldstyle.functional import resize_maps
from ldstyle.report.figures.images import (
    TrainedCell,
    attention_kind,
    first_trained,
    has_attention,
    has_model,
    held_back,
    load_cell,
    read_images,
    read_regions,
    read_tables,
)
from ldstyle.report.figures.runs import Runs, UnavailableError
from ldstyle.report.figures.style import INK, QUIET, SKY, drawing, shorten
from ldstyle.report.items import Absent, Picture
from ldstyle.training.attention_maps import learned_maps
from ldstyle.training.localization import locate

SLUG, TITLE = "attention", "Attention over images"
_LABELS, _DOMAINS, _POINTS = 6, 2, 2
_CANDIDATES = 60
_AREA = 0.12
"""Share of the image that a region should have to be seen well."""

_PIXELS = 176


@dataclass(frozen=True, eq=False)
class _Shown:
    """One image of a label with the maps of all sources of attention.

    Attributes:
        domain: Its domain.
        label: The label.
        key: Name of the image.
        image: (S, S, 3) uint8.
        region: Where the label is, (S, S); ``None`` without a mask.
        maps: By column, (S, S) with maximum 1; all zero where there is no map.
        iou: By column, against the region; ``None`` without one.
    """

    domain: str
    label: str
    key: str
    image: NDArray[np.uint8]
    region: NDArray[np.bool_] | None
    maps: Mapping[str, NDArray[np.float32]]
    iou: Mapping[str, float | None]


def attention_overlays(runs: Runs) -> Picture | Absent:
    """Draw the attention of each label over a held-back source image of each domain."""
    try:
        runs.require_done()
        cells = _choose(runs)
        shown = _collect(runs, cells)
    except UnavailableError as why:
        return Absent(SLUG, TITLE, str(why))
    masked = any(one.region is not None for one in shown)
    outlines = (
        "outlines are the label's true region, small gaps closed; " if masked else "there are no masks to judge it by; "
    )
    caption = (
        f"Attention of {' and of '.join(f'{c.title} ({c.split}, seed {c.seed})' for c in cells)} for the label of the "
        f"row, over images that were held back from training, brightest where it is highest, which a ring marks; "
        f"{outlines}"
        "learned attention (LLAM) is shown at its insertion points, cached attention (GC) is the selected model's "
        f"class activation map. {_selection(masked)}{_not_kept(runs, cells)}"
    )

    def draw() -> Figure:
        return _draw(shown)

    data = {
        "cells": [cell.cell for cell in cells],
        "images": [_plain(one) for one in shown],
    }
    return Picture(SLUG, TITLE, caption, drawing(draw), data, photographic=True)


def _plain(one: _Shown) -> dict[str, object]:
    return {
        "domain": one.domain,
        "label": one.label,
        "key": one.key,
        "area": None if one.region is None else float(one.region.mean()),
        "iou": dict(one.iou),
        "half_mass_area": {name: _half_mass(found) for name, found in one.maps.items()},
    }


def _half_mass(attn: NDArray[np.float32]) -> float | None:
    """Return the smallest share of the image that holds half of a map's mass: how sharp it is."""
    falling = np.sort(attn.ravel())[::-1].cumsum(dtype=np.float64)
    return float((np.searchsorted(falling, falling[-1] / 2) + 1) / attn.size) if falling[-1] > 0 else None


def _selection(masked: bool) -> str:
    if not masked:
        return "Images were chosen by chance among those with the label."
    return (
        f"Images were chosen by the size of the region alone, nearest to {_AREA:.0%} of the image; IoU: of the region "
        "and the equally many highest places."
    )


def _choose(runs: Runs) -> list[CellResult]:
    """Take one cell with learned attention and one with cached maps, of the same split and seed if possible."""
    learned = first_trained(
        runs,
        lambda cell: cell.method == "ld-efdmix" and has_attention(runs, cell),
        lambda cell: has_attention(runs, cell),
    )

    def beside(cell: CellResult) -> bool:
        return learned is None or (cell.split, cell.seed) == (learned.split, learned.seed)

    cached = first_trained(
        runs,
        lambda cell: cell.method == "ld-efdmix-gc" and beside(cell),
        lambda cell: attention_kind(cell) == "gradcam" and beside(cell),
        lambda cell: attention_kind(cell) == "gradcam",
    )
    found = [cell for cell in (learned, cached) if cell is not None]
    if not found:
        raise UnavailableError(
            "Weights of a label-decoupled method are needed, and no finished cell has them here. Run e.g. `ldstyle "
            f"bench run --methods ld-efdmix ld-efdmix-gc`, and make the report from its folder.{_not_kept(runs, [])}"
        )
    return found


def _not_kept(runs: Runs, cells: Sequence[CellResult]) -> str:
    """Say that learned attention exists but was not kept."""
    if any(attention_kind(cell) == "llam" for cell in cells):
        return ""
    lost = [cell for cell in runs.done if attention_kind(cell) == "llam" and has_model(runs, cell)]
    return f" {lost[0].title} kept no attention.safetensors, so its maps cannot be shown." if lost else ""


def _collect(runs: Runs, cells: Sequence[CellResult]) -> list[_Shown]:
    first = cells[0]
    every = held_back(read_tables(runs, first), seed=first.seed)
    tables = {name: every[name] for name in first.sources[:_DOMAINS]}
    labels = _frequent(list(tables.values()))
    trained = [load_cell(runs, cell) for cell in cells]
    shown: list[_Shown] = []
    for table in tables.values():
        rows = _pick(table, labels)
        chosen = [label for label in labels if label in rows]
        images = read_images(table, [rows[label] for label in chosen], size=_PIXELS)
        regions = read_regions(table, [rows[label] for label in chosen], size=_PIXELS)
        maps: dict[str, Tensor] = {}
        for one in trained:
            maps |= _maps(one, table, [rows[label] for label in chosen], chosen)
        for n, label in enumerate(chosen):
            region = None if regions is None or not regions[n, label].any() else regions[n, label]
            own = {name: found[n] for name, found in maps.items()}
            shown.append(
                _Shown(
                    table.domain,
                    table.vocabulary[label],
                    table.keys[rows[label]],
                    images[n].numpy().transpose(1, 2, 0),
                    region,
                    {name: _enlarged(found) for name, found in own.items()},
                    {name: _iou(found, region) for name, found in own.items()},
                )
            )
    if not shown:
        raise UnavailableError("No held-back image has a label.")
    return shown


def _frequent(tables: Sequence[SceneTable]) -> list[int]:
    shares = np.mean([(table.labels == 1).mean(axis=0) for table in tables], axis=0)
    return sorted(int(label) for label in np.argsort(-shares, kind="stable")[:_LABELS])


def _pick(table: SceneTable, labels: Sequence[int]) -> dict[int, int]:
    """Choose one image per label: by the size of its region where there are masks, by chance elsewhere."""
    by_chance = pick_samples(table, per_cell=_CANDIDATES)
    chosen: dict[int, int] = {}
    for label in labels:
        rows = [row for row in by_chance[label] if row not in chosen.values()] or by_chance[label]
        regions = read_regions(table, rows, size=64)
        if rows and regions is not None:
            area = regions[:, label].mean(axis=(1, 2))
            order = np.argsort(np.abs(np.log(np.maximum(area, 1e-4) / _AREA)), kind="stable")
            rows = [rows[int(place)] for place in order]
        if rows:
            chosen[label] = rows[0]
    return chosen


def _maps(trained: TrainedCell, table: SceneTable, rows: Sequence[int], labels: Sequence[int]) -> dict[str, Tensor]:
    """Return the maps of each image's label by column, (n, h, w)."""
    classifier = trained.classifier
    images = read_images(table, rows, size=classifier.size)
    here = torch.arange(len(rows))
    if trained.attention is None:
        return {f"GC: {trained.cell.title}": Explainer(classifier)(images).maps[here, list(labels)]}
    present = torch.from_numpy(table.labels[list(rows)] == 1)
    found = learned_maps(trained.attention, classifier.normalise(images), present)
    return {f"LLAM, {name}": maps[here, list(labels)] for name, maps in list(found.items())[:_POINTS]}


def _enlarged(attn: Tensor) -> NDArray[np.float32]:
    large = resize_maps(attn[None, None].float(), (_PIXELS, _PIXELS))[0, 0]
    scaled: NDArray[np.float32] = (large / large.amax().clamp(min=1e-12)).numpy()
    return scaled


def _iou(attn: Tensor, region: NDArray[np.bool_] | None) -> float | None:
    if region is None or not bool((attn > 0).any()):
        return None
    return float(locate(attn[None, None], torch.from_numpy(region)[None, None]).iou)


def _draw(shown: Sequence[_Shown]) -> Figure:
    domains = list(dict.fromkeys(one.domain for one in shown))
    labels = list(dict.fromkeys(one.label for one in shown))
    columns = ["image", *shown[0].maps]
    left, top, gap, width = 0.78, 0.5, 0.1, 7.1
    per_row = len(domains) * len(columns)
    side = min(1.3, (width - left - gap * (len(domains) - 1) - 0.02) / per_row)
    width = left + side * per_row + gap * (len(domains) - 1) + 0.02
    height = top + side * len(labels) + 0.02
    figure = Figure(figsize=(width, height))
    for d, domain in enumerate(domains):
        start = left + d * (side * len(columns) + gap)
        middle = (start + side * len(columns) / 2) / width
        figure.text(middle, 1 - 0.12 / height, shorten(domain, 30), ha="center", va="center", weight="bold", size=9)
        for c, column in enumerate(columns):
            x = (start + (c + 0.5) * side) / width
            figure.text(x, 1 - 0.35 / height, _header(column, side), ha="center", va="center", size=6.5, color=QUIET)
    for one in shown:
        d, row = domains.index(one.domain), labels.index(one.label)
        for c, column in enumerate(columns):
            x = left + d * (side * len(columns) + gap) + c * side
            y = height - top - (row + 1) * side
            axes = figure.add_axes((x / width, y / height, side * 0.97 / width, side * 0.97 / height))
            _panel(axes, one, None if column == "image" else column)
    for row, label in enumerate(labels):
        y = (height - top - (row + 0.5) * side) / height
        figure.text((left - 0.06) / width, y, shorten(label, 13), ha="right", va="center", size=8.5, color=INK)
    return figure


def _header(column: str, side: float) -> str:
    """Break a column's name into its source and what of it is shown."""
    return "\n".join(shorten(line, max(8, int(side * 17))) for line in re.split("[,:] ", column, maxsplit=1))


def _panel(axes: Axes, one: _Shown, column: str | None) -> None:
    image = one.image if column is None else blend(one.image, one.maps[column])
    axes.imshow(image, interpolation="nearest")
    outline = None if one.region is None else _smoothed(one.region)
    if outline is not None and outline.min() < 0.5 < outline.max():
        axes.contour(outline, levels=[0.5], colors=["black"], linewidths=1.2)
        axes.contour(outline, levels=[0.5], colors=["white" if column is None else SKY], linewidths=0.7)
    if column is not None and one.maps[column].any():
        y, x = np.unravel_index(int(one.maps[column].argmax()), one.maps[column].shape)
        for width, colour in ((1.8, "black"), (0.9, "white")):
            axes.plot(x, y, "o", markersize=5, markerfacecolor="none", markeredgecolor=colour, markeredgewidth=width)
        axes.set(xlim=(-0.5, _PIXELS - 0.5), ylim=(_PIXELS - 0.5, -0.5))
    axes.set_axis_off()
    text = _corner(one, column)
    if text:
        axes.text(0.04, 0.04, text, transform=axes.transAxes, size=6, color="white", va="bottom",
                  path_effects=[withStroke(linewidth=1.6, foreground="black")])  # fmt: skip


def _smoothed(region: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Close small gaps of a region and soften its edge: outlines of every gap would hide the image."""
    grown = F.max_pool2d(torch.from_numpy(region)[None, None].float(), 7, stride=1, padding=3)
    closed = -F.max_pool2d(-grown, 7, stride=1, padding=3)
    smooth: NDArray[np.float32] = F.avg_pool2d(closed, 3, stride=1, padding=1, count_include_pad=False)[0, 0].numpy()
    return smooth


def _corner(one: _Shown, column: str | None) -> str:
    if column is None:
        return "" if one.region is None else f"region {one.region.mean():.0%}".replace("%", " %")
    if not one.maps[column].any():
        return "no map"
    iou = one.iou[column]
    return "" if iou is None else f"IoU {100 * iou:.0f} %"
