"""Where learned and cached attention look, against the masks of the labels where there are any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.benchmark.results.records import CellResult
from ldstyle.data.domains.samples import pick_samples
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.deploy.explain import Explainer
from ldstyle.evaluation.attention.maps import learned_maps
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
from ldstyle.report.figures.overlays import AREA, PIXELS, Shown, draw_overlays, show
from ldstyle.report.figures.runs import Runs, UnavailableError
from ldstyle.report.figures.style import drawing
from ldstyle.report.model import Absent, Picture

SLUG, TITLE = "attention", "Attention over images"
_LABELS, _DOMAINS, _POINTS = 6, 2, 2
_CANDIDATES = 60


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
        return draw_overlays(shown)

    data = {
        "cells": [cell.cell for cell in cells],
        "images": [_plain(one) for one in shown],
    }
    return Picture(SLUG, TITLE, caption, drawing(draw), data, photographic=True)


def _plain(one: Shown) -> dict[str, object]:
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
        f"Images were chosen by the size of the region alone, nearest to {AREA:.0%} of the image; IoU: of the region "
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


def _collect(runs: Runs, cells: Sequence[CellResult]) -> list[Shown]:
    first = cells[0]
    every = held_back(read_tables(runs, first), seed=first.seed)
    tables = {name: every[name] for name in first.sources[:_DOMAINS]}
    labels = _frequent(list(tables.values()))
    trained = [load_cell(runs, cell) for cell in cells]
    shown: list[Shown] = []
    for table in tables.values():
        rows = _pick(table, labels)
        chosen = [label for label in labels if label in rows]
        images = read_images(table, [rows[label] for label in chosen], size=PIXELS)
        regions = read_regions(table, [rows[label] for label in chosen], size=PIXELS)
        maps: dict[str, Tensor] = {}
        for one in trained:
            maps |= _maps(one, table, [rows[label] for label in chosen], chosen)
        for n, label in enumerate(chosen):
            region = None if regions is None else regions[n, label]
            own = {name: found[n] for name, found in maps.items()}
            shown.append(show(table, rows[label], label, images[n].numpy(), region, own))
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
            order = np.argsort(np.abs(np.log(np.maximum(area, 1e-4) / AREA)), kind="stable")
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
