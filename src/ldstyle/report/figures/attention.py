"""Learned and cached attention over images, with the masks of the labels where there are any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.view import Results
from ldstyle.data.domains.samples import pick_samples
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.deploy.explain import Explainer
from ldstyle.evaluation.attention.maps import learned_maps
from ldstyle.report.figures.images import (
    TrainedCell,
    first_trained,
    has_attention,
    has_model,
    load_cell,
    read_images,
    read_pictures,
    read_regions,
    read_tables,
    unseen,
)
from ldstyle.report.figures.overlays import AREA, PIXELS, Shown, draw_overlays, show
from ldstyle.report.figures.style import Plate, UnavailableError, require_done

_LABELS, _DOMAINS, _POINTS = 6, 2, 2
_CANDIDATES = 60


def attention_overlays(results: Results) -> Plate:
    """Draw the attention of each label over a held-out source image of each domain."""
    require_done(results)
    cells = _choose(results)
    shown = _collect(results, cells)
    titles = [f"{results.titles[cell.method]} ({cell.split}, seed {cell.seed})" for cell in cells]
    masked = any(one.region is not None for one in shown)
    outlines = (
        "outlines are the label's true region, small gaps closed; " if masked else "there are no masks to judge it by; "
    )
    caption = (
        f"Attention of {' and of '.join(titles)} for the label of the row, over images of the sources that were held "
        "out of training, brightest where it is highest, which a ring marks; "
        f"{outlines}"
        "learned attention (LLAM) is shown at its insertion points, cached attention (GC) is the selected model's "
        f"class activation map. {_selection(masked)}{_not_kept(results, cells)}"
    )

    data = {
        "cells": [cell.cell for cell in cells],
        "images": [_plain(one) for one in shown],
    }
    return Plate(caption, lambda: draw_overlays(shown), data, photographic=True)


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
    """Return the smallest fraction of the image with half of a map's mass: its sharpness."""
    falling = np.sort(attn.ravel())[::-1].cumsum(dtype=np.float64)
    return float((np.searchsorted(falling, falling[-1] / 2) + 1) / attn.size) if falling[-1] > 0 else None


def _selection(masked: bool) -> str:
    if not masked:
        return "Images were drawn at random from those with the label."
    return (
        f"Images were chosen by the size of the region alone, nearest to {AREA:.0%} of the image; IoU: of the region "
        "and the equally many highest locations."
    )


def _choose(results: Results) -> list[CellResult]:
    """Take one cell with learned attention and one with cached maps, which hold out the same images."""
    learned = first_trained(
        results,
        lambda cell: cell.method == "ld-efdmix" and has_attention(results, cell),
        lambda cell: has_attention(results, cell),
    )

    def alongside(cell: CellResult) -> bool:
        return learned is None or (cell.split, cell.seed) == (learned.split, learned.seed)

    cached = first_trained(
        results,
        lambda cell: cell.method == "ld-efdmix-gc" and alongside(cell),
        lambda cell: cell.attention_source == "gradcam" and alongside(cell),
    )
    found = [cell for cell in (learned, cached) if cell is not None]
    if not found:
        command = results.command("run", ["ld-efdmix", "ld-efdmix-gc"])
        raise UnavailableError(
            "Weights of a label-decoupled method are needed, and no finished cell has them here. Run e.g. "
            f"`{command}`, and make the report from its folder.{_not_kept(results, [])}"
        )
    return found


def _not_kept(results: Results, cells: Sequence[CellResult]) -> str:
    """Return a note on learned attention that exists but was not kept."""
    if any(cell.attention_source == "llam" for cell in cells):
        return ""
    lost = [cell for cell in results.main.done if cell.attention_source == "llam" and has_model(results, cell)]
    title = results.titles[lost[0].method] if lost else ""
    return f" {title} kept no attention.safetensors, so its maps cannot be shown." if lost else ""


def _collect(results: Results, cells: Sequence[CellResult]) -> list[Shown]:
    first = cells[0]
    every = unseen(read_tables(results, first), first)
    tables = {name: every[name] for name in first.sources[:_DOMAINS]}
    labels = _frequent(list(tables.values()))
    trained = [load_cell(results, cell) for cell in cells]
    shown: list[Shown] = []
    for table in tables.values():
        rows = _pick(table, labels)
        chosen = [label for label in labels if label in rows]
        images = read_pictures(table, [rows[label] for label in chosen], size=PIXELS, shown=first.shown)
        regions = read_regions(table, [rows[label] for label in chosen], size=PIXELS)
        maps: dict[str, Tensor] = {}
        for one in trained:
            maps |= _maps(one, results.titles[one.cell.method], table, [rows[label] for label in chosen], chosen)
        for n, label in enumerate(chosen):
            region = None if regions is None else regions[n, label]
            own = {name: found[n] for name, found in maps.items()}
            shown.append(show(table, rows[label], label, images[n].numpy(), region, own))
    if not shown:
        raise UnavailableError("No held-out image has a label.")
    return shown


def _frequent(tables: Sequence[SceneTable]) -> list[int]:
    fractions = np.mean([(table.labels == 1).mean(axis=0) for table in tables], axis=0)
    return sorted(int(label) for label in np.argsort(-fractions, kind="stable")[:_LABELS])


def _pick(table: SceneTable, labels: Sequence[int]) -> dict[int, int]:
    """Choose one image per label: by the size of its region where there are masks, at random elsewhere."""
    at_random = pick_samples(table, per_cell=_CANDIDATES)
    chosen: dict[int, int] = {}
    for label in labels:
        rows = [row for row in at_random[label] if row not in chosen.values()] or at_random[label]
        regions = read_regions(table, rows, size=64)
        if rows and regions is not None:
            area = regions[:, label].mean(axis=(1, 2))
            order = np.argsort(np.abs(np.log(np.maximum(area, 1e-4) / AREA)), kind="stable")
            rows = [rows[int(position)] for position in order]
        if rows:
            chosen[label] = rows[0]
    return chosen


def _maps(
    trained: TrainedCell, title: str, table: SceneTable, rows: Sequence[int], labels: Sequence[int]
) -> dict[str, Tensor]:
    """Return the maps of each image's label by column, (n, h, w)."""
    classifier = trained.classifier
    images = read_images(table, rows, classifier.model)
    here = torch.arange(len(rows))
    if trained.attention is None:
        return {f"GC: {title}": Explainer(classifier)(images).maps[here, list(labels)]}
    present = torch.from_numpy(table.labels[list(rows)] == 1)
    found = learned_maps(trained.attention, classifier.normalise(images), present)
    return {f"LLAM, {name}": maps[here, list(labels)] for name, maps in list(found.items())[:_POINTS]}
