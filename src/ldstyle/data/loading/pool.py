"""The samples of several domains in one numbering, and batches of them at memory speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ldstyle.data.domains.scene_table import Progress, SceneTable, content_digest
from ldstyle.data.loading.augmentation import draw_photometric, photometric
from ldstyle.data.loading.cache import ImageCache, open_cache
from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.seeding import derive_seed


@dataclass(frozen=True)
class Batch:
    """Samples of a pool, on the host.

    Attributes:
        images: Values of C bands, red, green and blue by default, (B, C, S, S) uint8, or uint16 for deep images.
        labels: (B, L) int8: 1 present, 0 absent, -1 unknown.
        domain: Domain number from 0, (B,) int64.
        index: Number of the sample in the pool, (B,) int64.
        masks: Region of each label, (B, L, S, S) bool, if requested.
    """

    images: Tensor
    labels: Tensor
    domain: Tensor
    index: Tensor
    masks: Tensor | None = None

    @property
    def present(self) -> Tensor:
        """True where a label is known to be present, (B, L) bool."""
        return self.labels == 1

    @property
    def known(self) -> Tensor:
        """True where it is known whether a label is present, (B, L) bool."""
        return self.labels >= 0


@dataclass(frozen=True, eq=False)
class _Domain:
    """The rows of one domain that are in the pool, their pixels, and the change applied to these."""

    table: SceneTable
    cache: ImageCache
    rows: NDArray[np.int64]
    factors: Tensor | None = None

    def copy_images(self, positions: NDArray[np.int64], out: NDArray[Any], to: NDArray[np.int64]) -> None:
        """Copy the images at ``positions`` to positions ``to`` of ``out``; one by one, so that each byte moves once."""
        pixels = np.asarray(self.cache.images)
        for position, row in zip(to.tolist(), self.rows[positions].tolist(), strict=True):
            out[position] = pixels[row]
        if self.factors is not None and len(to):
            out[to] = photometric(torch.from_numpy(out[to]), self.factors[:, positions]).numpy()

    def masks(self, positions: NDArray[np.int64]) -> NDArray[np.bool_] | bool:
        """Return the regions of the labels, (n, L, S, S); a label whose bit an 8-bit mask cannot have has none."""
        if self.cache.masks is None:
            return False
        bits = self.table.mask_bits or tuple((label,) for label in range(len(self.table.vocabulary)))
        wanted = np.array([sum(1 << bit for bit in of_label) & 255 for of_label in bits], dtype=np.uint8)
        regions: NDArray[np.bool_] = (self.cache.masks[self.rows[positions]][:, None] & wanted[:, None, None]) != 0
        return regions


class Pool:
    """Samples of one or more domains, numbered by the order of the domains and of the rows chosen of each.

    No files but those of the given tables are opened: a process that is given its source domains never touches a
    target.

    Args:
        tables: The domains, with one vocabulary.
        rows: Rows of each table that belong to the pool, e.g. those of a split's training part; ``None`` takes all.
        size: Side S of the images in pixels.
        cache_dir: Folder of the caches.
        pseudo_seed: Seed of a photometric copy of the one domain given, which joins as a second domain; ``None`` for
            no copy. The copy's colours are fixed by the seed and the samples' numbers.
        progress: Called with the progress of building caches.
        image_format: Bands and range of the images; ``None`` for 8-bit RGB.

    Attributes:
        domains: Names of the domains by number.
        vocabulary: The L label names.
        channels: Number of bands C.
        keys: Key of each sample.
        rows: Row of each sample in the table of its domain, (N,) int64.
        labels: (N, L) int8: 1 present, 0 absent, -1 unknown.
        present: True where a label is known to be present, (N, L) bool.
        masked: True for samples that have a mask, (N,) bool.
        domain: Domain number of each sample, (N,) int64.
        original: Number of the sample that each one is a copy of, its own if it is none, (N,) int64. A sample is
            never to be paired with one of the same ``original``.
        digests: Digest of each domain's cache: its images at this size.
        contents: Digest of each domain's images and labels, all rows, whatever the size; for the record of a run.
        archives: Which official download each domain was read from; ``None`` for custom tables.
    """

    def __init__(
        self,
        tables: Sequence[SceneTable],
        rows: Sequence[ArrayLike] | None = None,
        *,
        size: int,
        cache_dir: Path,
        pseudo_seed: int | None = None,
        progress: Progress | None = None,
        image_format: ImageFormat | None = None,
    ) -> None:
        chosen = _check_tables(tables, rows, pseudo_seed)
        caches = [
            open_cache(table, size=size, cache_dir=cache_dir, progress=progress, image_format=image_format)
            for table in tables
        ]
        members = [_Domain(*parts) for parts in zip(tables, caches, chosen, strict=True)]
        names = [table.domain for table in tables]
        if pseudo_seed is not None:
            members.append(_copy(members[0], pseudo_seed))
            names.append(f"{names[0]}+photometric")
        sizes = [len(member.rows) for member in members]
        self.vocabulary, self.domains, self.size = tables[0].vocabulary, tuple(names), size
        self.channels: int = caches[0].images.shape[1]
        self._dtype = caches[0].images.dtype
        self.digests = {table.domain: cache.digest for table, cache in zip(tables, caches, strict=True)}
        self.contents = {t.domain: content_digest(t, cache.files) for t, cache in zip(tables, caches, strict=True)}
        self.archives = {table.domain: table.archive for table in tables}
        self.keys = tuple(member.table.keys[row] for member in members for row in member.rows)
        self.rows: NDArray[np.int64] = np.concatenate([member.rows for member in members])
        self.labels: NDArray[np.int8] = np.concatenate([member.table.labels[member.rows] for member in members])
        self.present: NDArray[np.bool_] = self.labels == 1
        self.masked: NDArray[np.bool_] = np.concatenate([_masked(member) for member in members])
        self.domain: NDArray[np.int64] = np.repeat(np.arange(len(members)), sizes)
        self.original: NDArray[np.int64] = np.arange(len(self.domain))
        if pseudo_seed is not None:
            self.original %= sizes[0]
        self._members = members
        self._starts = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return len(self.domain)

    def gather(self, index: ArrayLike, *, masks: bool = False) -> Batch:
        """Gather samples in the order given.

        Args:
            index: Numbers of the samples, (B,).
            masks: Whether to give the regions of the labels, all-zero for samples without a mask.
        """
        numbers = np.array(index, dtype=np.int64)
        if numbers.ndim != 1 or (numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self)):
            raise ValueError(f"`index` must be a list of sample numbers in 0 .. {len(self) - 1}; got {numbers}.")
        domain = self.domain[numbers]
        square = (self.size, self.size)
        images = np.empty((len(numbers), self.channels, *square), dtype=self._dtype)
        regions = np.empty((len(numbers), len(self.vocabulary), *square), dtype=np.bool_) if masks else None
        for d, member in enumerate(self._members):
            of_domain = np.flatnonzero(domain == d)
            positions = numbers[of_domain] - self._starts[d]
            member.copy_images(positions, images, of_domain)
            if regions is not None:
                regions[of_domain] = member.masks(positions)
        return Batch(
            images=torch.from_numpy(images),
            labels=torch.from_numpy(self.labels[numbers]),
            domain=torch.from_numpy(domain),
            index=torch.from_numpy(numbers),
            masks=None if regions is None else torch.from_numpy(regions),
        )


def _masked(member: _Domain) -> NDArray[np.bool_]:
    masks = member.table.masks
    return np.array([masks is not None and masks[row] is not None for row in member.rows], dtype=np.bool_)


def _copy(member: _Domain, seed: int) -> _Domain:
    generator = np.random.Generator(np.random.PCG64DXSM(derive_seed("pseudo-domain", member.table.domain, seed)))
    # Drawn for the whole table: a sample's colours do not depend on which rows are in the pool.
    factors = draw_photometric(len(member.table), generator, channels=member.cache.images.shape[1])[:, member.rows]
    return replace(member, factors=factors)


def _check_tables(
    tables: Sequence[SceneTable], rows: Sequence[ArrayLike] | None, pseudo_seed: int | None
) -> list[NDArray[np.int64]]:
    """Check that the tables go together and return the rows chosen of each."""
    if not tables:
        raise ValueError("A pool needs at least one domain; got none.")
    names = [table.domain for table in tables]
    if len(set(names)) != len(names):
        raise ValueError(f"The domains of a pool must have different names; got {names}.")
    for table in tables:
        if table.vocabulary != tables[0].vocabulary:
            raise ValueError(
                f"The domains of a pool must share one vocabulary; {names[0]!r} has {tables[0].vocabulary} and "
                f"{table.domain!r} has {table.vocabulary}. Use a label map."
            )
    if pseudo_seed is not None and len(tables) != 1:
        raise ValueError(f"A photometric copy replaces a missing second domain; got the domains {names}.")
    if rows is None:
        return [np.arange(len(table)) for table in tables]
    if len(rows) != len(tables):
        raise ValueError(f"`rows` must have one entry per domain, {len(tables)}; got {len(rows)}.")
    chosen = [np.asarray(some, dtype=np.int64) for some in rows]
    for table, some in zip(tables, chosen, strict=True):
        if not some.size or some.min() < 0 or some.max() >= len(table) or len(np.unique(some)) != len(some):
            raise ValueError(
                f"`rows` of {table.domain!r} must be different rows in 0 .. {len(table) - 1}, at least one."
            )
    return chosen
