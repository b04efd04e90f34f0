"""A georeferenced scene, read window by window."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.scenes.raster import has_data_everywhere, open_raster, rasterio, readable
from ldstyle.deploy.scene.ground import metres_per_pixel
from ldstyle.deploy.scene.tiling import TileGrid

_WEB_MERCATOR = (3857, 900913)
_SAMPLE, _SAMPLES = 64, 4
"""Side in pixels of a window of a sample, and windows along a side of the scene."""


@dataclass(frozen=True)
class Scene:
    """An open raster and how its values become 8-bit RGB.

    Attributes:
        dataset: The open raster.
        bands: Numbers of the bands that the model takes, from 1; red, green and blue for a model of three.
        limits: Values that become 0 and 255; ``None`` for 8-bit rasters, whose values stay.
        fill: What stands where the scene has no data, (bands,) uint8.
    """

    dataset: Any
    bands: tuple[int, ...]
    limits: tuple[float, float] | None
    fill: NDArray[np.uint8]

    @property
    def gsd(self) -> float | None:
        """Metres per pixel; ``None`` without a reference system."""
        crs, transform = self.dataset.crs, self.dataset.transform
        if crs is None or transform.is_identity:
            return None
        x = float(np.hypot(transform.a, transform.d))
        y = float(np.hypot(transform.b, transform.e))
        latitude = (self.dataset.bounds.top + self.dataset.bounds.bottom) / 2
        unit = 1.0 if crs.is_geographic else crs.linear_units_factor[1]
        if crs.to_epsg() in _WEB_MERCATOR:  # its metres are those of the equator
            centre = (self.dataset.bounds.left + self.dataset.bounds.right) / 2
            unit *= math.cos(math.radians(rasterio().warp.transform(crs, "EPSG:4326", [centre], [latitude])[1][0]))
        return metres_per_pixel(x, y, degrees=crs.is_geographic, unit=unit, latitude=latitude)

    def read(self, grid: TileGrid, row: int, column: int, size: int) -> tuple[NDArray[np.uint8], float]:
        """Read a tile, resized to (bands, size, size), and the share of it that has data.

        What is outside the scene mirrors what is inside.
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
        pixels = np.where(valid, _to_bytes(values, self.limits), self.fill[:, None, None])
        missing = ((0, 0), (0, size - shape[0]), (0, size - shape[1]))
        return np.pad(pixels, missing, mode="symmetric"), float(valid.mean())

    def overview(self, shape: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Read the whole scene at a small size, (bands, H, W), and where it has data, (H, W)."""
        average = import_module("rasterio.enums").Resampling.average
        with readable(self.dataset):
            values = self.dataset.read(list(self.bands), out_shape=(len(self.bands), *shape), resampling=average)
            valid = self.dataset.dataset_mask(out_shape=shape) > 0
        return _to_bytes(values, self.limits), valid

    def sample(self) -> NDArray[Any]:
        """Return values of the model's bands at places all over the scene, where it has data, (N,)."""
        found = []
        for top in _starts(self.dataset.height):
            for left in _starts(self.dataset.width):
                window = (
                    (top, min(top + _SAMPLE, self.dataset.height)),
                    (left, min(left + _SAMPLE, self.dataset.width)),
                )
                with readable(self.dataset):
                    values = self.dataset.read(list(self.bands), window=window)
                    found.append(values[:, self.dataset.dataset_mask(window=window) > 0].ravel())
        values = np.concatenate(found)
        return values[~np.isnan(values)] if np.issubdtype(values.dtype, np.floating) else values

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
    """
    with open_raster(path, allow_virtual=allow_virtual, allow_remote=allow_remote) as dataset:
        colour = np.round(255 * np.asarray(fill)).astype(np.uint8)
        yield Scene(dataset, _bands(dataset, bands, len(fill)), _limits(dataset, limits), colour)


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
            f"'{dataset.name}' has values of type {kind}; the model knows 8 bits. Set --range LOW HIGH, the values "
            "that are black and white."
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
