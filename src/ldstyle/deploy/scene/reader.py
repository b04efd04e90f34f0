"""A georeferenced scene, read window by window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.loading.bands import scale_values, stretch
from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.data.scenes.raster import ground_sampling_distance, has_data_everywhere, open_raster, readable
from ldstyle.deploy.scene.tiles import TileGrid

_SAMPLE, _SAMPLES = 64, 4
"""Side in pixels of a window of a sample, and windows along a side of the scene."""


@dataclass(frozen=True)
class Scene:
    """An open raster and how its values become images for a model.

    Attributes:
        dataset: The open raster.
        bands: Numbers of the bands that the model takes, from 1; red, green and blue for a model of three.
        limits: Values that become 0 and 255; ``None`` for 8-bit rasters, whose values stay.
        fill: Values for pixels without data, (bands,), of the type of the images.
        image_format: Bands and range of images that are not 8-bit RGB; ``limits`` are then not used.
    """

    dataset: Any
    bands: tuple[int, ...]
    limits: tuple[float, float] | None
    fill: NDArray[Any]
    image_format: ImageFormat | None = None

    @property
    def gsd(self) -> float | None:
        """Metres per pixel; ``None`` without a reference system."""
        found = self.dataset
        return ground_sampling_distance(found.crs, found.transform, found.height, found.width)

    def read(self, grid: TileGrid, row: int, column: int, size: int) -> tuple[NDArray[Any], float]:
        """Read a tile, resized to (bands, size, size), and the fraction of it that has data.

        Pixels outside the scene mirror those inside.
        """
        windows, enums = import_module("rasterio.windows"), import_module("rasterio.enums")
        top, left = grid.start(row, column)
        height, width = min(grid.tile, grid.height - top), min(grid.tile, grid.width - left)
        window = windows.Window(left, top, width, height)
        shape = (_scaled(height, size, grid.tile), _scaled(width, size, grid.tile))
        how = enums.Resampling.bilinear if shape != (height, width) else enums.Resampling.nearest
        with readable(self.dataset):
            values = self.dataset.read(
                list(self.bands), window=window, out_shape=(len(self.bands), *shape), resampling=how
            )
            valid = self.dataset.dataset_mask(window=window, out_shape=shape) > 0
        pixels = np.where(valid, self._scaled(values), self.fill[:, None, None])
        missing = ((0, 0), (0, size - shape[0]), (0, size - shape[1]))
        return np.pad(pixels, missing, mode="symmetric"), float(valid.mean())

    def overview(self, shape: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Read the whole scene at a small size, (bands, H, W), and where it has data, (H, W).

        Bands of a stated format are those that pictures show, stretched.
        """
        average = import_module("rasterio.enums").Resampling.average
        bands = self.bands if self.image_format is None else self.image_format.shown
        with readable(self.dataset):
            values = self.dataset.read(list(bands), out_shape=(len(bands), *shape), resampling=average)
            valid = self.dataset.dataset_mask(out_shape=shape) > 0
        if self.image_format is not None:
            return stretch(np.where(valid, values.astype(np.float32), np.float32("nan"))), valid
        return _to_bytes(values, self.limits), valid

    def _scaled(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring values of the model's bands, (bands, ...), to the range of its images."""
        if self.image_format is None:
            return _to_bytes(values, self.limits)
        if values.dtype.kind == "f":
            low = np.array([low for low, _ in self.image_format.limits], dtype=values.dtype)
            values = np.where(np.isnan(values), low[:, None, None], values)
        return scale_values(values, self.image_format)

    def sample(self) -> NDArray[Any]:
        """Return values of the model's bands at pixels all over the scene that have data, (bands, N)."""
        found = []
        for top in _starts(self.dataset.height):
            for left in _starts(self.dataset.width):
                window = (
                    (top, min(top + _SAMPLE, self.dataset.height)),
                    (left, min(left + _SAMPLE, self.dataset.width)),
                )
                with readable(self.dataset):
                    values = self.dataset.read(list(self.bands), window=window)
                    found.append(values[:, self.dataset.dataset_mask(window=window) > 0])
        values = np.concatenate(found, axis=1)
        return values[:, ~np.isnan(values).any(axis=0)] if np.issubdtype(values.dtype, np.floating) else values

    def cells_with_data(self, grid: TileGrid, row: int) -> NDArray[np.bool_]:
        """Return which cells of a row of cells have any data, (columns,)."""
        columns = grid.cells[1]
        if has_data_everywhere(self.dataset):
            return np.ones(columns, dtype=np.bool_)
        top = row * grid.stride
        window = ((top, min(top + grid.stride, grid.height)), (0, grid.width))
        with readable(self.dataset):
            valid = (self.dataset.dataset_mask(window=window) > 0).any(axis=0)
        padded = np.pad(valid, (0, columns * grid.stride - grid.width))
        return np.asarray(padded.reshape(columns, grid.stride).any(axis=1))


@contextmanager
def open_scene(
    path: Path | str,
    *,
    bands: Sequence[int] | None,
    limits: tuple[float, float] | None,
    fill: Sequence[float],
    allow_virtual: bool = False,
    allow_remote: bool = False,
    image_format: ImageFormat | None = None,
) -> Iterator[Scene]:
    """Open a raster for reading in little memory.

    Args:
        path: A GeoTIFF, PNG, JPEG or JPEG 2000 file, or an address that GDAL understands.
        bands: Bands that the model takes; by default the first ones, or the only one.
        limits: Values that become 0 and 255; needed unless the raster is of 8 bits.
        fill: Colour in [0, 1] of locations without data, such as the mean the model subtracts.
        allow_virtual: Open any format that GDAL reads. A virtual raster (VRT, WMS) reads every file and address that it
            names.
        allow_remote: Open addresses.
        image_format: Bands and range of the model's images; ``None`` for 8-bit RGB. ``bands`` and ``limits`` take
            precedence.
    """
    with open_raster(path, allow_virtual=allow_virtual, allow_remote=allow_remote) as dataset:
        if image_format is None:
            colour = np.round(255 * np.asarray(fill)).astype(np.uint8)
            yield Scene(dataset, _bands(dataset, bands, len(fill)), _limits(dataset, limits), colour)
            return
        found = _scene_format(dataset, image_format, bands, limits)
        kind = np.dtype(found.stored)
        colour = np.round(np.iinfo(kind).max * np.clip(fill, 0, 1)).astype(kind)
        yield Scene(dataset, found.bands, None, colour, found)


def _scene_format(
    dataset: Any, trained: ImageFormat, bands: Sequence[int] | None, limits: tuple[float, float] | None
) -> ImageFormat:
    """Return how a scene becomes images of the format that a model was trained on."""
    if bands is None and dataset.count != trained.count:
        few = dataset.count < len(trained.bands)
        way_out = f"Map a scene with all {len(trained.bands)}" if few else "Set --bands, their numbers in the scene"
        raise ValueError(
            f"'{dataset.name}' has {dataset.count} bands, the training images had {trained.count}, and the model takes "
            f"{', '.join(trained.names)}. {way_out}."
        )
    kind = dataset.dtypes[0]
    if limits is None and not trained.takes(kind):
        raise ValueError(
            f"'{dataset.name}' has values of type {kind}, the training images had {trained.dtype}. Set --range LOW "
            "HIGH, the lowest and the highest value."
        )
    chosen = _bands(dataset, bands or trained.bands, len(trained.bands))
    pairs = trained.limits if limits is None else (_limits(dataset, limits) or limits,) * len(chosen)
    return replace(trained, bands=chosen, count=dataset.count, dtype=kind, limits=pairs)


def _bands(dataset: Any, bands: Sequence[int] | None, number: int) -> tuple[int, ...]:
    """Return the bands for a model of this many."""
    rgb = number == 3
    if rgb and bands is None and dataset.count == 2 and dataset.colorinterp[1].name != "alpha":
        raise ValueError(
            f"'{dataset.name}' has 2 bands, which are neither RGB nor grey with alpha. Set --bands R G B, for example "
            "--bands 1 1 1 to map the first one as grey."
        )
    if rgb and bands is None and dataset.count < 3:
        return (1, 1, 1)
    chosen = tuple(range(1, number + 1)) if bands is None else tuple(bands)
    if len(chosen) != number or not all(1 <= band <= dataset.count for band in chosen):
        raise ValueError(
            f"--bands must be {'three' if rgb else number} numbers in 1 .. {dataset.count}; got {list(chosen)}."
        )
    return chosen


def _limits(dataset: Any, limits: tuple[float, float] | None) -> tuple[float, float] | None:
    kind = dataset.dtypes[0]
    if limits is None and kind != "uint8":
        raise ValueError(
            f"'{dataset.name}' has values of type {kind}; the model expects 8 bits. Set --range LOW HIGH, the "
            "values that become 0 and 255."
        )
    if limits is not None and not limits[0] < limits[1]:
        raise ValueError(f"--range must be two rising numbers; got {limits[0]:g} {limits[1]:g}.")
    return limits


def _starts(length: int) -> list[int]:
    """Return where the windows of a sample begin along an axis."""
    last = max(0, length - _SAMPLE)
    return sorted({last * i // (_SAMPLES - 1) for i in range(_SAMPLES)})


def _scaled(pixels: int, size: int, tile: int) -> int:
    return max(1, round(pixels * size / tile))


def _to_bytes(values: NDArray[Any], limits: tuple[float, float] | None) -> NDArray[np.uint8]:
    if limits is None:
        return values.astype(np.uint8, copy=False)
    low, high = limits
    scaled = (np.nan_to_num(values.astype(np.float32), nan=low) - low) * (255 / (high - low))
    return np.clip(np.round(scaled), 0, 255).astype(np.uint8)
