"""Localization of attention: the source in use while training, and all sources of a finished network.

A region counts where its label is known to be present.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ldstyle.data.loading.pool import Batch, Pool
from ldstyle.evaluation.localization import Localization, Table, with_mean
from ldstyle.evaluation.predict import pool_batches
from ldstyle.nn import LabelDecoupledStyle, StyledNet, activation_maps, analyse_head
from ldstyle.nn.backbones.insertion import InsertionPoint
from ldstyle.nn.backbones.layout import capture
from ldstyle.nn.backbones.probe import evaluating
from ldstyle.runs.normalized_net import Normalize, NormalizedNet
from ldstyle.runs.sources import SourceData

MOST = 256
"""Largest number of samples of a pool that are evaluated, evenly spaced."""


def localize_attention(
    net: nn.Module, data: SourceData, normalise: Normalize, *, batch_size: int
) -> dict[str, Any] | None:
    """Compare the attention in use with the masks of the sources.

    Nothing is changed: the backbone runs in eval mode without gradients, and every mode is restored.

    Returns:
        For each insertion point with learned attention, or for ``cached``, the table of each label and the means over
        labels under ``mean``; ``None`` if there are no masks or no attention yet.
    """
    if not isinstance(net, StyledNet):
        return None
    if net.cams is not None:
        rows = _spread(data.train) if net.cams.ready else np.empty(0, dtype=np.int64)
        return {"cached": with_mean(_cached(net, data.train, rows, batch_size))} if len(rows) else None
    return localize_learned(net, [data.validation], normalise, batch_size=batch_size)


def localize_sources(
    model: NormalizedNet,
    net: StyledNet | None,
    data: SourceData,
    *,
    batch_size: int,
) -> dict[str, Any] | None:
    """Compare the maps of a finished network with the masks of its sources.

    Args:
        model: The plain network.
        net: The same with its learned attention, if it has any.
        data: The sources.
        batch_size: Images at once.

    Returns:
        For ``training`` and ``held-out`` images (validation and test parts) what :func:`all_sources` returns; ``None``
        without masks.
    """
    found: dict[str, Any] = {}
    for group, pools in {"training": [data.train], "held-out": [data.validation, data.test]}.items():
        cam = localize_predictions(model, pools, batch_size=batch_size)
        learned = None
        if net is not None:
            learned = localize_learned(net, pools, model.normalise, batch_size=batch_size)
        if cam is not None:
            found[group] = all_sources(cam, learned)
    return found or None


def all_sources(cam: dict[str, Any] | None, learned: dict[str, Any] | None) -> dict[str, Any] | None:
    """Join the tables of class activation maps, ``cam``, and of learned attention, ``llam/POINT``."""
    if cam is None:
        return None
    return {"cam": cam, **{f"llam/{name}": table for name, table in (learned or {}).items()}}


def localize_learned(
    net: StyledNet, pools: Sequence[Pool], normalise: Normalize, *, batch_size: int
) -> dict[str, Any] | None:
    """Compare learned attention, given the present labels, with the masks of one or more pools.

    Returns:
        For each insertion point the table of each label and the means over labels; ``None`` without masks or attention.
    """
    learned = [p.name for p, s in zip(net.points, net.styles, strict=True) if _has_llam(s)]
    if not learned or not _any_masks(pools):
        return None
    tables = {name: Localization(pools[0].vocabulary) for name in learned}
    for batch in _all_batches(pools, batch_size):
        images = normalise(batch.images)
        for name, attn in learned_maps(net, images, batch.present.to(images.device, non_blocking=True)).items():
            tables[name].update(attn, present_regions(batch))
    return {name: with_mean(table.compute()) for name, table in tables.items()}


def localize_predictions(model: NormalizedNet, pools: Sequence[Pool], *, batch_size: int) -> dict[str, Any] | None:
    """Compare the class activation maps of a plain backbone with the masks of some pools; ``None`` without masks."""
    if not _any_masks(pools):
        return None
    size = pools[0].size
    head = analyse_head(model.backbone, image_size=(size, size))
    table = Localization(pools[0].vocabulary)
    with evaluating(model):
        for batch in _all_batches(pools, batch_size):
            maps, _ = activation_maps(model.backbone, head, model.normalise(batch.images))
            table.update(maps.relu(), present_regions(batch))
    return with_mean(table.compute())


def _cached(net: StyledNet, pool: Pool, rows: NDArray[np.int64], batch_size: int) -> Table:
    """Judge cached maps as the finest style module uses them: resized to its locations, then thresholded."""
    assert net.cams is not None
    table = Localization(pool.vocabulary)
    side = math.ceil(pool.size / min(point.stride for point in net.points))
    for batch in pool_batches(pool, rows, batch_size=batch_size, masks=True):
        maps = net.cams.lookup(batch.index, None, batch.present).at(torch.empty(0, 0, side, side))
        table.update(maps, present_regions(batch))
    return table.compute()


def present_regions(batch: Batch) -> Tensor:
    """Return the regions of a batch with masks where their label is known to be present, (B, L, H, W) bool."""
    assert batch.masks is not None
    return batch.masks & batch.present[:, :, None, None]


def learned_maps(net: StyledNet, images: Tensor, present: Tensor) -> dict[str, Tensor]:
    """Return the maps of each module with learned attention, (B, L, H, W), for the plain backbone's features."""
    modules = {
        point: style.llam
        for point, style in zip(net.points, net.styles, strict=True)
        if isinstance(style, LabelDecoupledStyle) and style.llam is not None
    }

    def attend(point: InsertionPoint, feats: Tensor) -> Tensor:
        maps: Tensor = modules[point](feats, present)
        return maps

    with torch.no_grad(), evaluating(net.backbone), capture(net.backbone, modules, images, attend) as maps:
        net.backbone(images)
    return maps


def _has_llam(style: nn.Module) -> bool:
    return isinstance(style, LabelDecoupledStyle) and style.llam is not None


def _spread(pool: Pool) -> NDArray[np.int64]:
    """Return up to :data:`MOST` samples with masks."""
    rows = np.flatnonzero(pool.masked)
    return rows[np.linspace(0, len(rows) - 1, min(MOST, len(rows))).astype(np.int64)]


def _any_masks(pools: Sequence[Pool]) -> bool:
    return any(bool(pool.masked.any()) for pool in pools)


def _all_batches(pools: Sequence[Pool], batch_size: int) -> Iterator[Batch]:
    for pool in pools:
        yield from pool_batches(pool, _spread(pool), batch_size=batch_size, masks=True)
