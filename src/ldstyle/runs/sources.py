"""The data of a run: the source domains, their splits, and a pool for each part. No target is ever opened."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from ldstyle.data.domains.archives import ARCHIVES
from ldstyle.data.domains.csv import LabelColumns
from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.domains.scene_table import Progress, SceneTable
from ldstyle.data.loading.bands import find_format, image_extent
from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.data.loading.pool import Pool
from ldstyle.data.loading.splits import Split, split_domain
from ldstyle.runs.backbone import Preprocessing
from ldstyle.runs.config import DataConfig

MEASURED = 2000
"""Most images of a domain that mean and standard deviation are measured on."""
LEAST_SPREAD = 1e-4
"""Least standard deviation of a band, as a fraction of its range, that images are divided by."""

_CHUNK = 32


@dataclass(frozen=True, eq=False)
class SourceData:
    """The data of a run.

    Attributes:
        splits: Parts of each source domain.
        train: Training samples of all sources, and of the pseudo-domain if there is one.
        validation: Validation samples of the sources.
        test: Test samples of the sources; opened at the end.
        train_at: Returns the training samples at another image side in pixels.
        tables: The source domains.
        image_format: Bands and range of the images; ``None`` for 8-bit RGB.
    """

    splits: tuple[Split, ...]
    train: Pool
    validation: Pool
    test: Pool
    train_at: Callable[[int], Pool]
    tables: tuple[SceneTable, ...]
    image_format: ImageFormat | None = None

    @cached_property
    def measured(self) -> Preprocessing | None:
        """Mean and standard deviation of each band over the training images; ``None`` for 8-bit RGB."""
        return None if self.image_format is None else measure_channels(self.train)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The label names."""
        return self.train.vocabulary

    @cached_property
    def untrained_labels(self) -> tuple[str, ...]:
        """Labels that no training sample has an annotation of; nothing can be learned or predicted for them."""
        unknown = (self.train.labels < 0).all(axis=0)
        return tuple(self.vocabulary[label] for label in np.flatnonzero(unknown))

    @cached_property
    def gsd(self) -> dict[str, tuple[float, float]]:
        """Least and largest metres per pixel of the training images as they are trained on, of each source known."""
        sides = {s.domain: ground_sides(t, s.train) for t, s in zip(self.tables, self.splits, strict=True)}
        size = self.train.size
        return {name: (side[0] / size, side[1] / size) for name, side in sides.items() if side is not None}

    @property
    def digests(self) -> dict[str, str]:
        """Data of the run, by domain: its decoded images, the content of its files and labels, its split."""
        pool = self.train
        return {s.domain: f"{pool.digests[s.domain]}/{pool.contents[s.domain]}/{s.digest}" for s in self.splits}


def read_tables(
    config: DataConfig,
    names: Sequence[str],
    *,
    root: Path | None = None,
    vocabulary: Sequence[str] | None = None,
    require_images: bool = True,
) -> tuple[SceneTable, ...]:
    """Read domains with the settings of a run.

    Args:
        config: The settings.
        names: The domains.
        root: Data folder, if it is not that of the settings.
        vocabulary: Label names to read into; a label map brings its own.
        require_images: Whether a row without an image is a problem.
    """
    mapping = None if config.mapping is None else Path(config.mapping).expanduser()
    return read_domains(
        root or Path(config.root).expanduser(),
        names,
        sea=config.sea,
        mapping=mapping,
        vocabulary=vocabulary if mapping is None else None,
        columns=LabelColumns(config.labels, config.ignore),
        require_images=require_images,
    )


def open_sources(config: DataConfig, *, seed: int, progress: Progress | None = None) -> SourceData:
    """Read, split and cache the source domains.

    Args:
        config: Which domains, and from where.
        seed: Seed of the splits, shared by all methods.
        progress: Called as caches are built.
    """
    tables = read_tables(config, config.sources)
    splits = tuple(split_domain(table, seed=seed) for table in tables)
    cache_dir = Path(config.cache_dir).expanduser()

    found = find_format(config.bands, config.range, tables, [split.train for split in splits], progress=progress)

    def pool(part: str, size: int = config.size, pseudo_seed: int | None = None) -> Pool:
        rows = [getattr(split, part) for split in splits]
        return Pool(
            tables,
            rows,
            size=size,
            cache_dir=cache_dir,
            pseudo_seed=pseudo_seed,
            progress=progress,
            image_format=found,
        )

    def train_at(size: int) -> Pool:
        return pool("train", size, seed if config.pseudo_domain else None)

    return SourceData(splits, train_at(config.size), pool("validation"), pool("test"), train_at, tables, found)


def measure_channels(pool: Pool) -> Preprocessing:
    """Measure mean and standard deviation of each band, values in [0, 1], without photometric copies.

    Of a domain with many images, some that are evenly spaced are measured.
    """
    originals = np.flatnonzero(pool.original == np.arange(len(pool)))
    count, total, squares = 0, np.zeros(pool.channels), np.zeros(pool.channels)
    for domain in np.unique(pool.domain[originals]):
        rows = originals[pool.domain[originals] == domain]
        chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), MEASURED)).astype(np.int64)]
        for start in range(0, len(chosen), _CHUNK):
            images = pool.gather(chosen[start : start + _CHUNK]).images.numpy()
            values = images.astype(np.float64) / np.iinfo(images.dtype).max
            count += values[:, 0].size
            total += values.sum(axis=(0, 2, 3))
            squares += (values**2).sum(axis=(0, 2, 3))
    mean = total / count
    spread = np.sqrt(np.maximum(squares / count - mean**2, 0))
    # A band that hardly varies carries no information, and would be amplified to noise.
    return Preprocessing(tuple(mean.tolist()), tuple(np.where(spread < LEAST_SPREAD, 1.0, spread).tolist()))


def ground_sides(table: SceneTable, rows: ArrayLike) -> tuple[float, float] | None:
    """Return the shortest and the longest side of images on the ground in metres, or ``None`` if it is not known.

    A custom table states it by its column ``gsd``, images of other than square shape by the side of a square of their
    area; rows that leave it blank are left out. For an official download it is that of its release, whatever size its
    files were brought to.

    Args:
        table: The domain.
        rows: Rows of the images.
    """
    if table.archive is not None:
        return ARCHIVES[table.archive].ground
    chosen = table.select(rows)
    sides = [
        value * math.sqrt(math.prod(image_extent(chosen.path(row))))
        for row, value in enumerate(chosen.gsd or ())
        if value is not None
    ]
    return (min(sides), max(sides)) if sides else None
