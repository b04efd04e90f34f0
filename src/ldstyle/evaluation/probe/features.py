"""Last feature maps of a frozen backbone, computed once per image and shared by all runs.

The cache folder holds them below ``features/``, one folder per (images of a domain at one size, backbone):

- ``maps.f16``: the maps, (C, h, w) half-precision numbers per image, at the image's row of the domain's table. Rows
  that nobody requested take no space.
- ``checks.u32``: 0 for a row that is not there, else a checksum of its map. It is written after the map, so a process
  that is killed loses one batch, and a damaged map is computed again.
- ``shape.json``: (C, h, w).

EfficientNet-Lite0 at 320 px takes 256 kB per image.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor, nn

from ldstyle.cpu.dilated import hasten_dilated_convolutions
from ldstyle.data.loading.pool import Pool
from ldstyle.files import explained, replace_text
from ldstyle.nn import analyse_head
from ldstyle.nn.backbones.layout import capture
from ldstyle.progress import Display, duration
from ldstyle.runs.backbone import Preprocessing, build_backbone, head_parameters, preprocessing
from ldstyle.runs.config import BackboneConfig
from ldstyle.runs.interruption import Interrupted
from ldstyle.runs.normalized_net import NormalizedNet

Number = TypeVar("Number", bound=np.generic)

FORMAT = 1
"""Version of the features; it rises whenever their computation changes."""

BATCH = 16
"""Images per forward pass, and per entry into the files."""


class FrozenBackbone:
    """A pretrained backbone that only computes features: eval mode, single precision, no gradients.

    Args:
        config: Its timm name, weights and output stride.
        num_labels: Number of labels L of the classifier, which is not used.
        size: Side of the images in pixels.
        device: Where it runs.
        bands: Bands of the images.
        measured: Normalisation of the images; see :func:`~ldstyle.runs.backbone.build_backbone`.

    Attributes:
        digest: What the features depend on apart from the images: 16 hexadecimal digits.
    """

    def __init__(
        self,
        config: BackboneConfig,
        *,
        num_labels: int,
        size: int,
        device: torch.device,
        bands: int = 3,
        measured: Preprocessing | None = None,
    ) -> None:
        network = build_backbone(config, num_labels=num_labels, image_size=size, bands=bands, measured=measured)
        self.digest = _digest(network, config, size)
        self._head = analyse_head(network, image_size=(size, size))
        if device.type == "cpu":
            hasten_dilated_convolutions(network)
        # Faster for depthwise convolutions on the CPU and for most networks on a GPU.
        network = network.to(memory_format=torch.channels_last)
        self._network = (
            NormalizedNet(network, preprocessing(network), fused=True).to(device).eval().requires_grad_(False)
        )
        self._device = device

    def __call__(self, images: Tensor) -> Tensor:
        """Return the last maps of images from a pool, (B, C, h, w) float16 on the host, clamped to its range."""
        inputs = self._network.normalise(images)
        backbone, single = self._network.backbone, torch.autocast(self._device.type, enabled=False)
        with torch.no_grad(), single, capture(backbone, [self._head.point], inputs) as captured:
            backbone(inputs)
        most = torch.finfo(torch.float16).max
        return captured[self._head.point.name].float().clamp(-most, most).half().cpu()


class FeatureStore:
    """The maps of one domain's images on disk, addressed by row.

    Args:
        folder: Where they are kept; it is made if missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape (C, h, w) of a map; ``None`` before the first."""
        try:
            return tuple(json.loads((self._folder / "shape.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def missing(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of the rows whose map is not there or damaged."""
        maps, checks = self._maps(), self._checks()
        there = [row < min(len(maps), len(checks)) and checks[row] == _check(maps[row]) for row in rows.tolist()]
        return rows[~np.array(there, dtype=np.bool_)]

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        """Return maps that are there, (n, C, h, w) float16."""
        return torch.from_numpy(self._maps()[rows].view(np.float16))

    def write(self, rows: NDArray[np.int64], maps: Tensor) -> None:
        """Store the maps of some rows.

        Raises:
            OSError: They cannot be written, e.g. because the disk is full; what was there is untouched.
        """
        shape = tuple(maps.shape[1:])
        if self.shape != shape:
            for name in ("checks.u32", "maps.f16"):
                (self._folder / name).unlink(missing_ok=True)
            replace_text(self._folder / "shape.json", json.dumps(shape))
        values = maps.numpy()
        # Plain writes: a full disk is an error there, and a crash in a memory-mapped file.
        self._write("maps.f16", rows, [value.tobytes() for value in values])
        self._write("checks.u32", rows, [np.uint32(_check(value)).tobytes() for value in values])

    def _write(self, name: str, rows: NDArray[np.int64], values: list[bytes]) -> None:
        path = self._folder / name
        path.touch()
        with explained(path), path.open("r+b") as file:
            for row, value in zip(rows.tolist(), values, strict=True):
                file.seek(row * len(value))
                file.write(value)
            file.flush()
            os.fsync(file.fileno())

    def _maps(self) -> NDArray[np.uint16]:
        shape = self.shape or (0, 0, 0)
        found = _mapped(self._folder / "maps.f16", np.uint16)
        count = len(found) // max(1, int(np.prod(shape)))
        return found[: count * int(np.prod(shape))].reshape(count, *shape)

    def _checks(self) -> NDArray[np.uint32]:
        return _mapped(self._folder / "checks.u32", np.uint32)


