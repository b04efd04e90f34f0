"""The sensor: reduction, blur, response and noise, each against a slow or closed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.tolerance import bound

from ldstyle.data.synthetic import lay_out
from ldstyle.data.synthetic.domains import Sensor
from ldstyle.data.synthetic.draws import Draws, Span
from ldstyle.data.synthetic.sensor import _blur, expose
from ldstyle.data.synthetic.surface import Grain, Surface

NONE, FULL = Span(0.0, 0.0), Span(1.0, 1.0)
PLAIN = Sensor(
    gain=(1.0, 1.0, 1.0),
    saturation=FULL,
    exposure=FULL,
    contrast=0.0,
    haze=NONE,
    haze_colour=(0, 0, 0),
    blur=NONE,
    noise=0.0,
)


def even_sheet(places=16):
    surface = Surface(places, 20.0)
    surface.add((100, 60, 200), Grain())
    return surface


def take(surface, sensor=PLAIN, *, finer=2):
    return expose(surface, lay_out("suburb", 0, seed=0), sensor, Draws("test"), finer=finer)


def test_a_plain_sensor_shows_the_material():
    assert (take(even_sheet()) == [100, 60, 200]).all()


@pytest.mark.parametrize("finer", [1, 2, 4])
def test_a_pixel_is_the_mean_of_its_places(finer):
    surface = even_sheet()
    surface.light[:] = np.linspace(0.2, 1.2, 256, dtype=np.float32).reshape(16, 16)
    side = 16 // finer
    wanted = surface.light.reshape(side, finer, side, finer).mean((1, 3))[..., None] * np.array([100, 60, 200])
    np.testing.assert_allclose(take(surface, finer=finer), wanted, atol=0.51)


def test_a_shadow_is_darker_and_bluer():
    surface = even_sheet()
    surface.shadow[:] = True
    red, green, blue = take(surface)[0, 0] / np.array([100, 60, 200])
    assert red < green < blue < 0.6


def test_haze_blends_towards_its_colour():
    hazy = replace(PLAIN, haze=Span(0.25, 0.25), haze_colour=(200, 220, 240))
    assert (take(even_sheet(), hazy) == [125, 100, 210]).all()


def test_no_saturation_leaves_grey():
    grey = take(even_sheet(), replace(PLAIN, saturation=NONE))[0, 0]
    assert grey.tolist() == [round(0.3 * 100 + 0.59 * 60 + 0.11 * 200)] * 3


def test_gain_and_exposure_scale_the_channels():
    bright = replace(PLAIN, gain=(1.5, 1.0, 0.5), exposure=Span(1.2, 1.2))
    assert take(even_sheet(), bright)[0, 0].tolist() == [180, 72, 120]


def test_contrast_darkens_the_dark_brightens_the_bright_and_keeps_the_middle():
    surface = Surface(4, 20.0)
    surface.add((60, 200, 127), Grain())
    dark, bright, middle = take(surface, replace(PLAIN, contrast=0.4))[0, 0].tolist()
    assert dark < 60
    assert bright > 200
    assert middle in (127, 128)


def test_noise_has_the_given_deviation_and_no_bias():
    noisy = take(even_sheet(256), replace(PLAIN, noise=5.0)).astype(float) - [100, 60, 200]
    assert noisy.std() == pytest.approx(5.0, abs=0.15)
    assert noisy.mean() == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("amount", [0.0, 0.3, 1.0, 1.6])
def test_blur_is_the_binomial_filter_with_repeated_edges(amount):
    image = Draws("blur").field(9, 7, 3)
    slow = image.astype(float)
    for weight in (min(amount, 1), max(amount - 1, 0)):
        padded = np.pad(slow, ((1, 1), (1, 1), (0, 0)), mode="edge")
        blurred = np.zeros_like(slow)
        for row, vertical in enumerate((0.25, 0.5, 0.25)):
            for column, horizontal in enumerate((0.25, 0.5, 0.25)):
                blurred += vertical * horizontal * padded[row : row + 9, column : column + 7]
        slow = slow * (1 - weight) + blurred * weight
    rounding = bound(2 * 10, dtype=torch.float32)  # twice, two sums of three terms and a blend, on values up to 1
    np.testing.assert_allclose(_blur(image, amount), slow, rtol=0, atol=rounding)
