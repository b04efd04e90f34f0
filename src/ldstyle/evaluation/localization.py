"""Whether attention finds its label: maps against the masks of the labels, next to the uniform map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ldstyle.evaluation.scores import nullable
from ldstyle.functional import effective_locations, resize_maps

Table = dict[str, dict[str, float | int | None]]

MEASURES = ("pointing", "iou", "pointing_chance", "iou_chance", "mass", "coverage")
"""Measures averaged over the maps of a label. ``pointing_chance`` is also the mass of the uniform map in the region."""


class Hits(NamedTuple):
    """How well each map finds its region; NaN where there is no region, or no map to judge.

    Attributes:
        pointing: 1 where the highest location lies in the region, else 0; of several equally high locations, the
            fraction that does, (B, L).
        iou: Intersection over union of the region and the equally many highest locations, (B, L).
        area: The region's fraction of the image, (B, L): the pointing and the mass of a uniform map.
        mass: Fraction of the map's mass that lies in the region, (B, L): what style statistics see of it.
        coverage: Effective locations 1/Σa² as a fraction of the map's locations, (B, L); 1 for a uniform map.
    """

    pointing: Tensor
    iou: Tensor
    area: Tensor
    mass: Tensor
    coverage: Tensor

    @property
    def iou_chance(self) -> Tensor:
        """The intersection over union of a uniform map: a / (2 − a) for a region of area a."""
        return self.area / (2 - self.area)


def locate(attn: Tensor, regions: Tensor) -> Hits:
    """Compare attention with the true regions.

    Pointing and IoU need no threshold, since IoU takes as many locations as the region has: sharp and flat maps are
    judged alike, only the order of the locations counts. Ties are resolved by their expectation. The mass depends on
    the values.

    Args:
        attn: Attention of any scale, (B, L, h, w), resized bilinearly to the regions. A map without mass is no map.
        regions: Where each label is, (B, L, H, W) bool. An empty region is not judged.

    Returns:
        Pointing, intersection over union, area, mass and coverage, all (B, L).
    """
    if regions.dtype != torch.bool or regions.ndim != 4:
        raise TypeError(f"`regions` must be bool of shape (B, L, H, W); got {regions.dtype} {tuple(regions.shape)}.")
    if attn.ndim != 4 or attn.shape[:2] != regions.shape[:2]:
        expected = tuple(regions.shape[:2])
        raise ValueError(f"`attn` must have shape (B, L, h, w) with (B, L) = {expected}; got {tuple(attn.shape)}.")
    regions = regions.to(attn.device)
    judged = regions.flatten(2).any(-1) & (attn.flatten(2) > 0).any(-1)
    pointing, iou, area, mass, coverage = (torch.full(judged.shape, torch.nan, device=attn.device) for _ in range(5))
    if judged.any():
        own = attn[judged].double()  # (P, h, w)
        # Through float64, so that rounding does not break the ties of equal values.
        maps = resize_maps(own[None], (regions.shape[2], regions.shape[3]))[0].flatten(1)
        truth = regions[judged].flatten(1)
        mass[judged] = ((maps * truth).sum(dim=1) / maps.sum(dim=1)).float()
        coverage[judged] = _coverage(own).float()
        maps = maps.float()
        pointing[judged] = _pointing(maps, truth)
        iou[judged] = _iou(maps, truth)
        area[judged] = truth.float().mean(dim=1)
    return Hits(pointing, iou, area, mass, coverage)


class Localization:
    """Collects hits over batches into a table by label.

    Args:
        vocabulary: Names of the L labels.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.vocabulary = tuple(vocabulary)
        self._sums = torch.zeros(len(MEASURES), len(self.vocabulary), dtype=torch.float64)
        self._judged, self._regions = torch.zeros(2, len(self.vocabulary), dtype=torch.int64)

    def update(self, attn: Tensor, regions: Tensor) -> None:
        """Add a batch; see :func:`locate`. Maps and regions must have the same flips."""
        if attn.shape[1] != len(self.vocabulary):
            raise ValueError(f"`attn` must have {len(self.vocabulary)} labels, as the vocabulary; got {attn.shape[1]}.")
        hits = locate(attn, regions)
        found = (hits.pointing, hits.iou, hits.area, hits.iou_chance, hits.mass, hits.coverage)
        columns = torch.stack(found).double().cpu()
        self._sums += columns.nansum(dim=1)
        self._judged += (~columns[0].isnan()).sum(dim=0)
        self._regions += regions.flatten(2).any(-1).sum(dim=0).cpu()

    def compute(self) -> Table:
        """Average by label.

        Returns:
            By label the means of :data:`MEASURES`, ``None`` over nothing; the number ``n`` of maps judged, and the
            number of regions whose map is ``missing``.
        """
        means = self._sums / self._judged
        return {
            label: {
                **{name: nullable(means[row, column]) for row, name in enumerate(MEASURES)},
                "n": int(self._judged[column]),
                "missing": int(self._regions[column] - self._judged[column]),
            }
            for column, label in enumerate(self.vocabulary)
        }


def with_mean(table: Table) -> dict[str, Any]:
    """Return a table by label with the means over its labels first, under ``mean``."""
    means: dict[str, float | None] = {}
    for name in MEASURES:
        known = [row[name] for row in table.values() if row[name] is not None]
        means[name] = float(np.mean(np.array(known, dtype=np.float64))) if known else None
    return {"mean": means, **table}


def _coverage(maps: Tensor) -> Tensor:
    unit = maps / maps.sum(dim=(1, 2), keepdim=True)
    return effective_locations(unit[None])[0] / unit[0].numel()


def _pointing(maps: Tensor, truth: Tensor) -> Tensor:
    highest = maps == maps.amax(dim=1, keepdim=True)
    return (highest & truth).sum(dim=1) / highest.sum(dim=1)


def _iou(maps: Tensor, truth: Tensor) -> Tensor:
    size = truth.sum(dim=1, keepdim=True)
    limit = maps.sort(dim=1, descending=True).values.gather(1, size - 1)
    above, level = maps > limit, maps == limit
    fraction = (size - above.sum(dim=1, keepdim=True)) / level.sum(dim=1, keepdim=True)
    shared = (above & truth).sum(dim=1) + fraction.squeeze(1) * (level & truth).sum(dim=1)
    return shared / (2 * size.squeeze(1) - shared)
