"""The sheet: polygons filled exactly, shadows that a cover lifts, discs in radii."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerance import bound

from ldstyle.data.synthetic.surface import NOTHING, Grain, Surface, _hull

SIDE = 24


def inside_by_hand(corners, places):
    """Which middles of places lie in a convex polygon, by exact half planes, one place at a time."""
    points = [(Fraction(round(x * 16), 16), Fraction(round(y * 16), 16)) for x, y in corners]
    inside = np.zeros((places, places), bool)
    for row in range(places):
        for column in range(places):
            x, y = column + Fraction(1, 2), row + Fraction(1, 2)
            sides = []
            for (ax, ay), (bx, by) in zip(points, points[1:] + points[:1], strict=True):
                sides.append((bx - ax) * (y - ay) - (by - ay) * (x - ax))
            inside[row, column] = all(s >= 0 for s in sides) or all(s <= 0 for s in sides)
    return inside


@pytest.mark.parametrize(
    "corners",
    [
        [(3, 4), (15, 4), (15, 9), (3, 9)],
        [(3, 9), (15, 9), (15, 4), (3, 4)],
        [(2.3, 1.1), (20.7, 8.2), (6.4, 22.9)],
        [(-9, -9), (40, 3.3), (30, 50)],
        [(10, 2), (18, 8), (15, 20), (6, 21), (1, 9)],
        [(4.5, 4.5), (9.5, 4.5), (9.5, 9.5), (4.5, 9.5)],
    ],
)
def test_a_polygon_covers_the_places_whose_middle_it_holds(corners):
    surface = Surface(SIDE, SIDE)
    window, inside = surface.polygon(corners, metres=False)
    covered = np.zeros((SIDE, SIDE), bool)
    covered[window] = inside
    np.testing.assert_array_equal(covered, inside_by_hand(corners, SIDE))


def test_a_polygon_outside_the_sheet_covers_nothing():
    surface = Surface(SIDE, SIDE)
    surface.fill([(100, 100), (120, 100), (120, 130)], surface.add((9, 9, 9)), label=2)
    surface.fill([(-100, -100), (-120, -100), (-120, -130)], 0, label=2)
    assert (surface.label == NOTHING).all()


def test_metres_are_measured_from_the_middle():
    surface = Surface(40, extent=20)
    assert surface.to_subpixels((0, 0)) == (20, 20)
    assert surface.to_subpixels((-10, 5)) == (0, 30)


def test_a_cover_sets_material_light_and_label_and_lifts_the_shadow():
    surface = Surface(SIDE, SIDE)
    surface.shadow[:] = True
    roof = [surface.add((1, 2, 3)), surface.add((4, 5, 6), Grain(0.5))][1]
    surface.fill([(-4, -4), (4, -4), (4, 4), (-4, 4)], roof, light=0.5, label=0)
    covered = np.zeros((SIDE, SIDE), bool)
    covered[8:16, 8:16] = True
    np.testing.assert_array_equal(surface.material == roof, covered)
    np.testing.assert_array_equal(surface.label == 0, covered)
    np.testing.assert_array_equal(surface.light == 0.5, covered)
    np.testing.assert_array_equal(~surface.shadow, covered)


def test_a_cover_without_a_label_keeps_the_label_below():
    surface = Surface(SIDE, SIDE)
    surface.label[:] = 3
    surface.fill([(-4, -4), (4, -4), (4, 4), (-4, 4)], surface.add((1, 2, 3)))
    assert (surface.label == 3).all()


def test_a_shadow_is_the_hull_of_its_points_and_nothing_else_changes():
    surface = Surface(SIDE, SIDE)
    square = [(-6, -6), (0, -6), (0, 0), (-6, 0)]
    surface.darken([*square, *((x + 5, y + 3) for x, y in square)])
    hull = [(x + 12, y + 12) for x, y in [(-6, -6), (0, -6), (5, -3), (5, 3), (-1, 3), (-6, 0)]]
    np.testing.assert_array_equal(surface.shadow, inside_by_hand(hull, SIDE))
    assert (surface.light == 1).all()
    assert (surface.label == NOTHING).all()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=3, max_size=12, unique=True))
def test_a_hull_is_convex_and_holds_all_points(points):
    hull = _hull([(float(x), float(y)) for x, y in points])
    assert set(hull) <= set(points)
    for (ax, ay), (bx, by) in zip(hull, hull[1:] + hull[:1], strict=True):
        assert all((bx - ax) * (y - ay) - (by - ay) * (x - ax) >= 0 for x, y in points)


def test_a_disc_is_given_in_radii_from_its_middle():
    surface = Surface(SIDE, SIDE)
    window, dx, dy = surface.disc((1.0, -2.0), 5.0)
    rows, columns = np.mgrid[window]
    rounding = bound(4, scale=SIDE / 5, dtype=torch.float32)
    np.testing.assert_allclose(np.broadcast_to(dx, rows.shape), (columns + 0.5 - 13) / 5, rtol=0, atol=rounding)
    np.testing.assert_allclose(np.broadcast_to(dy, rows.shape), (rows + 0.5 - 10) / 5, rtol=0, atol=rounding)
    everywhere = sum((c + 0.5 - 13) ** 2 + (r + 0.5 - 10) ** 2 < 25 for r in range(SIDE) for c in range(SIDE))
    assert np.count_nonzero(dx * dx + dy * dy < 1) == everywhere
