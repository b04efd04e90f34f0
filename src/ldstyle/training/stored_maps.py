"""Attention that is computed before training: maps of a linear probe, or a data set's own masks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from ldstyle.config import LabelDecoupledConfig, MasksConfig, ProbeConfig
from ldstyle.evaluation.probe.features import FrozenBackbone
from ldstyle.evaluation.probe.linear import ProbeMaps, probe_maps
from ldstyle.functional import resize_maps, threshold_maps
from ldstyle.nn import StyledNet
from ldstyle.progress import Display
from ldstyle.runs.config import RunConfig
from ldstyle.runs.processes import Processes
from ldstyle.runs.sources import SourceData

FINEST = 56
"""Largest side of the maps made from masks, so that a sample takes at most 6 kB per label."""

_CHUNK = 32
_log = logging.getLogger(__name__)


def fill_maps(
    net: nn.Module,
    data: SourceData,
    config: RunConfig,
    fabric: Fabric,
    *,
    display: Display | None = None,
    stop: Callable[[], bool] | None = None,
) -> None:
    """Fill the map bank of a method whose attention does not come from the network in training; else do nothing.

    The maps depend on the data, the split and the pretrained backbone alone, so a resumed run gets the same ones. The
    processes of a run divide the work of storing them.

    Args:
        net: Network of the run.
        data: Data of the run.
        config: Settings of the run.
        fabric: Launched Fabric.
        display: Shows the work.
        stop: Asked now and then whether to stop.

    Raises:
        Interrupted: ``stop`` requested it; the features computed so far are kept.
        ValueError: Masks are requested, without a probe as the fallback, and there are none.
    """
    display = display or Display()
    match config.style:
        case LabelDecoupledConfig(attention=ProbeConfig(size=size)):
            found = _probe(size, data, config, fabric, display, stop)
            _store(net, fabric, len(data.train), lambda chunk: _entries(found, chunk))
        case LabelDecoupledConfig(attention=MasksConfig() as attention):
            fallback = None
            if attention.fallback == "probe":
                fallback = partial(_probe, attention.probe_size, data, config, fabric, display, stop)
            elif not data.train.masked.any():
                raise ValueError(
                    f"attention 'masks' needs masks; none of the training images of {', '.join(data.train.domains)} "
                    "has one. Set style.attention.fallback to 'probe', or choose another attention."
                )
            masks = _Masks(net, data, fallback, attention.probe_threshold)
            _store(net, fabric, len(data.train), masks)
            display.say(masks.summary())
        case _:
            pass


class _Masks:
    """Maps from masks, and from a probe where a present label has none; without such a label no probe is fitted."""

    def __init__(
        self, net: nn.Module, data: SourceData, fallback: Callable[[], ProbeMaps] | None, threshold: float
    ) -> None:
        assert isinstance(net, StyledNet)
        side = min(FINEST, math.ceil(data.train.size / min(point.stride for point in net.points)))
        self._pool, self._size, self._fallback, self._threshold = data.train, (side, side), fallback, threshold
        self._probed: ProbeMaps | None = None
        self._counts = np.zeros(3, dtype=np.int64)

    def __call__(self, chunk: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the maps (B, L, h, w) and which to keep (B, L) of some samples."""
        batch = self._pool.gather(chunk, masks=True)
        assert batch.masks is not None
        # The fraction of each location that the label covers: no small region is lost.
        maps = F.adaptive_avg_pool2d(batch.masks.float(), self._size)
        marked = batch.present & batch.masks.flatten(2).any(dim=2)
        keep = marked
        if self._fallback is not None and (batch.present & ~marked).any():
            self._probed = self._probed or self._fallback()
            probed, found = _entries(self._probed, chunk)
            # In the order of the bank of a pure probe: resized, then thresholded.
            probed = threshold_maps(resize_maps(probed.float().relu(), self._size), threshold=self._threshold)
            maps = torch.where(marked[:, :, None, None], maps, probed)
            keep = marked | found
        self._counts += [int(batch.present.sum()), int(marked.sum()), int((keep & ~marked).sum())]
        return maps, keep

    def summary(self) -> str:
        present, marked, probed = self._counts.tolist()
        rest = f", {probed} from the probe" if self._probed is not None else ""
        return f"Of {present} labels on the training images, {marked} have their region from masks{rest}."


def _probe(
    size: int, data: SourceData, config: RunConfig, fabric: Fabric, display: Display, stop: Callable[[], bool] | None
) -> ProbeMaps:
    if config.backbone.weights == "none":
        _log.warning("backbone.weights is 'none': the probe sees the features of a random network.")
    num_labels = len(data.vocabulary)
    backbone = FrozenBackbone(
        config.backbone,
        num_labels=num_labels,
        size=size,
        device=fabric.device,
        bands=data.train.channels,
        measured=data.measured,
    )
    cache_dir = Path(config.data.cache_dir).expanduser()
    found = probe_maps(data.train_at(size), backbone, cache_dir, display=display, stop=stop)
    if not found.keep.any():
        _log.warning("The probe finds no label of the training images: all attention of this run is uniform.")
    return found


def _entries(found: ProbeMaps, chunk: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    entry = torch.from_numpy(found.entry[chunk])
    return found.maps[entry], found.keep[entry]


def _store(
    net: nn.Module, fabric: Fabric, count: int, entries: Callable[[NDArray[np.int64]], tuple[Tensor, Tensor]]
) -> None:
    assert isinstance(net, StyledNet)
    assert net.cams is not None
    for chunk in _chunks(Processes(fabric).part(count)):
        maps, keep = entries(chunk)
        net.cams.store(torch.from_numpy(chunk), maps, keep)


def _chunks(samples: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(samples), _CHUNK):
        yield samples[start : start + _CHUNK]
