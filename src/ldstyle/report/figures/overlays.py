"""Maps of several attention sources over images with outlines of the labels' regions, and contact sheets of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.data.domains.samples import save_figure
from ldstyle.data.domains.scene_table import SceneTable, file_stem
from ldstyle.data.loading.bands import read_picture
from ldstyle.data.loading.decode import decode_mask
from ldstyle.deploy.explain import blend
from ldstyle.evaluation.attention.judge import Judgement
from ldstyle.evaluation.attention.sources import AttentionSource, Part
from ldstyle.evaluation.localization import locate
from ldstyle.functional import resize_maps
from ldstyle.report.figures.style import INK, QUIET, SKY, shorten

PIXELS = 176
"""Side of a panel."""

AREA = 0.12
"""Fraction of the image that a region should have to be seen well."""

PER_LABEL = 2
"""Images of each label on a contact sheet."""

_TITLES = {"llam": "LLAM", "cam": "CAM"}
_DPI = 200
_BATCH = 32


@dataclass(frozen=True, eq=False)
class Shown:
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


def show(
    table: SceneTable,
    row: int,
    label: int,
    image: NDArray[np.uint8],
    region: NDArray[np.bool_] | None,
    maps: Mapping[str, Tensor],
) -> Shown:
    """Put an image of a label together with the maps of all sources, (h, w) each.

    Args:
        table: The domain.
        row: Number of the image in it.
        label: Number of the label.
        image: (3, S, S).
        region: Where the label is, (S, S); ``None`` or empty without a mask.
        maps: The maps of the label by column.
    """
    region = None if region is None or not region.any() else region
    return Shown(
        table.domain,
        table.vocabulary[label],
        table.keys[row],
        image.transpose(1, 2, 0),
        region,
        {name: _enlarged(found) for name, found in maps.items()},
        {name: _iou(found, region) for name, found in maps.items()},
    )


def _enlarged(attn: Tensor) -> NDArray[np.float32]:
    large = resize_maps(attn[None, None].float(), (PIXELS, PIXELS))[0, 0]
    scaled: NDArray[np.float32] = (large / large.amax().clamp(min=1e-12)).numpy()
    return scaled


def _iou(attn: Tensor, region: NDArray[np.bool_] | None) -> float | None:
    if region is None or not bool((attn > 0).any()):
        return None
    return float(locate(attn[None, None], torch.from_numpy(region)[None, None]).iou)


def draw_overlays(shown: Sequence[Shown], *, dpi: int | None = None) -> Figure:
    """Draw a row per label and image of it, a block of columns per domain."""
    domains = list(dict.fromkeys(one.domain for one in shown))
    numbers = _numbers(shown)
    labels = list(dict.fromkeys(one.label for one in shown))
    rows = sorted({*numbers}, key=lambda key: (labels.index(key[0]), key[1]))
    columns = ["image", *shown[0].maps]
    left, top, gap, width = 0.78, 0.5, 0.1, 7.1
    per_row = len(domains) * len(columns)
    side = min(1.3, (width - left - gap * (len(domains) - 1) - 0.02) / per_row)
    width = left + side * per_row + gap * (len(domains) - 1) + 0.02
    height = top + side * len(rows) + 0.02
    figure = Figure(figsize=(width, height), dpi=dpi)
    for d, domain in enumerate(domains):
        start = left + d * (side * len(columns) + gap)
        middle = (start + side * len(columns) / 2) / width
        figure.text(middle, 1 - 0.12 / height, shorten(domain, 30), ha="center", va="center", weight="bold", size=9)
        for c, column in enumerate(columns):
            x = (start + (c + 0.5) * side) / width
            figure.text(x, 1 - 0.35 / height, _header(column, side), ha="center", va="center", size=6.5, color=QUIET)
    for one, number in zip(shown, numbers, strict=True):
        d, row = domains.index(one.domain), rows.index(number)
        for c, column in enumerate(columns):
            x = left + d * (side * len(columns) + gap) + c * side
            y = height - top - (row + 1) * side
            axes = figure.add_axes((x / width, y / height, side * 0.97 / width, side * 0.97 / height))
            _panel(axes, one, None if column == "image" else column)
    for row, (label, _) in enumerate(rows):
        y = (height - top - (row + 0.5) * side) / height
        figure.text((left - 0.06) / width, y, shorten(label, 13), ha="right", va="center", size=8.5, color=INK)
    return figure


def _numbers(shown: Sequence[Shown]) -> list[tuple[str, int]]:
    """Count the images of each label within its domain."""
    counted: Counter[tuple[str, str]] = Counter()
    numbers = []
    for one in shown:
        numbers.append((one.label, counted[one.domain, one.label]))
        counted[one.domain, one.label] += 1
    return numbers


def _header(column: str, side: float) -> str:
    """Break a column's name into its source and the rest."""
    return "\n".join(shorten(line, max(8, int(side * 17))) for line in re.split("[,:] ", column, maxsplit=1))