class PoolFeatures:
    """Last feature maps of the samples of a pool, from the cache folder.

    Args:
        pool: Samples, at the size the backbone takes. Photometric copies have no features of their own.
        backbone: The network.
        cache_dir: Folder of the caches.
    """

    def __init__(self, pool: Pool, backbone: FrozenBackbone, cache_dir: Path) -> None:
        self._pool, self._backbone = pool, backbone
        folder = cache_dir / "features"
        names = {domain: re.sub(r"[^\w-]", "_", domain) + f"-{pool.size}px" for domain in pool.digests}
        self._stores = [
            FeatureStore(folder / f"{names[domain]}-{digest}-{backbone.digest}")
            for domain, digest in pool.digests.items()
        ]
        self._locks = [folder / f".{name}-{backbone.digest}.lock" for name in names.values()]

    def compute(
        self, samples: NDArray[np.int64], *, display: Display | None = None, stop: Callable[[], bool] | None = None
    ) -> int:
        """Compute the missing features, in the order of the samples. Other processes that want the same wait.

        Args:
            samples: Numbers of samples of the pool.
            display: Shows images, size and time before the work, and a bar during it.
            stop: Asked between two batches whether to stop.

        Returns:
            How many images were passed through the network.

        Raises:
            Interrupted: ``stop`` requested it; what was computed is kept.
            OSError: The disk is full; what was computed is kept.
        """
        display = display or Display()
        return sum(
            self._compute(domain, samples[self._pool.domain[samples] == domain], display, stop)
            for domain in range(len(self._stores))
        )

    def read(self, samples: NDArray[np.int64]) -> Tensor:
        """Return the maps of samples that :meth:`compute` was called for, (n, C, h, w) float16."""
        domain, rows = self._pool.domain[samples], self._pool.rows[samples]
        shape = next(store.shape for store in self._stores if store.shape is not None)
        maps = torch.empty(len(samples), *shape, dtype=torch.float16)
        for d, store in enumerate(self._stores):
            of_domain = np.flatnonzero(domain == d)
            if len(of_domain):
                maps[of_domain] = store.read(rows[of_domain])
        return maps

    def _compute(
        self, domain: int, samples: NDArray[np.int64], display: Display, stop: Callable[[], bool] | None
    ) -> int:
        store, name = self._stores[domain], self._pool.domains[domain]
        with waiting(self._locks[domain], display, f"the features of {name}", stop):
            absent = np.isin(self._pool.rows[samples], store.missing(self._pool.rows[samples]))
            wanted = samples[absent]
            began = time.monotonic()
            for start in range(0, len(wanted), BATCH):
                if stop is not None and stop():
                    raise Interrupted(
                        f"Stopped after {start} of {len(wanted)} images of {name}; their features are saved."
                    )
                batch = wanted[start : start + BATCH]
                maps = self._backbone(self._pool.gather(batch).images)
                if start == 0:
                    _announce(display, name, len(wanted), maps, (time.monotonic() - began) / len(batch))
                store.write(self._pool.rows[batch], maps)
                display.work(start + len(batch), len(wanted), f"features of {name}")
        return len(wanted)


@contextmanager
def waiting(path: Path, display: Display, what: str, stop: Callable[[], bool] | None = None) -> Iterator[None]:
    """Hold a lock file inside; wait for another process that holds it, and print a message."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, announced = FileLock(path), False
    while not lock.is_locked:
        try:
            lock.acquire(timeout=1 if announced else 0)
        except Timeout:
            if not announced:
                display.say(f"Waiting for another process that computes {what}.")
            announced = True
            if stop is not None and stop():
                raise Interrupted(f"Stopped while waiting for another process that computes {what}.") from None
    try:
        yield
    finally:
        lock.release()


def _announce(display: Display, domain: str, count: int, maps: Tensor, seconds: float) -> None:
    megabytes = count * maps[0].numel() * maps.element_size() / 1e6
    display.say(
        f"Computing the features of {count} images of {domain} once: {megabytes:,.0f} MB in the cache folder, about "
        f"{duration(count * seconds)}."
    )


def _digest(network: nn.Module, config: BackboneConfig, size: int) -> str:
    """Return a digest of the weights, without the classifier's, and of all else that makes the features."""
    channels = preprocessing(network)
    rules = [FORMAT, config.name, config.output_stride, size, channels.mean, channels.std]
    state = hashlib.blake2b(json.dumps(rules).encode(), digest_size=8)
    head = {parameter.data_ptr() for parameter in head_parameters(network)}
    for name, value in network.state_dict().items():
        if value.data_ptr() not in head:
            state.update(name.encode())
            state.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()


def _check(value: NDArray[np.generic]) -> int:
    return zlib.crc32(value.tobytes()) or 1


def _mapped(path: Path, kind: type[Number]) -> NDArray[Number]:
    """Map a file of numbers for reading; an incomplete number at its end is left out."""
    count = path.stat().st_size // np.dtype(kind).itemsize if path.exists() else 0
    return np.memmap(path, dtype=kind, mode="r", shape=(count,)) if count else np.empty(0, dtype=kind)
