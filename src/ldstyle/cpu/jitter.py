"""Augmentation on the CPU as compiled loops over one image at a time, which need no lock and so run on every core.

The arithmetic is that of :mod:`ldstyle.data.loading.colour`, which serves the other devices. There each step is an
operation on the whole batch; here an image goes through all steps before the next one is touched, so that its
values stay in the cache of the core, and Python is called once per part of a batch, so that threads do not wait for
each other. An image does not depend on the others, so not on the number of threads. The two forms differ by the
rounding of float32.

Importing this module imports numba, which takes a while: import it where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])
Pixels = NDArray[np.float32]

# Sums may be reordered and products fused with sums, so that loops are vectorised; NaN and infinity keep their meaning.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}

# Constants of `data/loading/colour.py`, compiled in; stored machine code is renewed when this file changes.
_WHITE, _ZERO, _HALF, _ONE, _SIX = (np.float32(value) for value in (255, 0, 0.5, 1, 6))
_RED, _GREEN, _BLUE = (np.float32(weight) for weight in (0.2989, 0.587, 0.114))


@cache
def jitter() -> Callable[..., None]:
    """Return the kernel that flips, jitters and normalises; see :func:`_jitter`. The first call compiles it."""
    return compile_kernel(
        _jitter,
        "void(uint8[:,:,:,::1], boolean[:,:], float32[:,:], int64[::1], float32[::1], float32[::1],"
        " float32[:,:,:,::1])",
    )


@cache
def retouch() -> Callable[..., None]:
    """Return the kernel of the pseudo-domain's colours; see :func:`_retouch`. The first call compiles it."""
    return compile_kernel(_retouch, "void(uint8[:,:,::1], float32[:,:,::1], float32[:,:], uint8[:,:,::1])")


@cache
def jitter_bands() -> Callable[..., None]:
    """Return the kernel for any bands and depth; see :func:`_jitter_bands`. The first call compiles it."""
    rest = "boolean[:,:], float32[:,:], int64[::1], float32, float32[::1], float32[::1], float32[:,:,:,::1])"
    return compile_kernel(_jitter_bands, [f"void({kind}[:,:,:,::1], {rest}" for kind in ("uint8", "uint16")])


def compile_kernel(function: Function, signature: str | list[str]) -> Function:
    """Compile a function, or load it as stored by an earlier process, next to this file or in the user's cache."""
    kernel: Function
    try:
        kernel = njit(signature, cache=True, **_OPTIONS)(function)
    except Exception:  # noqa: BLE001 - no folder to write to, no room, a damaged file: it works without storing as well
        kernel = njit(signature, **_OPTIONS)(function)
    return kernel


def _inlined(function: Function) -> Function:
    result: Function = njit(inline="always", **_OPTIONS)(function)
    return result


def _jitter(
    images: NDArray[np.uint8],
    flips: NDArray[np.bool_],
    factors: Pixels,
    order: NDArray[np.int64],
    scale: Pixels,
    shift: Pixels,
    result: Pixels,
) -> None:
    """Flip images, apply the colour operations, and normalise.

    Args:
        images: (B, 3, H, W).
        flips: Whether to flip horizontally and vertically, (B, 2).
        factors: Brightness, contrast, saturation and hue of each image, (4, B).
        order: Which of the four to apply, in this order.
        scale: Multiplier of each channel at the end, (3,).
        shift: Summand of each channel at the end, (3,).
        result: Receives the images, (B, 3, H, W).
    """
    count, _, height, width = images.shape
    flat = result.reshape(count, 3, height * width)
    for n in range(count):
        _flip(images[n], flips[n, 0], flips[n, 1], result[n])
        pixels = flat[n]
        for step in order:
            _change(pixels, step, factors[step, n])
        for c in range(3):
            gain, offset = scale[c], shift[c]
            for i in range(pixels.shape[1]):
                pixels[c, i] = pixels[c, i] * gain + offset


def _jitter_bands(
    images: NDArray[Any],
    flips: NDArray[np.bool_],
    factors: Pixels,
    order: NDArray[np.int64],
    unit: np.float32,
    scale: Pixels,
    shift: Pixels,
    result: Pixels,
) -> None:
    """Flip images of any bands, apply the colour operations, and normalise.

    Three bands are red, green and blue; otherwise each is changed on its own, and only brightness and contrast are.

    Args:
        images: (B, C, H, W).
        flips: Whether to flip horizontally and vertically, (B, 2).
        factors: Brightness, contrast, saturation and hue of each image, (4, B).
        order: Which of the four to apply, in this order.
        unit: Factor that brings values to [0, 255].
        scale: Multiplier of each band at the end, (C,).
        shift: Summand of each band at the end, (C,).
        result: Receives the images, (B, C, H, W).
    """
    count, channels, height, width = images.shape
    flat = result.reshape(count, channels, height * width)
    for n in range(count):
        for c in range(channels):
            _flip_band(images[n, c], flips[n, 0], flips[n, 1], unit, result[n, c])
        if channels == 3:
            for step in order:
                _change(flat[n], step, factors[step, n])
        for c in range(channels):
            values = flat[n, c]
            if channels != 3:
                for step in order:
                    _change_band(values, step, factors[step, n])
            gain, offset = scale[c], shift[c]
            for i in range(values.shape[0]):
                values[i] = values[i] * gain + offset


