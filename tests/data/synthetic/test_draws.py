"""Draws and noise: uniform, in proportion, smooth, and free of the platform's last bits."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from tests.tolerance import bound

from ldstyle.data.synthetic.draws import TURN, Draws, direction, value_noise


def test_draws_depend_on_their_meaning_alone():
    first, again, other = Draws("scene", "a", 1), Draws("scene", "a", 1), Draws("scene", "a", 2)
    drawn = [first.within((0, 1)) for _ in range(5)]
    other.chance(0.5)
    assert drawn == [again.within((0, 1)) for _ in range(5)]
    assert drawn != [other.within((0, 1)) for _ in range(5)]


def test_whole_numbers_reach_both_ends_evenly():
    draws = Draws("whole")
    counts = Counter(draws.whole(-1, 2) for _ in range(4000))
    assert set(counts) == {-1, 0, 1, 2}
    assert max(abs(count - 1000) for count in counts.values()) < 120


def test_keys_are_drawn_in_proportion_to_their_weights():
    draws = Draws("weighted")
    counts = Counter(draws.weighted({"a": 1, "b": 2, "c": 5}) for _ in range(8000))
    assert counts["a"] == pytest.approx(1000, abs=130)
    assert counts["b"] == pytest.approx(2000, abs=170)
    assert counts["c"] == pytest.approx(5000, abs=200)


def test_a_chance_of_0_never_and_of_1_always_happens():
    draws = Draws("chance")
    assert not any(draws.chance(0) for _ in range(100))
    assert all(draws.chance(1) for _ in range(100))


def test_directions_are_unit_vectors_on_a_coarse_grid():
    for heading in range(-TURN, 2 * TURN):
        x, y = direction(heading)
        assert (x * 4096).is_integer()
        assert (y * 4096).is_integer()
        assert math.hypot(x - math.cos(math.tau * heading / TURN), y - math.sin(math.tau * heading / TURN)) < 2e-4


def test_no_direction_lies_where_the_last_bit_of_a_cosine_decides_its_rounding():
    scaled = [math.cos(math.tau * heading / TURN) * 4096 for heading in range(TURN)]
    assert min(abs(abs(value % 1) - 0.5) for value in scaled) > 1e-6


@pytest.mark.parametrize(("cells", "across"), [(5.0, None), (3.5, 11.0), (40.0, 6.0)])
def test_noise_is_the_smooth_interpolation_of_its_knots(cells, across):
    places = 24
    # Positions up to 40 cells in float32, a slope of at most 1.5 · 2 per cell in both directions, and the blend.
    rounding = bound(4, scale=2 * 3 * 40, dtype=torch.float32) + bound(16, dtype=torch.float32)
    noise = value_noise(Draws("noise"), places, cells, across)
    rows, columns = cells, across or cells
    knots = Draws("noise").field(int(rows) + 2, int(columns) + 2)

    def ease(t):
        return t * t * (3 - 2 * t)

    for i in range(places):
        for j in range(places):
            y, x = i * rows / places, j * columns / places
            a, b = int(y + 1e-6), int(x + 1e-6)
            t, s = ease(max(y - a, 0)), ease(max(x - b, 0))
            top = knots[a, b] * (1 - s) + knots[a, b + 1] * s
            low = knots[a + 1, b] * (1 - s) + knots[a + 1, b + 1] * s
            assert noise[i, j] == pytest.approx(top * (1 - t) + low * t, abs=rounding)


def test_fields_fill_their_range_evenly():
    field = Draws("field").field(200, 200)
    assert field.min() >= -1
    assert field.max() < 1
    assert np.histogram(field, bins=10, range=(-1, 1))[0] == pytest.approx(np.full(10, 4000), abs=250)
