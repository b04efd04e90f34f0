"""Every attention source of a finished run as maps of given images, so that all are evaluated in one way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ldstyle.data.domains.scene_table import Progress, SceneTable
from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.data.loading.pool import Batch, Pool
from ldstyle.data.loading.splits import split_domain
from ldstyle.evaluation.attention.maps import learned_maps
from ldstyle.evaluation.predict import pool_batches
from ldstyle.evaluation.probe.features import FrozenBackbone, PoolFeatures
from ldstyle.evaluation.probe.linear import LinearProbe
from ldstyle.functional import resize_maps, threshold_maps
from ldstyle.nn import StyledNet, analyse_head
from ldstyle.nn.backbones.activation_maps import averaged_maps, predicted
from ldstyle.nn.backbones.probe import evaluating
from ldstyle.progress import Display
from ldstyle.runs.normalized_net import Normalize, NormalizedNet

Group: TypeAlias = Literal["training", "held-out", "unseen"]
"""Which images of a domain: a source's training part, its validation and test parts, or all of an unseen domain."""


STRIDE = 8
"""Pixels per location at the deeper of the default insertion points, where cached maps are judged."""


class Part:
    """Images of one domain that have masks and are judged together.

    Args:
        table: The domain.
        group: Which of its images.
        rows: Their rows in the table, all with masks.
        size: Side of images and masks in pixels.
        cache_dir: Folder of the caches.
        progress: Called as caches are built.
        image_format: Bands and range of the images; ``None`` for 8-bit RGB.
    """

    def __init__(
        self,
        table: SceneTable,
        group: Group,
        rows: NDArray[np.int64],
        *,
        size: int,
        cache_dir: Path,
        progress: Progress | None = None,
        image_format: ImageFormat | None = None,
    ) -> None:
        self.image_format = image_format
        self.table, self.group, self.rows, self.size = table, group, rows, size
        self._cache_dir, self._progress = cache_dir, progress
        self._pools: dict[int, Pool] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def domain(self) -> str:
        """Name of the domain."""
        return self.table.domain

    def batch(self, index: NDArray[np.int64]) -> Batch:
        """Return images with their masks; ``index`` counts the images of this part."""
        return self.pool(self.size).gather(index, masks=True)

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield all images with their masks."""
        return pool_batches(self.pool(self.size), batch_size=batch_size, masks=True)

    def images(self, batch: Batch, size: int) -> Tensor:
        """Return the images of a batch of this part at another size, (B, C, S, S)."""
        return batch.images if size == self.size else self.pool(size).gather(batch.index.numpy()).images

    def pool(self, size: int) -> Pool:
        """Return the images of this part at a size."""
        if size not in self._pools:
            self._pools[size] = Pool(
                [self.table],
                [self.rows],
                size=size,
                cache_dir=self._cache_dir,
                progress=self._progress,
                image_format=self.image_format,
            )
        return self._pools[size]


def open_parts(
    table: SceneTable,
    *,
    source: bool,
    seed: int,
    size: int,
    cache_dir: Path,
    most: int | None = None,
    progress: Progress | None = None,
    image_format: ImageFormat | None = None,
) -> list[Part]:
    """Return the parts of a domain that attention is judged on: only images with masks.

    Args:
        table: The domain.
        source: Whether the run was trained on it; its training part is then judged apart from the rest.
        seed: Seed of the run's split.
        size: Side of images and masks in pixels.
        cache_dir: Folder of the caches.
        most: Most images of a part, evenly spaced; ``None`` for all.
        progress: Called as caches are built.
        image_format: Bands and range of the images; ``None`` for 8-bit RGB.

    Raises:
        ValueError: The domain has no masks.
    """
    masked = np.array([table.masks is not None and table.masks[row] is not None for row in range(len(table))])
    if not masked.any():
        raise ValueError(f"Attention can only be judged on a domain with masks; {table.domain!r} has none.")
    groups: dict[Group, NDArray[np.int64]] = {"unseen": np.arange(len(table))}
    if source:
        split = split_domain(table, seed=seed)
        groups = {"training": split.train, "held-out": np.sort(np.concatenate([split.validation, split.test]))}
    parts = []
    for group, rows in groups.items():
        rows = rows[masked[rows]]
        if most is not None and most < len(rows):
            rows = rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
        if len(rows):
            parts.append(
                Part(table, group, rows, size=size, cache_dir=cache_dir, progress=progress, image_format=image_format)
            )
    return parts


class AttentionSource(Protocol):
    """Gives maps of the labels of some images."""

    def maps(self, part: Part, batch: Batch) -> dict[str, Tensor]:
        """Return one or more variants by name, (B, L, h, w) each; all zero where there is no map for a label."""


@dataclass(frozen=True)
class UniformSource:
    """The same weight everywhere, for every present label: the baseline of all sources."""

    def maps(self, part: Part, batch: Batch) -> dict[str, Tensor]:
        """Return ``uniform``."""
        return {"uniform": batch.present[:, :, None, None].float()}


@dataclass(frozen=True)
class MaskSource:
    """The masks themselves on the grid of a feature map: the upper bound of any source at this resolution.

    Attributes:
        stride: Pixels per location.
    """

    stride: int = STRIDE

    def maps(self, part: Part, batch: Batch) -> dict[str, Tensor]:
        """Return ``masks/STRIDE``."""
        assert batch.masks is not None
        side = max(1, part.size // self.stride)
        maps = F.adaptive_avg_pool2d(batch.masks.float(), side) * batch.present[:, :, None, None]
        return {f"masks/{self.stride}": maps}


@dataclass(frozen=True)
class LearnedSource:
    """The maps of LLAM at each of its insertion points, for the present labels.

    Attributes:
        net: The styled network of the run.
        normalise: Normalises its images.
    """

    net: StyledNet
    normalise: Normalize

    def maps(self, part: Part, batch: Batch) -> dict[str, Tensor]:
        """Return ``llam/POINT`` for each insertion point."""
        images = self.normalise(batch.images)
        found = learned_maps(self.net, images, batch.present.to(images.device, non_blocking=True))
        return {f"llam/{name}": maps.cpu() for name, maps in found.items()}


@dataclass
class ActivationSource:
    """The class activation maps of a network, as the cached attention source uses them.

    Attributes:
        model: The plain network.
        size: Side of the images that the maps are computed from, in pixels.
        thresholds: Fractions of a map's maximum below which the map is removed; one variant each.
        flips: Whether maps are averaged over the four flips of an image.
        scales: Factors of the image size that maps are averaged over.
    """

    model: NormalizedNet
    size: int
    thresholds: Sequence[float] = ()
    flips: bool = False
    scales: Sequence[float] = (1.0,)

    def __post_init__(self) -> None:
        self._head = analyse_head(self.model.backbone, image_size=(self.size, self.size))

    def maps(self, part: Part, batch: Batch) -> dict[str, Tensor]:
        """Return ``cam`` for every present label, ``cached`` for those also predicted, and its thresholded variants."""
        images = self.model.normalise(part.images(batch, self.size))
        with evaluating(self.model):
            maps, logits = averaged_maps(self.model.backbone, self._head, images, flips=self.flips, scales=self.scales)
        maps, kept = maps.relu().float().cpu(), predicted(logits, batch.present).cpu()
        cached = as_used("cached", maps * kept[:, :, None, None], self.thresholds, size=part.size)
        return {"cam": maps * batch.present[:, :, None, None], **cached}


def as_used(name: str, maps: Tensor, thresholds: Sequence[float], *, size: int) -> dict[str, Tensor]:
    """Return cached maps as style modules use them: resized to a feature map of stride 8, then thresholded.

    Args:
        name: Name of the source.
        maps: Non-negative maps, (B, L, h, w).
        thresholds: Fractions of a map's maximum below which the map is removed; one variant each, ``NAME>T``.
        size: Side of the training images in pixels.
    """
    side = max(1, size // STRIDE)
    resized = resize_maps(maps, (side, side))
    variants = {f"{name}>{threshold:g}": threshold_maps(resized, threshold=threshold) for threshold in thresholds}
    return {name: resized, **variants}


class ProbeSource:
    """The maps of a linear probe on a frozen backbone, as ``attention: probe`` uses them.

    Args:
        probe: The probe.
        backbone: The frozen network.
        size: Side of its images in pixels.
        cache_dir: Folder of the caches, where features are kept.
        thresholds: Fractions of a map's maximum below which the map is removed; one variant each.
        display: Shows the work of computing features.
    """

    def __init__(
        self,
        probe: LinearProbe,
        backbone: FrozenBackbone,
        *,
        size: int,
        cache_dir: Path,
        thresholds: Sequence[float] = (),
        display: Display | None = None,
    ) -> None:
        self._probe, self._backbone, self._size, self._cache_dir = probe, backbone, size, cache_dir
        self._thresholds, self._display = tuple(thresholds), display
        self._features: dict[Part, PoolFeatures] = {}

    def maps(self, part: Part, batch: Batch) -> dict[str, Tensor]:
        """Return ``probe`` for labels that are present and found by the probe, and its thresholded variants."""
        if part not in self._features:
            self._features[part] = PoolFeatures(part.pool(self._size), self._backbone, self._cache_dir)
            self._features[part].compute(np.arange(len(part)), display=self._display)
        feats = self._features[part].read(batch.index.numpy())
        kept = predicted(self._probe.logits(feats), batch.present)
        maps = self._probe.maps(feats).relu() * kept[:, :, None, None]
        return as_used("probe", maps, self._thresholds, size=part.size)
