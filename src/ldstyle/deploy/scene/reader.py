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

from ldstyle.data.loading.bands import resize_bands, scale_values, stretch
from ldstyle.data.loading.image_format import DTYPES, ImageFormat
from ldstyle.data.loading.nodata import fill
from ldstyle.data.scenes.raster import (
    ground_sampling_distance,
    has_data_everywhere,
    open_raster,
    readable,
    sample_windows,
)
from ldstyle.deploy.scene.tiles import TileGrid

_FINEST = 4
"""Most pixels along a tile for each pixel of the model's images."""


@dataclass(frozen=True)
class Scene:
    """An open raster and how its values become images for a model.

    Attributes:
        dataset: The open raster.
        bands: Numbers of the bands that the model takes, from 1; red, green and blue for a model of three.
        limits: Values that become 0 and 255; ``None`` for 8-bit rasters, whose values stay.
        image_format: Bands and range of images that are not 8-bit RGB; ``limits`` are then not used.
    """

    dataset: Any
    bands: tuple[int, ...]
    limits: tuple[float, float] | None
    image_format: ImageFormat | None = None

    @property
    def gsd(self) -> float | None:
        """Metres per pixel; ``None`` without a reference system."""
        found = self.dataset
        return ground_sampling_distance(found.crs, found.transform, found.height, found.width)

    def read(self, grid: TileGrid, row: int, column: int, size: int) -> tuple[NDArray[Any], float]:
        """Read a tile, resized to (bands, size, size), and the fraction of it that has data.

        Pixels outside the scene mirror those inside. As in training, pixels without data get the mean of the others,
        and values of a stated format are clipped to their range before they are resized: a cloud far above it would
        otherwise brighten its neighbours.
        """
        top, left = grid.start(row, column)
        height, width = min(grid.tile, grid.height - top), min(grid.tile, grid.width - left)
        window = import_module("rasterio.windows").Window(left, top, width, height)
        # GDAL reduces larger tiles first, so that memory stays bounded.
        side = size if self.image_format is None else min(grid.tile, _FINEST * size)
        shape = (_scaled(height, side, grid.tile), _scaled(width, side, grid.tile))
        how = "bilinear" if shape != (height, width) else "nearest"
        values, valid = self._read(self.bands, shape, how, window=window)
        pixels = fill(self._scaled(values), valid)
        padded = np.pad(pixels, ((0, 0), (0, side - shape[0]), (0, side - shape[1])), mode="symmetric")
        return resize_bands(padded, size), float(valid.mean())

    def overview(self, shape: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Read the whole scene at a small size, (bands, H, W), and where it has data, (H, W).

        Bands of a stated format are those that pictures show, stretched.
        """
        bands = self.bands if self.image_format is None else self.image_format.shown
        values, valid = self._read(bands, shape, "average")
        if self.image_format is not None:
            return stretch(np.where(valid, values.astype(np.float32), np.float32("nan"))), valid
        return _to_bytes(values, self.limits), valid

    def _read(
        self, bands: Sequence[int], shape: tuple[int, int], resampling: str, *, window: Any = None
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Read values of bands, (bands, H, W), and where they are data, (H, W); NaN is not, and becomes 0."""
        how = import_module("rasterio.enums").Resampling[resampling]
        with readable(self.dataset):
            values = self.dataset.read(list(bands), window=window, out_shape=(len(bands), *shape), resampling=how)
            valid = self._mask(shape, window)
        if values.dtype.kind == "f":
            valid &= ~np.isnan(values).any(axis=0)
            values[:, ~valid] = 0
        return values, valid

    def _mask(self, shape: tuple[int, int], window: Any) -> NDArray[np.bool_]:
        """Return where the scene states that there are data."""
        if has_data_everywhere(self.dataset, self.bands):
            return np.ones(shape, dtype=np.bool_)
        return np.asarray(self.dataset.dataset_mask(window=window, out_shape=shape) > 0)

    def _scaled(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring values of the model's bands, (bands, ...), to the range of its images."""
        if self.image_format is None:
            return _to_bytes(values, self.limits)
        return scale_values(values, self.image_format)

    def sample(self) -> NDArray[Any]:
        """Return values of the model's bands at pixels all over the scene that have data, (bands, N)."""
        found = []
        for (top, bottom), (left, right) in sample_windows(self.dataset):
            window = ((top, bottom), (left, right))
            values, valid = self._read(self.bands, (bottom - top, right - left), "nearest", window=window)
            found.append(values[:, valid])
        return np.concatenate(found, axis=1)

    def cells_with_data(self, grid: TileGrid, row: int) -> NDArray[np.bool_]:
        """Return which cells of a row of cells have any data, (columns,)."""
        columns = grid.cells[1]
        numbers = self.dataset.dtypes[0].startswith("float")  # of which some may be NaN
        if has_data_everywhere(self.dataset, self.bands) and not numbers:
            return np.ones(columns, dtype=np.bool_)
        top = row * grid.stride
        shape = (min(grid.stride, grid.height - top), grid.width)
        window = ((top, top + shape[0]), (0, grid.width))
        with readable(self.dataset):
            valid = self._mask(shape, window)
            for band in self.bands if numbers else ():  # one by one: a row of cells may be long
                valid &= ~np.isnan(self.dataset.read(band, window=window))
        padded = np.pad(valid.any(axis=0), (0, columns * grid.stride - grid.width))
        return np.asarray(padded.reshape(columns, grid.stride).any(axis=1))


@contextmanager
def open_scene(
    path: Path | str,
    *,
    bands: Sequence[int] | None,
    limits: tuple[float, float] | None,
    number: int,
    allow_virtual: bool = False,
    allow_remote: bool = False,
    image_format: ImageFormat | None = None,
) -> Iterator[Scene]:
    """Open a raster for reading in little memory.

    Args:
        path: A GeoTIFF, PNG, JPEG or JPEG 2000 file, or an address that GDAL understands.
        bands: Bands that the model takes; by default the first ones, or the only one.
        limits: Values that become 0 and 255; needed unless the raster is of 8 bits.
        number: How many bands the model takes.
        allow_virtual: Open any format that GDAL reads. A virtual raster (VRT, WMS) reads every file and address that it
            names.
        allow_remote: Open addresses.
        image_format: Bands and range of the model's images; ``None`` for 8-bit RGB. ``bands`` and ``limits`` take
            precedence.
    """
    with open_raster(path, allow_virtual=allow_virtual, allow_remote=allow_remote) as dataset:
        found = None if image_format is None else _scene_format(dataset, image_format, bands, limits)
        if found is None:
            yield Scene(dataset, _bands(dataset, bands, number), _limits(dataset, limits))
        else:
            yield Scene(dataset, found.bands, None, found)


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
    # Scaling converts every type to float32.
    dtype = kind if kind in DTYPES else "float32"
    return replace(trained, bands=chosen, count=dataset.count, dtype=dtype, limits=pairs)


def _bands(dataset: Any, bands: Sequence[int] | None, number: int) -> tuple[int, ...]:
    """Return the bands for a model of this many."""
    rgb = number == 3
    if rgb and bands is None and dataset.count == 2 and dataset.colorinterp[1].name != "alpha":
        raise ValueError(
            f"'{dataset.name}' has 2 bands, which are neither RGB nor grey with alpha. Set --bands R G B, for example "
            "--bands 1 1 1 to map the first one as grey."
        )
    if rgb and bands is None and dataset.colorinterp[0].name == "palette":
        raise ValueError(
            f"'{dataset.name}' has a palette, so its values are numbers of colours. Store the colours, e.g. with "
            "`gdal_translate -expand rgb`."
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


def _scaled(pixels: int, size: int, tile: int) -> int:
    return max(1, round(pixels * size / tile))


def _to_bytes(values: NDArray[Any], limits: tuple[float, float] | None) -> NDArray[np.uint8]:
    if limits is None:
        return values.astype(np.uint8, copy=False)
    low, high = limits
    scaled = (values.astype(np.float32) - low) * (255 / (high - low))
    return np.clip(np.round(scaled), 0, 255).astype(np.uint8)
