"""A georeferenced scene, read window by window."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.deploy.scene.ground import metres_per_pixel
from ldstyle.deploy.scene.tiling import TileGrid

CACHE_MB = 32
"""Most memory for blocks of the raster that were read already."""
DRIVERS = {
    b"II*\0": "GTiff",
    b"MM\0*": "GTiff",
    b"II+\0": "GTiff",
    b"MM\0+": "GTiff",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"\0\0\0\x0cjP": "JP2OpenJPEG",
    b"\xffO\xffQ": "JP2OpenJPEG",
}
"""First bytes of the formats that are read, and the driver of GDAL for each; all others may lead to other files."""

_SIDE_FILES = (".ovr", ".msk")


def rasterio() -> Any:
    """Import rasterio, or say how to get it."""
    try:
        for part in ("features", "shutil", "warp", "windows"):
            import_module(f"rasterio.{part}")
        return import_module("rasterio")
    except ImportError as error:
        raise ValueError(
            "Maps need the extra `geo`, which is not installed. Run `pip install ldstyle[geo]`."
        ) from error


@dataclass(frozen=True)
class Scene:
    """An open raster and how its values become 8-bit RGB.

    Attributes:
        dataset: The open raster.
        bands: Numbers of the bands for red, green and blue, from 1.
        limits: Values that become 0 and 255; ``None`` for 8-bit rasters, whose values stay.
        fill: What stands where the scene has no data, (3,) uint8.
    """

    dataset: Any
    bands: tuple[int, int, int]
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
        return metres_per_pixel(x, y, degrees=crs.is_geographic, unit=unit, latitude=latitude)

    def read(self, grid: TileGrid, row: int, column: int, size: int) -> tuple[NDArray[np.uint8], float]:
        """Read a tile, resized to (3, size, size), and the share of it that has data.

        What is outside the scene mirrors what is inside.
        """
        windows, enums = import_module("rasterio.windows"), import_module("rasterio.enums")
        top, left = grid.start(row, column)
        height, width = min(grid.tile, grid.height - top), min(grid.tile, grid.width - left)
        window = windows.Window(left, top, width, height)
        shape = (_scaled(height, size, grid.tile), _scaled(width, size, grid.tile))
        how = enums.Resampling.bilinear if shape != (height, width) else enums.Resampling.nearest
        with self._readable():
            values = self.dataset.read(list(self.bands), window=window, out_shape=(3, *shape), resampling=how)
            valid = self.dataset.dataset_mask(window=window, out_shape=shape) > 0
        pixels = np.where(valid, _to_bytes(values, self.limits), self.fill[:, None, None])
        missing = ((0, 0), (0, size - shape[0]), (0, size - shape[1]))
        return np.pad(pixels, missing, mode="symmetric"), float(valid.mean())

    def cells_with_data(self, grid: TileGrid, row: int) -> NDArray[np.bool_]:
        """Return which cells of a row of cells have any data, (columns,)."""
        columns = grid.cells[1]
        if all(
            flags == [import_module("rasterio.enums").MaskFlags.all_valid] for flags in self.dataset.mask_flag_enums
        ):
            return np.ones(columns, dtype=np.bool_)
        top = row * grid.stride
        window = ((top, min(top + grid.stride, grid.height)), (0, grid.width))
        with self._readable():
            valid = (self.dataset.dataset_mask(window=window) > 0).any(axis=0)
        padded = np.pad(valid, (0, columns * grid.stride - grid.width))
        return np.asarray(padded.reshape(columns, grid.stride).any(axis=1))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Name the scene where a part of it cannot be read."""
        try:
            yield
        except (rasterio().errors.RasterioIOError, MemoryError) as error:
            reason = error.__cause__ or error.__context__ or error
            raise ValueError(
                f"'{self.dataset.name}' of {self.dataset.width} x {self.dataset.height} px cannot be read: {reason}. "
                "It is damaged or incomplete, or too large for the memory; copy it again."
            ) from error


@contextmanager
def open_scene(
    path: Path,
    *,
    bands: Sequence[int] | None,
    limits: tuple[float, float] | None,
    fill: Sequence[float],
    allow_virtual: bool = False,
) -> Iterator[Scene]:
    """Open a raster for reading in little memory.

    Args:
        path: A GeoTIFF, PNG, JPEG or JPEG 2000 file.
        bands: Bands for red, green and blue; by default the first three, or the only one.
        limits: Values that become 0 and 255; needed unless the raster is of 8 bits.
        fill: Colour in [0, 1] of locations without data, such as the mean the model subtracts.
        allow_virtual: Open any format that GDAL reads. A virtual raster (VRT, WMS) reads every file and address that it
            names.
    """
    library = rasterio()
    if not path.is_file():
        raise FileNotFoundError(f"The scene '{path}' is not a file.")
    with library.Env(GDAL_CACHEMAX=CACHE_MB), warnings.catch_warnings():
        warnings.simplefilter("ignore", library.errors.NotGeoreferencedWarning)
        driver = None if allow_virtual else _driver(path)
        try:
            dataset = library.open(path, driver=driver)
        except library.errors.RasterioIOError as error:
            raise ValueError(f"'{path}' must be a raster; it cannot be opened: {error}.") from error
        with dataset:
            colour = np.round(255 * np.asarray(fill)).astype(np.uint8)
            yield Scene(dataset, _bands(dataset, bands), _limits(dataset, limits), colour)


def _driver(path: Path) -> str:
    """Choose the driver by the first bytes, and refuse a raster that leads, itself or by a side file, to others."""
    aux = path.with_name(f"{path.name}.aux.xml")
    if aux.is_file() and b"OVERVIEW_FILE" in aux.read_bytes():
        raise ValueError(f"'{aux}' names another raster. Remove it, or allow it with --allow-virtual if you trust it.")
    for side in (path.with_name(path.name + suffix) for suffix in _SIDE_FILES):
        if side.is_file():
            _known_driver(side)
    return _known_driver(path)


def _known_driver(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(8)
    for first, driver in DRIVERS.items():
        if start.startswith(first):
            return driver
    raise ValueError(
        f"'{path}' must be a raster in one of the formats GeoTIFF, PNG, JPEG and JPEG 2000; it begins with {start!r}. "
        "Convert it with `gdal_translate`, or, if you trust it, open any format of GDAL with --allow-virtual."
    )


def _bands(dataset: Any, bands: Sequence[int] | None) -> tuple[int, int, int]:
    if bands is None and dataset.count == 2 and dataset.colorinterp[1].name != "alpha":
        raise ValueError(
            f"'{dataset.name}' has 2 bands, which are neither RGB nor grey with alpha. Set --bands R G B, for example "
            "--bands 1 1 1 to map the first one as grey."
        )
    if bands is None:
        return (1, 2, 3) if dataset.count >= 3 else (1, 1, 1)
    if len(bands) != 3 or not all(1 <= band <= dataset.count for band in bands):
        raise ValueError(f"--bands must be three numbers in 1 .. {dataset.count}; got {list(bands)}.")
    return bands[0], bands[1], bands[2]


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


def _scaled(pixels: int, size: int, tile: int) -> int:
    return max(1, round(pixels * size / tile))


def _to_bytes(values: NDArray[Any], limits: tuple[float, float] | None) -> NDArray[np.uint8]:
    if limits is None:
        return values.astype(np.uint8, copy=False)
    low, high = limits
    scaled = (np.nan_to_num(values.astype(np.float32), nan=low) - low) * (255 / (high - low))
    return np.clip(np.round(scaled), 0, 255).astype(np.uint8)
