"""Image files to squares of 8-bit RGB, and mask files to squares of bits.

BMP, GIF, JPEG, PNG, TIFF and WebP are read, whatever the file is called; every other format is refused, so that no
file starts a program. Images other than plain 8-bit RGB:

=====================  ================================================================================
grey, 1-bit            the one channel becomes all three
palette                the palette's colours
RGBA, grey + alpha     alpha is dropped, colours stay as stored
CMYK, YCbCr, HSV       converted by Pillow, without a colour profile
more than 8 bits       refused unless bands or a range are given, see :mod:`ldstyle.data.loading.bands`
several frames         refused (animations, multi-page TIFF), except MPO, the two-picture JPEG of cameras and
                       drones, of which the first picture is taken; overviews and masks of a TIFF are no frames
EXIF orientation       applied, to images and masks: a mask is laid over its image as viewers show both
nodata value of TIFF   its pixels are filled, see :mod:`ldstyle.data.loading.nodata`
odd sizes              resized to the square, the aspect ratio is not kept
=====================  ================================================================================

JPEG is decoded at full size before resizing: the decoder's own reduction is faster and gives other pixels.
"""

from __future__ import annotations

import logging
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from ldstyle.data.domains.scene_table import IMAGE_FORMATS
from ldstyle.data.loading.nodata import fill, require_data, stated_data

# What Pillow's plugins raise on damaged files, beyond OSError; SyntaxError means a broken PNG chunk.
_DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

_DEEP = re.compile(r";(12|16)[A-Z]*$")
"""How Pillow names the stored samples of PNG and TIFF files with 12 or 16 bits, e.g. ``RGB;16B``."""

LARGEST_SIDE = 16_384
"""Most pixels per side of a square; beyond, an image does not fit into memory."""

_ORIENTATION = 274
"""Number of the EXIF tag."""

_NODATA = 42113
"""Number of the TIFF tag in which GDAL states the value of pixels without data, as text."""

_KIND_OF_PAGE, _OVERVIEW_OR_MASK = 254, 1 | 4
"""Number of the TIFF tag, and its bits of pages that are no separate picture."""

_EIGHT_BITS = (
    "Images must have 8 bits per channel unless their range of values is given: set --data.range LOW,HIGH, or "
    "percentiles such as 1%,99%, to train on them (--range LOW HIGH in `ldstyle data` and `ldstyle map`)"
)
_MANY_BANDS = (
    "it is not 8-bit RGB. For other bands or more bits set --data.range LOW,HIGH, or percentiles such as 1%,99% "
    "(--range LOW HIGH in `ldstyle data`); --data.bands chooses bands"
)
NUMPY, TIFF = b"\x93NUMPY", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""First bytes of files that may have any bands: NumPy; TIFF and BigTIFF."""

# Pillow reports the layouts that it cannot read there, besides raising an error.
logging.getLogger("PIL.TiffImagePlugin").addHandler(logging.NullHandler())


def decode(path: Path, size: int, *, content: bytes | None = None) -> NDArray[np.uint8]:
    """Decode an image and resize it to a square with antialiased bilinear interpolation.

    Args:
        path: Image file.
        size: Side S of the square in pixels.
        content: The bytes of the file where they have been read already; ``path`` then only names the image.

    Returns:
        RGB values, (3, S, S) uint8, contiguous.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file cannot be decoded, or is of a kind that is refused; path and reason are named.
    """
    require_side(size)
    with opened(path, content) as image:
        rgb = _filled(image)
        if rgb.size != (size, size):
            rgb = rgb.resize((size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def decode_mask(path: Path, size: int, *, content: bytes | None = None) -> NDArray[np.uint8]:
    """Decode a bit mask and bring it to a square by its nearest pixels.

    Args:
        path: Mask file with one 8-bit channel, grey or palette; palette masks give their indices.
        size: Side S of the square in pixels.
        content: The bytes of the file where they have been read already.

    Returns:
        Bits as stored, (S, S) uint8.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file cannot be decoded or has more than one 8-bit channel; path and reason are named.
    """
    require_side(size)
    with opened(path, content) as image:
        if image.mode not in ("1", "L", "P"):
            raise ValueError(f"a mask has one 8-bit channel, bit l for label l, and this has mode {image.mode}")
        if image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.NEAREST)
    return np.asarray(image, dtype=np.uint8)


def require_side(size: int) -> None:
    """Raise if images cannot be brought to squares of this side."""
    if not 1 <= size <= LARGEST_SIDE:
        raise ValueError(f"`size` must be a positive number of pixels, at most {LARGEST_SIDE}; got {size}.")


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image in pixels, as `decode` sees it, without decoding it."""
    with _identified(path, read_file(path)) as image:
        width, height = image.size
        # Pillow gives the size of TIFF images as they are once they are loaded and turned.
        turned = image.format != "TIFF" and image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    return (height, width) if turned else (width, height)


