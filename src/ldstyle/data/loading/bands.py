"""Image files with any number of bands and up to 32 bits per value: GeoTIFF, PNG, JPEG and NumPy arrays.

The bands are those of the file: alpha is a band, grey is one band, and nothing is converted to RGB. GeoTIFF and 16-bit
colour PNG need rasterio (the extra ``geo``), which reads them from memory, so that no file can refer to another.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from ldstyle.data.domains.scene_table import Progress, SceneTable
from ldstyle.data.loading.decode import NUMPY, TIFF, decode, image_size, opened, read_file, require_side
from ldstyle.data.loading.image_format import (
    DTYPES,
    LARGEST_COUNT,
    Bands,
    ImageFormat,
    Range,
    limits_of,
    parse_bands,
    parse_range,
    shown_bands,
)
from ldstyle.data.loading.nodata import fill, require_data
from ldstyle.data.scenes.raster import has_data_everywhere

STRETCH = (2.0, 98.0)
"""Percentiles of a picture's values that become black and white."""

LARGEST_AREA = 1 << 27
"""Most pixels of a raster that is read at once."""

_PNG = b"\x89PNG"
_MODES = ("L", "LA", "RGB", "RGBA", "RGBX", "CMYK")
_DEEPEST = 65535
_MEASURED_IMAGES, _MEASURED_PIXELS = 256, 1024
"""Most images per domain, and most pixels of each, whose values are measured."""

_quiet = threading.Lock()


def load_image(
    path: Path, size: int, image_format: ImageFormat | None = None, *, content: bytes | None = None
) -> NDArray[Any]:
    """Decode an image in the format of a model, and resize it to a square with antialiased bilinear interpolation.

    Args:
        path: Image file.
        size: Side S of the square in pixels.
        image_format: Bands and range; ``None`` for 8-bit RGB, see :func:`~ldstyle.data.loading.decode.decode`.
        content: The bytes of the file where they have been read already; ``path`` then only names the image.

    Returns:
        (C, S, S): uint8 on [0, 255], or uint16 on [0, 65535].

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file cannot be used; path and reason are named.
    """
    if image_format is None:
        return decode(path, size, content=content)
    require_side(size)
    values, stated = _read(path, content, image_format.bands)
    return to_squares(values, size, image_format, path=path, stated=stated)


def to_squares(
    values: NDArray[Any],
    size: int,
    image_format: ImageFormat,
    *,
    path: Path | str,
    stated: NDArray[np.bool_] | None = None,
) -> NDArray[Any]:
    """Choose, scale and resize the bands of an image; pixels without data are filled.

    Args:
        values: All bands of the image, (count, H, W).
        size: Side S of the square in pixels.
        image_format: Bands and range.
        path: Name of the image for errors.
        stated: Where the image states that there are data, (H, W); ``None`` is everywhere. NaN is no data either.

    Returns:
        (C, S, S): uint8 on [0, 255], or uint16 on [0, 65535].
    """
    _check_layout(values, image_format, path)
    chosen, valid = choose_bands(values, image_format.bands, path=path, stated=stated)
    return resize_bands(fill(scale_values(chosen, image_format), valid), size)


def resize_bands(pixels: NDArray[Any], size: int) -> NDArray[Any]:
    """Resize images of 8 or 16 bits, (C, H, W), to squares with antialiased bilinear interpolation, (C, S, S)."""
    if pixels.shape[1:] == (size, size):
        return pixels
    if pixels.dtype == np.uint8:
        return _resized(pixels, size)
    # Pillow resizes 16-bit values only as floating point.
    return np.round(_resized(pixels.astype(np.float32), size)).astype(np.uint16)


def scale_values(values: NDArray[Any], image_format: ImageFormat) -> NDArray[Any]:
    """Bring values of the chosen bands, (C, ...), from their range to all of uint16; 8-bit values stay unchanged."""
    if image_format.stored == "uint8":
        return values
    shape = (-1,) + (1,) * (values.ndim - 1)
    low, high = (np.array(column, np.float32).reshape(shape) for column in zip(*image_format.limits, strict=True))
    scaled = (np.clip(values.astype(np.float32), low, high) - low) * (np.float32(_DEEPEST) / (high - low))
    return np.round(scaled).clip(0, _DEEPEST).astype(np.uint16)


