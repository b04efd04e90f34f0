"""Image files to squares of 8-bit RGB, and mask files to squares of bits.

What is done with the images that are not plain 8-bit RGB:

=====================  ================================================================================
grey, 1-bit            the one channel becomes all three
palette                the palette's colours
RGBA, grey + alpha     alpha is dropped, colours stay as stored
CMYK, YCbCr, HSV       converted by Pillow, without a colour profile
16-bit grey or colour  the high byte, so 65535 becomes 255
32-bit, float, LAB     refused: the range of their values is not known
several frames         refused (animations, multi-page TIFF), except MPO, the two-picture JPEG of cameras and
                       drones, of which the first picture is taken
odd sizes              resized to the square, the aspect ratio is not kept
=====================  ================================================================================

EXIF orientation is ignored, so an image and its mask stay aligned as stored. JPEG is decoded at full size before
resizing: the decoder's own reduction is faster and gives other pixels.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

# What Pillow's plugins raise on damaged files, beyond OSError; SyntaxError stands for a broken PNG chunk.
_DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


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
    with _opened(path, content) as image:
        rgb = _to_rgb(image)
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
    with _opened(path, content) as image:
        if image.mode not in ("1", "L", "P"):
            raise ValueError(f"a mask has one 8-bit channel, bit l for label l, and this has mode {image.mode}")
        if image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.NEAREST)
    return np.asarray(image, dtype=np.uint8)


@contextmanager
def _opened(path: Path, content: bytes | None) -> Iterator[Image.Image]:
    """Open and load an image; whatever goes wrong until it is closed becomes a ValueError that names it."""
    if content is None:
        content = path.read_bytes()
    try:
        with Image.open(BytesIO(content)) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1 and image.format != "MPO":
                raise ValueError(f"it has {frames} frames; give each a file of its own")
            image.load()
            yield image
    except UnidentifiedImageError:
        reason = "its format or sample layout is not known; store it as 8-bit RGB" if content else "it is empty"
        raise ValueError(f"'{path}' cannot be used: {reason}.") from None
    except _DAMAGE as error:
        raise ValueError(f"'{path}' cannot be used: {error}.") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    match image.mode:
        case "RGB":
            return image
        case "P" | "PA":
            # By way of RGBA: straight to RGB, Pillow warns about palettes whose transparency is a table.
            return image.convert("RGBA").convert("RGB")
        case "1" | "L" | "LA" | "La" | "RGBA" | "RGBa" | "RGBX" | "CMYK" | "YCbCr" | "HSV":
            return image.convert("RGB")
        case "I;16" | "I;16L" | "I;16B" | "I;16N":
            high = (np.asarray(image) >> 8).astype(np.uint8)
            return Image.fromarray(high).convert("RGB")
        case mode:
            raise ValueError(f"mode {mode} has no known range of values; store it as 8-bit RGB")
