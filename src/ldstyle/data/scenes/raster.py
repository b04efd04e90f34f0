"""Rasters opened through GDAL: a closed list of formats, and no address unless it is allowed."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

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
"""First bytes of the formats that are read, and the driver of GDAL for each; all others may refer to other files."""

_SAMPLE, _SAMPLES = 64, 4
"""Side in pixels of a window of a sample, and windows along a side of the raster."""
_SIDE_FILES = (".ovr", ".msk")
_WEB_MERCATOR = (3857, 900913)
_EARTH_RADIUS = 6_378_137.0


def rasterio() -> Any:
    """Import rasterio, or raise an error with the way to install it."""
    try:
        for part in ("features", "io", "shutil", "vrt", "warp", "windows"):
            import_module(f"rasterio.{part}")
        return import_module("rasterio")
    except ImportError as error:
        raise ValueError(
            "Scenes need the extra `geo`, which is not installed. Run `pip install ldstyle[geo]`."
        ) from error


def is_address(scene: Path | str) -> bool:
    """Return whether a scene is named by an address or a virtual file system of GDAL instead of a local path."""
    return isinstance(scene, str) and (scene.startswith("/vsi") or re.match(r"[a-z][a-z0-9+.-]*://", scene) is not None)


@contextmanager
def open_raster(scene: Path | str, *, allow_virtual: bool = False, allow_remote: bool = False) -> Iterator[Any]:
    """Open a raster for reading in little memory.

    Args:
        scene: A GeoTIFF, PNG, JPEG or JPEG 2000 file, or an address that GDAL understands.
        allow_virtual: Open any format that GDAL reads. A virtual raster (VRT, WMS) reads every file and address that it
            names.
        allow_remote: Open addresses, such as ``https://...`` or ``/vsis3/...``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The raster cannot be opened, or may not be.
    """
    library = rasterio()
    if is_address(scene) and not allow_remote:
        raise ValueError(f"'{scene}' is an address, not a local file. Allow it with --allow-remote if you trust it.")
    if not is_address(scene) and not Path(scene).is_file():
        raise FileNotFoundError(f"The scene '{scene}' is not a file.")
    with library.Env(GDAL_CACHEMAX=CACHE_MB, **_remote_settings(scene)), warnings.catch_warnings():
        for expected in (library.errors.NotGeoreferencedWarning, library.errors.NodataShadowWarning):
            warnings.simplefilter("ignore", expected)
        with _opened(scene, [None] if allow_virtual else _drivers(scene)) as dataset:
            yield dataset


def _opened(scene: Path | str, drivers: Sequence[str | None]) -> Any:
    """Open a raster by the first driver that takes it."""
    library = rasterio()
    problem: Exception | None = None
    for driver in drivers:
        try:
            return library.open(scene, driver=driver)
        except library.errors.RasterioIOError as error:
            problem = error
    raise ValueError(f"'{scene}' must be a raster; it cannot be opened: {problem}.") from problem


def _remote_settings(scene: Path | str) -> dict[str, Any]:
    """Look for no side files next to an address: each would be a request, and a file that nobody has checked."""
    return {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"} if is_address(scene) else {}


def _drivers(scene: Path | str) -> list[str]:
    """Choose the driver by the first bytes, and refuse a raster that refers, itself or by a side file, to others."""
    if is_address(scene):
        return sorted(set(DRIVERS.values()))
    path = Path(scene)
    aux = path.with_name(f"{path.name}.aux.xml")
    if aux.is_file() and b"OVERVIEW_FILE" in aux.read_bytes():
        raise ValueError(f"'{aux}' names another raster. Remove it, or allow it with --allow-virtual if you trust it.")
    for side in (path.with_name(path.name + suffix) for suffix in _SIDE_FILES):
        if side.is_file():
            _known_driver(side)
    return [_known_driver(path)]


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


@contextmanager
def readable(dataset: Any) -> Iterator[None]:
    """Name the raster where a part of it cannot be read."""
    try:
        yield
    except (rasterio().errors.RasterioIOError, MemoryError) as error:
        reason = error.__cause__ or error.__context__ or error
        raise ValueError(
            f"'{dataset.name}' of {dataset.width} x {dataset.height} px cannot be read: {str(reason).rstrip('.')}. "
            "It is damaged or incomplete, or too large for the memory; copy it again."
        ) from error


def has_data_everywhere(dataset: Any, taken: Sequence[int] = ()) -> bool:
    """Return whether a raster states no value, mask or alpha band for locations without data.

    Args:
        dataset: The open raster.
        taken: Numbers of the bands that a model takes. An alpha band among them is data: many programs mark any fourth
            band of 8 bits as alpha, near infrared too.
    """
    flags = import_module("rasterio.enums").MaskFlags
    if any(dataset.colorinterp[band - 1].name == "alpha" for band in taken):
        return all(flags.nodata not in found for found in dataset.mask_flag_enums)
    return all(found == [flags.all_valid] for found in dataset.mask_flag_enums)


def sample_windows(dataset: Any) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return windows all over a raster, each as the rows and the columns between two numbers."""

    def spread(length: int) -> list[tuple[int, int]]:
        last = max(0, length - _SAMPLE)
        starts = sorted({last * i // (_SAMPLES - 1) for i in range(_SAMPLES)})
        return [(start, min(start + _SAMPLE, length)) for start in starts]

    return list(itertools.product(spread(dataset.height), spread(dataset.width)))


def alpha_words(dataset: Any) -> list[str]:
    """Note an alpha band whose values are not those of a mask: many programs mark any fourth band as alpha."""
    alpha = [number for number, kind in enumerate(dataset.colorinterp, start=1) if kind.name == "alpha"]
    if not alpha or dataset.nodata is not None:
        return []
    with readable(dataset):
        values = [dataset.read(alpha[0], window=window).ravel() for window in sample_windows(dataset)]
    if len(np.unique(np.concatenate(values))) <= 2:
        return []
    return [
        f"'{dataset.name}' marks band {alpha[0]} as alpha, so pixels in which it is 0 have no data. If it is another "
        f"band, such as near infrared, run `gdal_edit.py -colorinterp_{alpha[0]} undefined FILE` and begin again."
    ]


def shifted(transform: Any, *, top: int, left: int) -> Any:
    """Return the transform of a window: from (column, row) of its pixels to coordinates."""
    a, b, c, d, e, f = transform[:6]
    return type(transform)(a, b, c + a * left + b * top, d, e, f + d * left + e * top)


def is_on_earth(crs: Any) -> bool:
    """Return whether a reference system has longitudes and latitudes; a local one, e.g. of a building site, has not."""
    return crs is not None and (crs.is_geographic or crs.is_projected)


def ground_sampling_distance(crs: Any, transform: Any, height: int, width: int) -> float | None:
    """Return the metres per pixel in the middle of a raster, or ``None`` if it has no georeference.

    Pixels of other than square shape have the side of a square of their area.

    Args:
        crs: Reference system, or ``None``.
        transform: From (column, row) of the pixels to coordinates.
        height: Rows of the raster.
        width: Columns of the raster.
    """
    if transform.is_identity or not is_on_earth(crs):
        return None
    a, b, c, d, e, f = transform[:6]
    side = math.sqrt(math.hypot(a, d) * math.hypot(b, e))
    x, y = c + (a * width + b * height) / 2, f + (d * width + e * height) / 2
    if crs.is_geographic:
        angle = float(crs.units_factor[1])  # radians per unit
        return side * angle * _EARTH_RADIUS * math.sqrt(abs(math.cos(y * angle)))
    unit = float(crs.linear_units_factor[1])
    if crs.to_epsg() in _WEB_MERCATOR:  # its metres are those of the equator
        unit *= math.cos(math.radians(rasterio().warp.transform(crs, "EPSG:4326", [x], [y])[1][0]))
    return side * unit


def bounds_in(scene: Any, crs: Any) -> tuple[float, float, float, float] | None:
    """Return the extent of a scene in another reference system, ``None`` if it has none there."""
    if scene.crs is None or not (is_on_earth(scene.crs) and is_on_earth(crs)):
        return None
    xs, ys = sorted(scene.bounds[::2]), sorted(scene.bounds[1::2])  # rows may lead north
    try:
        left, bottom, right, top = rasterio().warp.transform_bounds(scene.crs, crs, xs[0], ys[0], xs[1], ys[1])
    except rasterio().errors.RasterioError:
        return None
    known = all(map(math.isfinite, (left, bottom, right, top))) and left <= right
    return (left, bottom, right, top) if known else None


def apart(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two extents have no point in common."""
    return one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