def read_bands(path: Path, *, content: bytes | None = None) -> NDArray[Any]:
    """Read all bands of an image file as stored, (bands, H, W).

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file cannot be read, or its values are of another type; path and reason are named.
    """
    return _read(path, content, None)[0]


def _read(
    path: Path, content: bytes | None, taken: Sequence[int] | None
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Read all bands, and where a GeoTIFF states that the bands ``taken`` have data; ``None`` is everywhere."""
    data = read_file(path) if content is None else content
    stated = None
    if data.startswith(NUMPY):
        values = _from_numpy(path, data)
    elif data.startswith(TIFF) or _is_deep_colour(data):
        values, stated = _from_raster(path, data, taken)
    else:
        values = _from_pillow(path, data)
    if values.dtype.name not in DTYPES:
        raise ValueError(
            f"'{path}' cannot be used: its values are {values.dtype.name}. Store them as one of {', '.join(DTYPES)}."
        )
    if not values.size:
        raise ValueError(f"'{path}' cannot be used: it has no pixels, its shape is {values.shape}.")
    return values, stated


def image_extent(path: Path) -> tuple[int, int]:
    """Return width and height of an image file with any bands."""
    with path.open("rb") as file:
        start = file.read(8)
    if not start.startswith((NUMPY, *TIFF)):
        return image_size(path)
    height, width = read_bands(path).shape[1:]
    return width, height


def choose_bands(
    values: NDArray[Any], bands: Sequence[int], *, path: Path | str, stated: NDArray[np.bool_] | None = None
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the bands of these numbers, from 1, and where they have data.

    NaN is no data, and becomes 0. Infinite values and images without any data are refused.

    Args:
        values: All bands, (count, H, W).
        bands: Numbers of the bands.
        path: Name of the image for errors.
        stated: Where the image states that there are data, (H, W); ``None`` is everywhere.
    """
    chosen = values if list(bands) == list(range(1, len(values) + 1)) else values[[band - 1 for band in bands]]
    valid = np.ones(values.shape[1:], dtype=np.bool_) if stated is None else stated
    if chosen.dtype.kind == "f":
        valid = valid & ~np.isnan(chosen).any(axis=0)
        chosen = np.where(valid, chosen, np.float32(0))
        if wrong := int(np.isinf(chosen).sum()):
            raise ValueError(
                f"'{path}' cannot be used: {wrong} of its {chosen.size} values are infinite. Make them NaN, which "
                "counts as no data, or drop the image."
            )
    try:
        require_data(valid)
    except ValueError as error:
        raise ValueError(f"'{path}' cannot be used: {error}.") from None
    return np.ascontiguousarray(chosen), valid


def read_picture(path: Path, size: int, shown: Sequence[int] | None) -> NDArray[np.uint8]:
    """Read an image for display.

    Args:
        path: Image file.
        size: Side S of the square in pixels.
        shown: Numbers of the bands to show as red, green and blue, each stretched between percentiles; empty for the
            first three of the file. ``None`` is 8-bit RGB, as stored.

    Returns:
        RGB values, (3, S, S).
    """
    if shown is None:
        return decode(path, size)
    require_side(size)
    values, stated = _read(path, None, shown)
    bands = list(shown) or shown_bands(range(1, len(values) + 1), ("",) * len(values))
    if max(bands) > len(values):
        raise ValueError(f"'{path}' cannot be used: it has {len(values)} bands, and band {max(bands)} is shown.")
    chosen, valid = choose_bands(values, bands, path=path, stated=stated)
    return stretch(_resized(fill(chosen.astype(np.float32), valid), size))


def stretch(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Bring each band of a picture, (C, H, W), to 8 bits between two percentiles; NaN is ignored."""
    if not np.isfinite(values).any():
        return np.zeros(values.shape, dtype=np.uint8)
    low, high = np.nanpercentile(values.reshape(len(values), -1), STRETCH, axis=1).astype(np.float32)[:, :, None, None]
    scaled = (values.astype(np.float32) - low) * (255 / np.where(high > low, high - low, 1))
    pixels: NDArray[np.uint8] = np.nan_to_num(np.round(scaled)).clip(0, 255).astype(np.uint8)
    return pixels


def find_format(
    bands: Bands,
    value_range: Range,
    tables: Sequence[SceneTable],
    rows: Sequence[ArrayLike],
    *,
    progress: Progress | None = None,
) -> ImageFormat | None:
    """Resolve the settings ``data.bands`` and ``data.range`` with the images they apply to.

    Args:
        bands: Bands to choose; empty for all.
        value_range: Range of the values; empty for that of 8 bits. Percentiles are measured on the images.
        tables: The domains.
        rows: Rows of each table to measure, e.g. those of its training part.
        progress: Called with the number of images measured.

    Returns:
        The format; ``None`` for 8-bit RGB, if neither setting is given.

    Raises:
        ValueError: The images do not have the bands, or their range is neither given nor known.
    """
    if not bands and not value_range:
        return None
    chosen = [(table, np.asarray(some, dtype=np.int64)) for table, some in zip(tables, rows, strict=True)]
    table, some = next((table, some) for table, some in chosen if len(some))
    first = table.path(int(some[0]))
    values = read_bands(first)
    count, dtype = len(values), values.dtype.name
    numbers, names = parse_bands(bands or tuple(range(1, count + 1)))
    if max(numbers) > count:
        raise ValueError(f"data.bands must be numbers in 1 .. {count}, the bands of '{first}'; got {max(numbers)}.")
    if not value_range and dtype != "uint8":
        raise ValueError(
            f"data.range must be given for images of {dtype}, such as '{first}': the lowest and the highest "
            "value, e.g. 0,10000, or percentiles of the training images, e.g. 1%,99%."
        )
    known = tuple((0.0, 255.0) for _ in numbers)
    stated = ImageFormat(numbers, names, count, dtype, known)
    pair, percent = parse_range(value_range or (0.0, 255.0))
    limits = _measure(chosen, stated, pair, progress) if percent else limits_of(pair, names)
    return ImageFormat(numbers, names, count, dtype, limits)


def _measure(
    chosen: Sequence[tuple[SceneTable, NDArray[np.int64]]],
    stated: ImageFormat,
    percentiles: Sequence[float],
    progress: Progress | None,
) -> tuple[tuple[float, float], ...]:
    """Return percentiles of each band over pixels evenly spaced in images evenly spaced in each domain."""
    found = []
    for table, rows in chosen:
        some = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MEASURED_IMAGES)).astype(np.int64)]
        for done, row in enumerate(some.tolist(), start=1):
            path = table.path(row)
            values, with_data = _read(path, None, stated.bands)
            _check_layout(values, stated, path)
            image, valid = choose_bands(values, stated.bands, path=path, stated=with_data)
            flat = image[:, valid]  # a nodata value far from the others would be a limit of the range
            positions = np.linspace(0, flat.shape[1] - 1, min(flat.shape[1], _MEASURED_PIXELS)).astype(np.int64)
            found.append(flat[:, positions].astype(np.float32))
            if progress:
                progress(done, len(some), f"range of {table.domain}")
    measured = np.concatenate(found, axis=1).astype(np.float64)
    low, high = np.percentile(measured, percentiles, axis=1)
    for name, least, most in zip(stated.names, low, high, strict=True):
        if not least < most:
            raise ValueError(
                f"data.range {percentiles[0]:g}%,{percentiles[1]:g}% must differ in each band; in {name} both are "
                f"{least:g}. Leave the band out of data.bands, or give its range in numbers."
            )
    return tuple((float(least), float(most)) for least, most in zip(low, high, strict=True))


def _check_layout(values: NDArray[Any], image_format: ImageFormat, path: Path | str) -> None:
    if len(values) != image_format.count:
        raise ValueError(
            f"'{path}' cannot be used: it has {_bands(len(values))} where the other images have {image_format.count}. "
            "Images of one data set have the same bands in the same order; convert it, or drop it."
        )
    if not image_format.takes(values.dtype.name):
        raise ValueError(
            f"'{path}' cannot be used: its values are {values.dtype.name} where the other images have "
            f"{image_format.dtype}, so one range does not fit both. Convert it, or drop it."
        )


def _bands(count: int) -> str:
    return f"{count} band" if count == 1 else f"{count} bands"


def _resized(pixels: NDArray[Any], size: int) -> NDArray[Any]:
    bands = [Image.fromarray(band).resize((size, size), Image.Resampling.BILINEAR) for band in pixels]
    return np.stack([np.asarray(band) for band in bands])


def _is_deep_colour(content: bytes) -> bool:
    """Return whether a PNG has 16-bit colours, of which Pillow drops the low bytes; grey ones it reads whole."""
    return content.startswith(_PNG) and content[24:25] == b"\x10" and content[25:26] != b"\0"


def _from_numpy(path: Path, content: bytes) -> NDArray[Any]:
    try:
        values: NDArray[Any] = np.load(BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise ValueError(f"'{path}' cannot be used: {error}.") from error
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3 or values.shape[0] > LARGEST_COUNT or values.shape[2] < min(values.shape[:2]):
        raise ValueError(
            f"'{path}' cannot be used: an array must be (bands, height, width) or (height, width); got "
            f"{values.shape}. Use array.transpose(2, 0, 1) if the bands are last."
        )
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _from_raster(
    path: Path, content: bytes, taken: Sequence[int] | None
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    try:
        import rasterio
        from rasterio.io import MemoryFile
    except ImportError as error:
        raise ValueError(
            f"'{path}' cannot be used: GeoTIFF and 16-bit colour PNG need the extra `geo`, which is not installed. "
            "Run `pip install ldstyle[geo]`."
        ) from error
    driver = "PNG" if content.startswith(_PNG) else "GTiff"
    try:
        with MemoryFile(content) as memory, _opened_quietly(memory, driver) as dataset:
            if len(dataset.subdatasets) > 1:
                raise ValueError(f"it has {len(dataset.subdatasets)} pages; store each in a separate file")
            if len(set(dataset.dtypes)) > 1:
                raise ValueError(f"its bands are of different types, {sorted(set(dataset.dtypes))}")
            if dataset.width * dataset.height > LARGEST_AREA:
                raise ValueError(f"it has {dataset.width} x {dataset.height} pixels; cut it with `ldstyle data tile`")
            values: NDArray[Any] = dataset.read()
            stated = None
            if taken is not None and driver == "GTiff":
                known = [band for band in taken if band <= dataset.count]
                stated = None if has_data_everywhere(dataset, known) else dataset.dataset_mask() > 0
    except (rasterio.errors.RasterioError, ValueError, MemoryError) as error:
        reason = error.__cause__ or error  # rasterio only refers to GDAL's own error
        raise ValueError(f"'{path}' cannot be used: {str(reason).rstrip('.') or type(reason).__name__}.") from error
    return values, stated


def _opened_quietly(memory: Any, driver: str) -> Any:
    """Open a raster without a warning if it has no georeference."""
    from rasterio.errors import NotGeoreferencedWarning

    # Warning filters are global to the process, and images are read in threads.
    with _quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        return memory.open(driver=driver)


def _from_pillow(path: Path, content: bytes) -> NDArray[Any]:
    with opened(path, content, deep=True) as image:
        if image.mode not in _MODES and not image.mode.startswith("I;16"):
            raise ValueError(f"mode {image.mode} is not bands of values; store it as grey, RGB or GeoTIFF")
        values = np.asarray(image)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
