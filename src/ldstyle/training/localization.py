"""Whether attention finds its label: maps against the masks of the labels, with the level of chance beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ldstyle.functional import resize_maps
from ldstyle.training.scoring import nullable

Table = dict[str, dict[str, float | int | None]]


class Hits(NamedTuple):
    """How well each map finds its region; NaN where there is no region, or no map to judge.

    Attributes:
        pointing: 1 where the highest place lies in the region, else 0; of several equally high places, the share that
            does, (B, L).
        iou: Intersection over union of the region and the equally many highest places, (B, L).
        area: The region's share of the image, (B, L): the pointing a map of equal values would have.
    """

    pointing: Tensor
    iou: Tensor
    area: Tensor

    @property
    def iou_chance(self) -> Tensor:
        """The intersection over union of a map of equal values: a / (2 − a) for a region of area a."""
        return self.area / (2 - self.area)


def locate(attn: Tensor, regions: Tensor) -> Hits:
    """Compare attention with the true regions.

    Taking as many places as the region has leaves no threshold to choose, so sharp and flat maps are judged alike: only
    the order of the places counts. Ties are resolved by their expectation.

    Args:
        attn: Attention of any scale, (B, L, h, w), resized bilinearly to the regions. A map without mass is no map.
        regions: Where each label is, (B, L, H, W) bool. An empty region is not judged.

    Returns:
        Pointing, intersection over union and area, all (B, L).
    """
    if regions.dtype != torch.bool or regions.ndim != 4:
        raise TypeError(f"`regions` must be bool of shape (B, L, H, W); got {regions.dtype} {tuple(regions.shape)}.")
    if attn.ndim != 4 or attn.shape[:2] != regions.shape[:2]:
        expected = tuple(regions.shape[:2])
        raise ValueError(f"`attn` must have shape (B, L, h, w) with (B, L) = {expected}; got {tuple(attn.shape)}.")
    regions = regions.to(attn.device)
    judged = regions.flatten(2).any(-1) & (attn.flatten(2) > 0).any(-1)
    pointing, iou, area = (torch.full(judged.shape, torch.nan, device=attn.device) for _ in range(3))
    if judged.any():
        # Through float64, so that rounding does not break the ties of equal values.
        maps = resize_maps(attn[judged].double()[None], (regions.shape[2], regions.shape[3]))[0]  # (P, H, W)
        maps = maps.float().flatten(1)
        truth = regions[judged].flatten(1)
        pointing[judged] = _pointing(maps, truth)
        iou[judged] = _iou(maps, truth)
        area[judged] = truth.float().mean(dim=1)
    return Hits(pointing, iou, area)


class Localization:
    """Collects hits over batches into a table by label.

    Args:
        vocabulary: Names of the L labels.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.vocabulary = tuple(vocabulary)
        self._sums = torch.zeros(4, len(self.vocabulary), dtype=torch.float64)
        self._judged, self._regions = torch.zeros(2, len(self.vocabulary), dtype=torch.int64)

    def update(self, attn: Tensor, regions: Tensor) -> None:
        """Add a batch; see :func:`locate`. Maps and regions must be flipped alike."""
        if attn.shape[1] != len(self.vocabulary):
            raise ValueError(f"`attn` must have {len(self.vocabulary)} labels, as the vocabulary; got {attn.shape[1]}.")
        hits = locate(attn, regions)
        columns = torch.stack([hits.pointing, hits.iou, hits.area, hits.iou_chance]).double().cpu()
        self._sums += columns.nansum(dim=1)
        self._judged += (~columns[0].isnan()).sum(dim=0)
        self._regions += regions.flatten(2).any(-1).sum(dim=0).cpu()

    def compute(self) -> Table:
        """Average by label: ``pointing`` and ``iou``, what chance would reach, and how much was judged.

        Returns:
            By label ``pointing``, ``iou``, ``pointing_chance``, ``iou_chance``, the number ``n`` of maps judged and of
            regions whose map is ``missing``. Means over nothing are ``None``.
        """
        names = ("pointing", "iou", "pointing_chance", "iou_chance")
        means = self._sums / self._judged
        return {
            label: {
                **{name: nullable(means[row, column]) for row, name in enumerate(names)},
                "n": int(self._judged[column]),
                "missing": int(self._regions[column] - self._judged[column]),
            }
            for column, label in enumerate(self.vocabulary)
        }


def _pointing(maps: Tensor, truth: Tensor) -> Tensor:
    highest = maps == maps.amax(dim=1, keepdim=True)
    return (highest & truth).sum(dim=1) / highest.sum(dim=1)


def _iou(maps: Tensor, truth: Tensor) -> Tensor:
    size = truth.sum(dim=1, keepdim=True)
    limit = maps.sort(dim=1, descending=True).values.gather(1, size - 1)
    above, level = maps > limit, maps == limit
    share = (size - above.sum(dim=1, keepdim=True)) / level.sum(dim=1, keepdim=True)
    shared = (above & truth).sum(dim=1) + share.squeeze(1) * (level & truth).sum(dim=1)
    return shared / (2 * size.squeeze(1) - shared)
