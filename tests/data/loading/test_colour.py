import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerance import bound
from torchvision.transforms.v2 import functional as tv

from ldstyle.data.loading.colour import SCRATCH_PLANES, scale_brightness, scale_contrast, scale_saturation, shift_hue

FACTORS = torch.tensor([0.0, 0.3, 0.8, 1.0, 1.2, 1.9])
SHIFTS = torch.tensor([-1 / 6, -0.05, 0.0, 0.01, 0.05, 1 / 6])


def make_pixels(count=6, height=9, width=13, seed=0):
    """Random colours, and in the first rows those where the hexagon of hues has its corners and its centre."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3, height, width)).astype(np.float32)
    corners = [(v * 255 >> 1) for v in (0, 1, 2)]
    grid = np.array([(r, g, b) for r in corners for g in corners for b in corners], dtype=np.float32)
    pixels.reshape(count, 3, -1)[:, :, : len(grid)] = grid.T
    return torch.from_numpy(pixels)


def scratch_for(pixels):
    count, _, height, width = pixels.shape
    return torch.full((SCRATCH_PLANES, count, height, width), torch.nan)


OPERATIONS = {
    "brightness": (scale_brightness, tv.adjust_brightness, FACTORS),
    "contrast": (scale_contrast, tv.adjust_contrast, FACTORS),
    "saturation": (scale_saturation, tv.adjust_saturation, FACTORS),
    "hue": (shift_hue, tv.adjust_hue, SHIFTS),
}
# In float32 on values up to 3 · 255 before they are clamped; the contrast needs the mean of 9 · 13 pixels.
ROUNDING = {
    name: bound(count, scale=3 * 255, dtype=torch.float32)
    for name, count in {"brightness": 2, "contrast": 9 * 13 + 10, "saturation": 12, "hue": 12}.items()
}


def run(name, pixels, factor):
    operation = OPERATIONS[name][0]
    changed = pixels.clone()
    if name in ("saturation", "hue"):
        operation(changed, factor, scratch_for(pixels))
    else:
        operation(changed, factor)
    return changed


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_torchvisions_image_by_image(name):
    _, oracle, factors = OPERATIONS[name]
    pixels = make_pixels()
    expected = torch.stack(
        [oracle(image.double() / 255, factor) * 255 for image, factor in zip(pixels, factors.tolist(), strict=True)]
    )
    torch.testing.assert_close(run(name, pixels, factors).double(), expected, atol=ROUNDING[name], rtol=0)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_neutral_factor_changes_nothing(name):
    pixels = make_pixels()
    neutral = torch.zeros(6) if name == "hue" else torch.ones(6)
    assert torch.equal(run(name, pixels, neutral), pixels)


@settings(max_examples=200, deadline=None)
@given(
    colour=st.tuples(*[st.integers(0, 255)] * 3),
    shift=st.floats(-1 / 6, 1 / 6),
)
def test_hue_is_turned_as_in_the_standard_library(colour, shift):
    pixels = torch.tensor(colour, dtype=torch.float32).view(1, 3, 1, 1)
    changed = run("hue", pixels, torch.tensor([shift]))
    hue, saturation, value = colorsys.rgb_to_hsv(*(c / 255 for c in colour))
    expected = torch.tensor(colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value), dtype=torch.float64) * 255
    torch.testing.assert_close(changed.view(3).double(), expected, atol=ROUNDING["hue"], rtol=0)


def test_hue_keeps_the_values_range_and_greys():
    pixels = make_pixels()
    changed = run("hue", pixels, SHIFTS)
    assert torch.equal(changed.amax(1), pixels.amax(1))
    assert torch.equal(changed.amin(1), pixels.amin(1))
    grey = pixels[:, :1].expand(-1, 3, -1, -1).contiguous()
    assert torch.equal(run("hue", grey, SHIFTS), grey)


def test_two_shifts_are_their_sum():
    pixels = make_pixels()
    twice = run("hue", run("hue", pixels, SHIFTS / 2), SHIFTS / 2)
    # A channel becomes 2x - d ± 6 shift (M - m): a second shift enlarges the error of the first by at most 5.
    tolerance = (5 + 1 + 1) * ROUNDING["hue"]
    torch.testing.assert_close(twice, run("hue", pixels, SHIFTS), atol=tolerance, rtol=0)


def test_scratch_memory_may_be_larger_than_needed():
    pixels = make_pixels(count=6)
    large = torch.full((SCRATCH_PLANES, 9, 9, 13), torch.nan)
    for name, operation in (("saturation", scale_saturation), ("hue", shift_hue)):
        changed = pixels.clone()
        operation(changed, SHIFTS.abs(), large)
        assert torch.equal(changed, run(name, pixels, SHIFTS.abs()))