def _panel(axes: Axes, one: Shown, column: str | None) -> None:
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
        axes.set(xlim=(-0.5, PIXELS - 0.5), ylim=(PIXELS - 0.5, -0.5))
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


def _corner(one: Shown, column: str | None) -> str:
    if column is None:
        return "" if one.region is None else f"region {one.region.mean():.0%}".replace("%", " %")
    if not one.maps[column].any():
        return "no map"
    iou = one.iou[column]
    return "" if iou is None else f"IoU {100 * iou:.0f} %"


def sheet_path(folder: Path, domain: str) -> Path:
    """Return the file of a domain's sheet."""
    return folder / f"{file_stem(domain)}.png"


def write_sheets(folder: Path, judgement: Judgement) -> list[Path]:
    """Write ``DOMAIN.png`` for each domain, of the images furthest from training: held-out ones of a source."""
    last = {part.domain: part for part in judgement.parts}
    paths = []
    for domain, part in last.items():
        paths.append(sheet_path(folder, domain))
        save_figure(attention_sheet(part, judgement.sources), paths[-1])
    return paths


def attention_sheet(part: Part, sources: Sequence[AttentionSource]) -> Figure:
    """Draw images of each label with the maps of all sources but the uniform one."""
    shown = [one for label, numbers in pick(part).items() for one in _show(part, label, numbers, sources)]
    return draw_overlays(shown, dpi=_DPI)


def pick(part: Part) -> dict[int, list[int]]:
    """Choose images of each label by the size of its region alone, nearest to :data:`AREA`; each once if possible.

    Returns:
        By label that any image has, numbers of images of the part.
    """
    areas = np.concatenate([_areas(batch.masks, batch.present) for batch in part.batches(_BATCH)])
    distance = np.abs(np.log(np.maximum(areas, 1e-4) / AREA))
    used: set[int] = set()
    chosen: dict[int, list[int]] = {}
    for label in np.argsort((areas > 0).sum(axis=0), kind="stable").tolist():  # rare labels choose first
        ranked = [int(n) for n in np.argsort(distance[:, label], kind="stable") if areas[n, label] > 0]
        chosen[label] = sorted(ranked, key=lambda n: n in used)[:PER_LABEL]
        used.update(chosen[label])
    return {label: chosen[label] for label in sorted(chosen) if chosen[label]}


def _areas(masks: Tensor | None, present: Tensor) -> NDArray[np.float64]:
    assert masks is not None
    areas: NDArray[np.float64] = (masks.double().mean(dim=(2, 3)) * present).numpy()
    return areas


def _show(part: Part, label: int, numbers: Sequence[int], sources: Sequence[AttentionSource]) -> list[Shown]:
    batch = part.batch(np.array(numbers))
    maps: dict[str, Tensor] = {}
    for source in sources:
        maps |= source.maps(part, batch)
    table = part.table
    bands = None if part.image_format is None else part.image_format.shown
    assert table.masks is not None
    shown = []
    for n, row in enumerate(part.rows[list(numbers)].tolist()):
        region = table.regions(decode_mask(table.root / str(table.masks[row]), PIXELS))[label]
        own = {title(name): found[n, label] for name, found in maps.items() if name != "uniform"}
        shown.append(show(table, row, label, read_picture(table.path(row), PIXELS, bands), region, own))
    return shown


def title(source: str) -> str:
    """Return a source's name for a table or a picture."""
    name, _, point = source.partition("/")
    name, _, threshold = name.partition(">")
    name = _TITLES.get(name, name)
    if threshold:
        return f"{name}, > {threshold} of max"
    if name == "masks":
        return f"{name}, stride {point}"
    return f"{name}, {point}" if point else name