def _retouch(images: NDArray[np.uint8], tones: Pixels, factors: Pixels, result: NDArray[np.uint8]) -> None:
    """Replace each value by its tone, apply the four colour operations, and round.

    Args:
        images: (B, 3, N), N pixels per image.
        tones: What each 8-bit value of a channel becomes, on [0, 255], (B, 3, 256).
        factors: Brightness, contrast, saturation and hue of each image, (4, B).
        result: Receives the images, (B, 3, N).
    """
    count, _, size = images.shape
    pixels = np.empty((3, size), np.float32)
    for n in range(count):
        for c in range(3):
            for i in range(size):
                pixels[c, i] = tones[n, c, images[n, c, i]]
        for step in range(4):
            _change(pixels, step, factors[step, n])
        for c in range(3):
            for i in range(size):
                result[n, c, i] = _rounded(pixels[c, i])


@_inlined
def _rounded(value: np.float32) -> np.uint8:
    """Round a value on [0, 255] to the nearest integer, halves to the even one.

    Not by ``np.rint``: where the CPU has no AVX, LLVM turns that and the conversion into one instruction that reads
    four values at once and stops the process unless their address is a multiple of 16.
    """
    whole = np.int32(value)
    rest = value - np.float32(whole)  # exact
    up = (rest > _HALF) | ((rest == _HALF) & (whole % 2 == 1))
    return np.uint8(whole + up)


@_inlined
def _flip(image: NDArray[np.uint8], horizontal: bool, vertical: bool, result: Pixels) -> None:
    _, height, width = image.shape
    for c in range(3):
        for y in range(height):
            row = height - 1 - y if vertical else y
            if horizontal:
                for x in range(width):
                    result[c, y, x] = image[c, row, -1 - x]  # counted from the end, for then the loop is vectorised
            else:
                for x in range(width):
                    result[c, y, x] = image[c, row, x]


@_inlined
def _flip_band(band: NDArray[Any], horizontal: bool, vertical: bool, unit: np.float32, result: Pixels) -> None:
    height, width = band.shape
    for y in range(height):
        row = height - 1 - y if vertical else y
        if horizontal:
            for x in range(width):
                result[y, x] = np.float32(band[row, -1 - x]) * unit
        else:
            for x in range(width):
                result[y, x] = np.float32(band[row, x]) * unit


@_inlined
def _change_band(values: Pixels, step: int, factor: np.float32) -> None:
    """Scale the brightness (0) or the contrast (1) of N values on [0, 255] in place; other operations need colours."""
    if step == 0:
        for i in range(values.shape[0]):
            values[i] = min(values[i] * factor, _WHITE)
    elif step == 1:
        total = 0.0
        for i in range(values.shape[0]):
            total += np.float64(values[i])
        offset = (_ONE - factor) * np.float32(total / values.shape[0])
        for i in range(values.shape[0]):
            values[i] = min(max(values[i] * factor + offset, _ZERO), _WHITE)


@_inlined
def _change(pixels: Pixels, step: int, factor: np.float32) -> None:
    """Apply one of the four operations to (3, N) values on [0, 255], in place."""
    if step == 0:
        _scale_brightness(pixels, factor)
    elif step == 1:
        _scale_contrast(pixels, factor)
    elif step == 2:
        _scale_saturation(pixels, factor)
    else:
        _shift_hue(pixels, factor)


@_inlined
def _scale_brightness(pixels: Pixels, factor: np.float32) -> None:
    for c in range(3):
        for i in range(pixels.shape[1]):
            pixels[c, i] = min(pixels[c, i] * factor, _WHITE)


@_inlined
def _scale_contrast(pixels: Pixels, factor: np.float32) -> None:
    total = 0.0  # in float64, so that the sum of a large image is right
    for i in range(pixels.shape[1]):
        total += np.float64(_RED * pixels[0, i] + _GREEN * pixels[1, i] + _BLUE * pixels[2, i])
    offset = (_ONE - factor) * np.float32(total / pixels.shape[1])
    for c in range(3):
        for i in range(pixels.shape[1]):
            pixels[c, i] = min(max(pixels[c, i] * factor + offset, _ZERO), _WHITE)


@_inlined
def _scale_saturation(pixels: Pixels, factor: np.float32) -> None:
    rest = _ONE - factor
    for i in range(pixels.shape[1]):
        red, green, blue = pixels[0, i], pixels[1, i], pixels[2, i]
        luma = rest * (_RED * red + _GREEN * green + _BLUE * blue)
        pixels[0, i] = min(max(red * factor + luma, _ZERO), _WHITE)
        pixels[1, i] = min(max(green * factor + luma, _ZERO), _WHITE)
        pixels[2, i] = min(max(blue * factor + luma, _ZERO), _WHITE)


@_inlined
def _shift_hue(pixels: Pixels, shift: np.float32) -> None:
    """Turn the hue as :func:`ldstyle.data.loading.colour.shift_hue` does, where the formula is explained."""
    for i in range(pixels.shape[1]):
        red, green, blue = pixels[0, i], pixels[1, i], pixels[2, i]
        low, high = min(red, green), max(red, green)
        middle = max(min(high, blue), low)
        least, largest = min(low, blue), max(high, blue)
        step = _SIX * shift * (largest - least)
        to_red = step if blue >= green else -step
        to_green = step if red >= blue else -step
        to_blue = step if green >= red else -step
        pixels[0, i] = min(max(red + (red - middle) + to_red, least), largest)
        pixels[1, i] = min(max(green + (green - middle) + to_green, least), largest)
        pixels[2, i] = min(max(blue + (blue - middle) + to_blue, least), largest)