def tiff_bands(path: Path) -> int:
    """Return the number of bands of a TIFF image that `decode` takes, 0 for other formats."""
    try:
        with _identified(path, read_file(path)) as image:
            return len(image.getbands()) if image.format == "TIFF" else 0
    except ValueError:
        return 0


@contextmanager
def opened(path: Path, content: bytes | None, *, deep: bool = False) -> Iterator[Image.Image]:
    """Open and load an image, turned by its EXIF orientation.

    Args:
        path: Image file.
        content: The bytes of the file where they have been read already.
        deep: Whether more than 8 bits per channel are taken.
    """
    with _identified(path, read_file(path) if content is None else content) as image:
        frames = _frames(image)
        if frames > 1:
            raise ValueError(f"it has {frames} frames; store each in a separate file")
        if not deep:
            _require_eight_bits(image)
        image.load()
        if isinstance(image, TiffImageFile) and _NODATA in image.tag_v2:
            image.info["nodata"] = image.tag_v2[_NODATA]  # a turned image has no tags
        yield ImageOps.exif_transpose(image)


@contextmanager
def _identified(path: Path, content: bytes) -> Iterator[Image.Image]:
    """Open an image of a known format; whatever goes wrong until it is closed becomes a ValueError that names it."""
    try:
        with Image.open(BytesIO(content), formats=tuple(IMAGE_FORMATS)) as image:
            yield image
    except UnidentifiedImageError:
        reason = f"its format is none of {', '.join(IMAGE_FORMATS)}" if content else "it is empty"
        reason = _MANY_BANDS if content.startswith((NUMPY, *TIFF)) else reason
        raise ValueError(f"'{path}' cannot be used: {reason}.") from None
    except _DAMAGE as error:
        raise ValueError(f"'{path}' cannot be used: {str(error) or type(error).__name__}.") from error


def read_file(path: Path) -> bytes:
    """Read a regular file whole."""
    if path.exists() and not path.is_file():
        # Reading from a pipe could block forever.
        raise ValueError(f"'{path}' cannot be used: it is not a regular file.")
    return path.read_bytes()


def _frames(image: Image.Image) -> int:
    """Count the pictures of a file, without the overviews and masks of a cloud-optimized GeoTIFF."""
    if not isinstance(image, TiffImageFile):
        return 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    pictures = []
    with suppress(EOFError):
        for frame in count():
            with suppress(SyntaxError):  # Pillow knows no masks, but reads their tags first
                image.seek(frame)
            pictures.append(not image.tag_v2.get(_KIND_OF_PAGE, 0) & _OVERVIEW_OR_MASK)
    image.seek(0)
    return sum(pictures) if pictures[0] else len(pictures)  # the first one is read


def _require_eight_bits(image: Image.Image) -> None:
    stored = [word for tile in getattr(image, "tile", ()) for word in _words(tile[3])]
    if image.format in ("PNG", "TIFF") and any(_DEEP.search(word) for word in (image.mode, *stored)):
        raise ValueError(f"it has more than 8 bits per channel. {_EIGHT_BITS}")
    if image.mode in ("I", "F"):
        raise ValueError(f"mode {image.mode} has no known range of values. {_EIGHT_BITS}")


def _words(arguments: object) -> list[str]:
    """Return the text among the arguments of a decoder, which are one word or a tuple."""
    return [word for word in (arguments if isinstance(arguments, tuple) else (arguments,)) if isinstance(word, str)]


def _filled(image: Image.Image) -> Image.Image:
    """Return an image as RGB, with the pixels filled that have its nodata value."""
    rgb = _to_rgb(image)
    try:
        nodata = float(image.info["nodata"])
    except (KeyError, ValueError, TypeError):
        return rgb
    stored = np.asarray(image)
    valid = stated_data(stored[None] if stored.ndim == 2 else stored.transpose(2, 0, 1), nodata)
    if valid.all():
        return rgb
    require_data(valid)
    return Image.fromarray(np.ascontiguousarray(fill(np.asarray(rgb).transpose(2, 0, 1), valid).transpose(1, 2, 0)))


def _to_rgb(image: Image.Image) -> Image.Image:
    match image.mode:
        case "RGB":
            return image
        case "P" | "PA":
            # By way of RGBA: straight to RGB, Pillow warns about palettes whose transparency is a table.
            return image.convert("RGBA").convert("RGB")
        case "1" | "L" | "LA" | "La" | "RGBA" | "RGBa" | "RGBX" | "CMYK" | "YCbCr" | "HSV":
            return image.convert("RGB")
        case mode:
            raise ValueError(f"mode {mode} has no known range of values; store it as 8-bit RGB")
