"""Tiles of a scene: their positions and spatial blocks, and one run of them read, labelled and written."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ldstyle.data.scenes.labels import LabelSource, SceneLabels, Window, open_labels
from ldstyle.data.scenes.raster import (
    ground_sampling_distance,
    has_data_everywhere,
    open_raster,
    rasterio,
    readable,
    shifted,
)
from ldstyle.data.scenes.tile_folder import IMAGES, MASKS, TileRow, put


@dataclass(frozen=True)
class Position:
    """A tile along one axis.

    Attributes:
        offset: First pixel.
        block: Number of its block.
    """

    offset: int
    block: int


@dataclass(frozen=True)
class BlockGrid:
    """Square tiles in square blocks, with a gap between the blocks.

    Tiles are a stride apart and entirely inside the scene. Tiles closer to the previous block than the gap are omitted,
    so no pixel, and with a gap of a tile no pair of neighbours, is in two blocks.

    Attributes:
        size: Side of a tile in pixels.
        stride: Pixels from a tile to the next.
        block: Tiles along the side of a block.
        gap: Least pixels between the tiles of two blocks.
    """

    size: int
    stride: int
    block: int
    gap: int

    def __post_init__(self) -> None:
        for name in ("size", "stride", "block"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1; got {getattr(self, name)}.")
        if self.gap < 0:
            raise ValueError(f"--gap must be at least 0; got {self.gap}.")

    @property
    def pitch(self) -> int:
        """Strides from the first tile of a block to that of the next."""
        return self.block - 1 + max(1, -(-(self.size + self.gap) // self.stride))

    def along(self, length: int) -> list[Position]:
        """Return the tiles along an axis of this many pixels."""
        numbered = (divmod(number, self.pitch) for number in range((length - self.size) // self.stride + 1))
        return [
            Position((block * self.pitch + inside) * self.stride, block)
            for block, inside in numbered
            if inside < self.block
        ]


def chunks(tiles: list[Position], most: int) -> Iterator[list[Position]]:
    """Cut the tiles of a row into runs that are read at once.

    Args:
        tiles: Tiles along the row.
        most: Most pixels from the first to the last of a run, unless one tile has more.
    """
    run: list[Position] = []
    for tile in tiles:
        if run and tile.offset - run[0].offset >= most:
            yield run
            run = []
        run.append(tile)
    if run:
        yield run


@dataclass(frozen=True)
class TileRules:
    """When a tile is kept, and which labels it has.

    Attributes:
        present: A label that covers at least this fraction of a tile's data is present.
        absent: A label that covers at most this fraction is absent; between the two it is unknown.
        min_valid: A tile is written if at least this fraction of it has data.
    """

    present: float = 0.01
    absent: float = 0.001
    min_valid: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.absent < self.present <= 1:
            raise ValueError(f"--absent and --present must rise from 0 to 1; got {self.absent:g} and {self.present:g}.")
        if not 0 < self.min_valid <= 1:
            raise ValueError(f"--min-valid must be above 0 and at most 1; got {self.min_valid:g}.")

    def judge(self, covered: NDArray[np.float64], unknown: float) -> tuple[int, ...]:
        """Return 1, 0, or -1 where unknown, for each label.

        Args:
            covered: Fraction of the tile that each label covers, (L,).
            unknown: Fraction in which nothing is annotated; labels might be there.
        """
        judged = np.where(covered >= self.present, 1, np.where(covered + unknown <= self.absent, 0, -1))
        return tuple(int(value) for value in judged)


@dataclass(frozen=True)
class CutJob:
    """What all runs of tiles have in common.

    Attributes:
        scenes: The scenes.
        stems: A name for each, different from the others.
        domains: Domain of each.
        labels: Where the labels come from.
        vocabulary: The labels.
        size: Side of a tile in pixels.
        rules: When a tile is kept, and which labels it has.
        out: Folder to write to.
        masks: Whether masks are written.
        allow_virtual: Whether scenes of any format are opened.
    """

    scenes: tuple[Path, ...]
    stems: tuple[str, ...]
    domains: tuple[str, ...]
    labels: LabelSource
    vocabulary: tuple[str, ...]
    size: int
    rules: TileRules
    out: Path
    masks: bool
    allow_virtual: bool


@dataclass(frozen=True)
class Run:
    """Tiles of one row that are read at once.

    Attributes:
        scene: Number of the scene.
        row: Where the row is.
        columns: Where the tiles are in it.
    """

    scene: int
    row: Position
    columns: tuple[Position, ...]


class Cutter:
    """Cuts runs of tiles; the scene of the last one stays open.

    Args:
        job: What to cut.
    """

    def __init__(self, job: CutJob) -> None:
        self.job = job
        self._stack = ExitStack()
        self._number: int | None = None
        self._scene: Any = None
        self._nodata: float | None = None
        self._labels: SceneLabels | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._number = None

    def cut(self, run: Run) -> list[TileRow]:
        """Write the tiles of a run that have enough data, and return their rows."""
        self._open(run.scene)
        assert self._labels is not None
        job, size = self.job, self.job.size
        left = run.columns[0].offset
        window = Window(run.row.offset, left, size, run.columns[-1].offset + size - left)
        pixels, valid = self._read(window)
        enough = job.rules.min_valid * size * size
        parts = [(tile, slice(tile.offset - left, tile.offset - left + size)) for tile in run.columns]
        parts = [(tile, part) for tile, part in parts if np.count_nonzero(valid[:, part]) >= enough]
        if not parts:
            return []
        regions, annotated = self._labels.regions(window)
        regions &= valid
        bits = np.packbits(regions, axis=0, bitorder="little")[0] if job.masks else None  # (H, W)
        rows = []
        for tile, part in parts:
            known = np.count_nonzero(valid[:, part])
            unknown = 0 if annotated is None else np.count_nonzero(valid[:, part] & ~annotated[:, part])
            covered = np.count_nonzero(regions[:, :, part], axis=(1, 2)) / known
            name = f"{job.stems[run.scene]}_{run.row.offset:06d}_{tile.offset:06d}"
            place = shifted(self._scene.transform, top=run.row.offset, left=tile.offset)
            sizes = [self._put(f"{IMAGES}/{name}.tif", self._encode(pixels[:, :, part], place))]
            if bits is not None:
                sizes.append(self._put(f"{MASKS}/{name}.png", _png(bits[:, part])))
            scene = f"{job.stems[run.scene]}-{run.row.block}-{tile.block}"
            labels = job.rules.judge(covered, unknown / known)
            gsd = ground_sampling_distance(self._scene.crs, place, size, size)
            rows.append(TileRow(name, tuple(sizes), scene, job.domains[run.scene], labels, gsd))
        return rows

    def _open(self, number: int) -> None:
        if number == self._number:
            return
        self.__exit__()
        job = self.job
        self._scene = self._stack.enter_context(open_raster(job.scenes[number], allow_virtual=job.allow_virtual))
        self._nodata = _nodata_of(self._scene)
        self._labels = self._stack.enter_context(open_labels(job.labels, number, self._scene, job.vocabulary))
        self._number = number

    def _read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Read the pixels of a window, (bands, H, W), and where there are data, (H, W)."""
        part = import_module("rasterio.windows").Window(window.left, window.top, window.width, window.height)
        scene = self._scene
        with readable(scene):
            pixels = scene.read(window=part)
            valid = np.ones(pixels.shape[1:], dtype=np.bool_)
            if not has_data_everywhere(scene):
                valid = scene.dataset_mask(window=part) > 0
        if scene.nodata is None and not valid.all():
            # A tile has no internal mask: image readers treat it as a second page.
            pixels[:, ~valid] = self._nodata
        if pixels.dtype.kind == "f":
            valid &= ~np.isnan(pixels).any(axis=0)
        return pixels, valid

    def _encode(self, pixels: NDArray[Any], place: Any) -> bytes:
        """Return a tile as GeoTIFF, in memory: GDAL reports a full disk too late."""
        scene, library = self._scene, rasterio()
        kind = pixels.dtype
        profile = {
            "driver": "GTiff",
            "count": scene.count,
            "dtype": kind,
            "height": self.job.size,
            "width": self.job.size,
            "nodata": self._nodata,
            "crs": scene.crs,
            "transform": place,
            "blockysize": self.job.size,
            "interleave": "pixel",
            # The fastest level: higher ones take twice the time and save a few percent.
            "compress": "deflate",
            "zlevel": 1,
            "predictor": 3 if kind.kind == "f" else 2,
        }
        with library.io.MemoryFile() as memory:
            with memory.open(**profile) as tile:
                tile.colorinterp = scene.colorinterp
                if any(scene.descriptions):
                    tile.descriptions = scene.descriptions
                if set(scene.scales) != {1.0} or set(scene.offsets) != {0.0}:
                    tile.scales, tile.offsets = scene.scales, scene.offsets
                if scene.colorinterp[0].name == "palette":
                    tile.write_colormap(1, scene.colormap(1))
                tile.write(pixels)
            return bytes(memory.getbuffer())

    def _put(self, name: str, content: bytes) -> int:
        put(self.job.out / name, content)
        return len(content)


def _nodata_of(scene: Any) -> float | None:
    """Return the value of pixels without data in the tiles of a scene; a mask or an alpha band becomes one."""
    if scene.nodata is not None or has_data_everywhere(scene):
        stated: float | None = scene.nodata
        return stated
    kind = np.dtype(scene.dtypes[0])
    return float("nan") if kind.kind == "f" else float(np.iinfo(kind).min)


def _png(bits: NDArray[np.uint8]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(bits).save(content, "PNG", compress_level=1)
    return content.getvalue()
