"""Geometry of a feature map: channels, stride and layout read from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

Layout: TypeAlias = Literal["nchw", "nhwc", "tokens"]
"""Order of a feature map's dimensions: (B, C, H, W), (B, H, W, C) or a raster sequence (B, N, C)."""

MAX_PREFIX_TOKENS = 16
_MAX_SKEW = 2  # locations by which a map may miss the image's aspect
_POWERS_OF_TWO = tuple(2**exponent for exponent in range(10))


class Geometry(NamedTuple):
    """Geometry of one output.

    Attributes:
        channels: Number of channels C.
        stride: Pixels of the image per location.
        layout: Order of the dimensions.
        prefix_tokens: Tokens in front of the raster sequence without a location.
    """

    channels: int
    stride: int
    layout: Layout
    prefix_tokens: int = 0


class Declared(NamedTuple):
    """Geometry that a model declares; ``None`` where it does not. A declaration decides where shapes are ambiguous."""

    channels: int | None = None
    stride: int | None = None
    prefix_tokens: int | None = None


def token_grids(image_size: tuple[int, int], stride: int) -> Iterator[tuple[int, int]]:
    """Yield the grids (H, W) that patches of ``stride`` can make of an image, padded ones first."""
    high = tuple(math.ceil(side / stride) for side in image_size)
    low = tuple(side // stride for side in image_size)
    yield from dict.fromkeys(((high[0], high[1]), (low[0], low[1]), (high[0], low[1]), (low[0], high[1])))


def read_geometry(
    shape: Sequence[int], image_size: tuple[int, int], *, declared: Declared | None = None
) -> Geometry | None:
    """Read the geometry of an output from its shape; ``None`` if it is no spatial map.

    A map has at least two locations, unless the model declares its stride. Of a (B, C, H, W) and a (B, H, W, C) reading
    the one with the declared channels wins, then the one closer to the image's aspect, then (B, C, H, W).

    Args:
        shape: Shape of the output, batch first.
        image_size: Height and width of the image that led to it.
        declared: Geometry that the model declares for this output.
    """
    declared = declared or Declared()
    match len(shape):
        case 4:
            return _read_map(shape, image_size, declared)
        case 3:
            return _read_tokens(shape, image_size, declared)
        case _:
            return None


def _read_map(shape: Sequence[int], image_size: tuple[int, int], declared: Declared) -> Geometry | None:
    _, first, second, third = shape
    orders: tuple[tuple[Layout, int, int, int], ...] = (
        ("nchw", first, second, third),
        ("nhwc", third, first, second),
    )
    readings = []
    for layout, channels, height, width in orders:
        stride = declared.stride or _map_stride((height, width), image_size)
        skew = abs(height * image_size[1] - width * image_size[0]) / max(image_size)
        if stride and skew <= _MAX_SKEW and (height * width > 1 or declared.stride):
            foreign = declared.channels not in (None, channels)
            readings.append((foreign, skew, Geometry(channels, stride, layout)))
    return min(readings, key=lambda reading: reading[:2])[-1] if readings else None


def _map_stride(grid: tuple[int, int], image_size: tuple[int, int]) -> int | None:
    def distance(stride: int) -> float:
        return max(abs(side / stride - length) for side, length in zip(image_size, grid, strict=True))

    if 0 in grid or any(length > side for length, side in zip(grid, image_size, strict=True)):
        return None
    divisors = [stride for stride in range(1, min(image_size) + 1) if distance(stride) == 0]
    if divisors:
        return divisors[0]
    # Unpadded convolutions lose up to four locations of a side (Inception at 299 px: 35 locations at stride 8).
    powers = [
        stride
        for stride in _POWERS_OF_TWO
        if distance(stride) < max(1, min(4, 0.3 * min(image_size) / stride))
        and all(length < side / stride + 1 for side, length in zip(image_size, grid, strict=True))
    ]
    rest = [stride for stride in range(1, min(image_size) + 1) if distance(stride) < 1]
    return min(powers or rest, key=distance, default=None)


def _read_tokens(shape: Sequence[int], image_size: tuple[int, int], declared: Declared) -> Geometry | None:
    _, length, channels = shape
    if channels == 1:  # a pooled vector, (B, C, 1)
        return None
    divisors = [stride for stride in range(1, min(image_size) + 1) if not any(side % stride for side in image_size)]
    strides = [declared.stride] if declared.stride else dict.fromkeys([*divisors, *_POWERS_OF_TWO])
    allowed = range(MAX_PREFIX_TOKENS + 1) if declared.prefix_tokens is None else (0, declared.prefix_tokens)
    readings = []
    for stride in strides:
        for height, width in token_grids(image_size, stride):
            prefix = length - height * width
            if prefix in allowed and (height * width > 1 or declared.stride):
                readings.append((prefix, stride not in divisors, Geometry(channels, stride, "tokens", prefix)))
    return min(readings, key=lambda reading: reading[:2])[-1] if readings else None
