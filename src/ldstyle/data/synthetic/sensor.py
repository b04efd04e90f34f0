"""The sensor model: from materials and light to pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.synthetic.domains import Sensor
from ldstyle.data.synthetic.draws import Draws, value_noise
from ldstyle.data.synthetic.plan import Layout
from ldstyle.data.synthetic.surface import Surface

_SHADE = (0.42, 0.47, 0.56)
"""Light left in a shadow: that of the sky, which is blue."""

_GREY = (0.3, 0.59, 0.11)


def expose(surface: Surface, layout: Layout, sensor: Sensor, draws: Draws, *, finer: int) -> NDArray[np.uint8]:
    """Return the image a sensor takes of a painted sheet, (S, S, 3).

    Only additions, multiplications and comparisons of single numbers are used, in a fixed order: they round alike
    everywhere, and sums over arrays do not.

    Args:
        surface: The painted sheet.
        layout: The layout it was painted from.
        sensor: The domain's sensor.
        draws: Where unevenness, haze and noise are drawn from.
        finer: Subpixels of the sheet per pixel and side.
    """
    # Drawn before any array whose size is the image's, so that an image of another size gets the same weather.
    haze, blur = draws.within(sensor.haze), draws.within(sensor.blur)
    saturation, exposure = draws.within(sensor.saturation), draws.within(sensor.exposure)
    colours = np.asarray(surface.colours, np.float32)
    colours = np.concatenate([colours, colours * np.asarray(_SHADE, np.float32)])
    lit_or_not = surface.material + len(surface.colours) * surface.shadow.astype(np.int16)
    levels = colours.take(lit_or_not, axis=0)  # (P, P, 3)
    levels *= (surface.light * _unevenness(surface, layout, draws))[:, :, None]
    image = _reduce(levels, finer)
    image = image * np.float32(1 - haze) + np.asarray(sensor.haze_colour, np.float32) * np.float32(haze)
    image = _blur(image, blur)
    image = _respond(image, sensor, saturation=saturation, exposure=exposure)
    side = image.shape[0]
    # The sum of three uniform draws from [-1, 1) is close to normal with a standard deviation of 1.
    noise = draws.field(side, side, 3) + draws.field(side, side, 3) + draws.field(side, side, 3)
    image = image + noise * np.float32(sensor.noise)
    pixels: NDArray[np.uint8] = np.clip(image + np.float32(0.5), 0, 255).astype(np.uint8)
    return pixels


def _unevenness(surface: Surface, layout: Layout, draws: Draws) -> NDArray[np.float32]:
    fine, medium, coarse = (grain.take(surface.material) for grain in np.asarray(surface.grains, np.float32).T)
    uneven: NDArray[np.float32] = np.float32(1) + medium * value_noise(draws, surface.subpixels, layout.extent / 2)
    uneven += coarse * value_noise(draws, surface.subpixels, layout.extent / 12)
    uneven += fine * draws.field(surface.subpixels, surface.subpixels)
    return uneven


def _reduce(levels: NDArray[np.float32], finer: int) -> NDArray[np.float32]:
    total = np.zeros_like(levels[::finer, ::finer])
    for row in range(finer):
        for column in range(finer):
            total += levels[row::finer, column::finer]
    return total / np.float32(finer * finer)


def _blur(image: NDArray[np.float32], amount: float) -> NDArray[np.float32]:
    while amount > 0:
        weight = np.float32(min(amount, 1.0))
        image = image * (1 - weight) + _binomial(_binomial(image, 0), 1) * weight
        amount -= 1
    return image


def _binomial(image: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    before = np.concatenate([image.take([0], axis), np.delete(image, -1, axis)], axis)
    after = np.concatenate([np.delete(image, 0, axis), image.take([-1], axis)], axis)
    total: NDArray[np.float32] = before + after + image * 2
    return total * np.float32(0.25)


def _respond(image: NDArray[np.float32], sensor: Sensor, *, saturation: float, exposure: float) -> NDArray[np.float32]:
    red, green, blue = (np.float32(part) for part in _GREY)
    grey = image[..., 0] * red + image[..., 1] * green + image[..., 2] * blue
    image = grey[..., None] + (image - grey[..., None]) * np.float32(saturation)
    image = image * np.asarray(sensor.gain, np.float32) * np.float32(exposure)
    part: NDArray[np.float32] = np.clip(image / np.float32(255), 0, 1)
    # An S-shaped curve through 0, 1/2 and 1.
    return image + part * (1 - part) * (2 * part - 1) * np.float32(255 * sensor.contrast * 2)
