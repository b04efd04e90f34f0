"""Things: each covers its own area, casts its shadow where the sun says, and is lit from the sun's side."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ldstyle.data.synthetic import VOCABULARY
from ldstyle.data.synthetic.draws import Draws, value_noise
from ldstyle.data.synthetic.objects import paint_building, paint_car, paint_shadows, paint_ship, paint_trees
from ldstyle.data.synthetic.plan import Box, Building, Car, Frame, Layout, Ship, Tree
from ldstyle.data.synthetic.surface import Surface

PLACES, EXTENT = 240, 40.0
SCALE = PLACES / EXTENT
LABEL = {label: position for position, label in enumerate(VOCABULARY)}


def bare_layout(heading=0, sun=0):
    """Open ground whose shadows fall along ``sun``, one metre per metre of height."""
    return Layout(EXTENT, Frame(heading), sun, 1.0, ((90, 90, 90), (90, 90, 90)), 0.0)


def bare_surface():
    surface = Surface(PLACES, EXTENT)
    surface.add((90, 90, 90))
    return surface


def area(surface, label):
    """Square metres a label covers."""
    return np.count_nonzero(surface.label == LABEL[label]) / SCALE**2


HOUSE = (Box(0, 0, 6, 4),)


def hut(roof="gable", wings=HOUSE):
    return Building(wings, height=5.0, roof=roof, colour=(150, 100, 80), fittings=())


@pytest.mark.parametrize("roof", ["gable", "hip", "flat"])
@pytest.mark.parametrize("heading", [0, 23, 64, 150])
def test_a_roof_covers_the_footprint(roof, heading):
    surface = bare_surface()
    paint_building(surface, bare_layout(heading), hut(roof))
    assert area(surface, "building") == pytest.approx(12 * 8, rel=0.02)


def test_two_wings_cover_their_union():
    surface = bare_surface()
    paint_building(surface, bare_layout(17), hut("flat", (Box(0, 0, 6, 4), Box(4, 5, 2, 3))))
    assert area(surface, "building") == pytest.approx(12 * 8 + 4 * 4, rel=0.03)


@pytest.mark.parametrize("roof", ["gable", "hip"])
@pytest.mark.parametrize("box", [Box(0, 0, 6, 4), Box(0, 0, 4, 6)])
def test_the_slope_towards_the_sun_is_brighter(roof, box):
    for sun in (0, 64, 128, 192):
        surface = bare_surface()
        layout = bare_layout(sun=sun)
        paint_building(surface, layout, hut(roof, (box,)))
        along_u = box.half_u > box.half_v
        offset = np.array([0, 2]) if along_u else np.array([2, 0])  # (x, y), from the ridge down one slope
        one, other = (surface.light[tuple((PLACES // 2 + side * offset[::-1] * SCALE).astype(int))] for side in (1, -1))
        falls = layout.cast(1.0)[1 if along_u else 0]
        # Shadows fall away from the sun; along the ridge it lights both slopes alike.
        assert (one < other) if falls > 0.5 else (one > other) if falls < -0.5 else one == other


@pytest.mark.parametrize("sun", [0, 64, 128, 200])
def test_a_building_darkens_the_ground_from_its_foot_to_its_height_away(sun):
    surface, layout = bare_surface(), bare_layout(sun=sun)
    layout.buildings.append(hut())
    paint_shadows(surface, layout)
    for building in layout.buildings:
        paint_building(surface, layout, building)
    dx, dy = layout.cast(5.0)
    # A rectangle swept along (dx, dy) covers itself and as much again as its sides sweep over.
    swept = 8 * abs(dx) + 12 * abs(dy)
    assert np.count_nonzero(surface.shadow) / SCALE**2 == pytest.approx(swept, rel=0.03)
    assert not surface.shadow[surface.label == LABEL["building"]].any()


@pytest.mark.parametrize("ahead", [(1, 0), (0, 1), (-1, 0), (0, -1)])
@pytest.mark.parametrize("heading", [0, 40])
def test_a_car_covers_its_length_times_its_width_less_its_round_corners(ahead, heading):
    surface = bare_surface()
    paint_car(surface, bare_layout(heading), Car(3.0, -2.0, ahead, 4.6, 1.8, (200, 30, 30)))
    assert 0.9 * 4.6 * 1.8 < area(surface, "car") < 1.04 * 4.6 * 1.8
    rows, columns = np.nonzero(surface.label == LABEL["car"])
    x, y = Frame(heading).to_view(3.0, -2.0)
    assert columns.mean() / SCALE - EXTENT / 2 == pytest.approx(x, abs=0.2)
    assert rows.mean() / SCALE - EXTENT / 2 == pytest.approx(y, abs=0.2)


def test_a_car_has_its_windscreen_in_front():
    surface = bare_surface()
    paint_car(surface, bare_layout(), Car(0.0, 0.0, (1, 0), 4.8, 1.8, (220, 220, 220)))
    middle = PLACES // 2
    darks = [surface.colours[m][0] < 100 for m in surface.material[middle, middle : middle + int(2.2 * SCALE)]]
    assert any(darks)
    assert not darks[-1]  # the bonnet


def crowns(trees, foliage=1.0, sun=0):
    surface, layout = bare_surface(), bare_layout(sun=sun)
    layout.trees.extend(trees)
    paint_trees(surface, layout, value_noise(Draws("leaves"), PLACES, 60), foliage=foliage)
    return surface


def test_a_crown_covers_about_its_disc():
    for radius in (2.0, 3.0, 5.0):
        assert area(crowns([Tree(0.0, 0.0, radius, (60, 90, 40))]), "tree") == pytest.approx(
            math.pi * radius**2, rel=0.15
        )


def test_thin_foliage_lets_the_ground_through():
    tree = Tree(0.0, 0.0, 5.0, (60, 90, 40))
    full, thin = area(crowns([tree]), "tree"), area(crowns([tree], foliage=0.55), "tree")
    assert 0.2 * full < thin < 0.8 * full


@pytest.mark.parametrize("sun", [0, 64, 128, 192])
def test_a_crown_is_brighter_on_the_suns_side_and_its_shadow_on_the_other(sun):
    surface = crowns([Tree(0.0, 0.0, 5.0, (60, 90, 40))], sun=sun)
    dx, dy = bare_layout(sun=sun).cast(1.0)
    rows, columns = np.mgrid[:PLACES, :PLACES] - PLACES / 2
    away = columns * dx + rows * dy
    tree = surface.label == LABEL["tree"]
    assert surface.light[tree & (away < -5)].mean() > surface.light[tree & (away > 5)].mean() + 0.15
    assert away[surface.shadow].mean() > 10


def test_no_tree_shades_the_crown_of_another():
    surface = crowns([Tree(0.0, 0.0, 4.0, (60, 90, 40)), Tree(5.0, 0.0, 4.0, (70, 90, 40))])
    assert not surface.shadow[surface.label == LABEL["tree"]].any()


SHIP = Ship(0.0, 0.0, (1.0, 0.0), 12.0, 3.6, (220, 220, 220), (180, 150, 110), sailing=False)


def polygon_area(points):
    pairs = zip(points, points[1:] + points[:1], strict=True)
    return abs(sum(ax * by - bx * ay for (ax, ay), (bx, by) in pairs)) / 2


@pytest.mark.parametrize("length", [8.0, 12.0, 24.0])
@pytest.mark.parametrize("heading", [0, 31])
def test_a_ship_covers_its_hull(length, heading):
    surface = bare_surface()
    paint_ship(surface, bare_layout(heading), replace(SHIP, length=length, beam=length * 0.3))
    hull = [(-0.5, -0.36), (-0.5, 0.36), (-0.3, 0.5), (0.08, 0.5), (0.32, 0.34), (0.5, 0.0)]
    hull += [(x, -y) for x, y in hull[::-1][1:-2]]
    wanted = polygon_area(hull) * length * length * 0.3
    assert area(surface, "ship") == pytest.approx(wanted, rel=0.05)


def test_the_bow_is_pointed_and_the_stern_is_not():
    surface = bare_surface()
    paint_ship(surface, bare_layout(), SHIP)
    widths = np.count_nonzero(surface.label == LABEL["ship"], axis=0)
    columns = np.flatnonzero(widths)
    assert widths[columns[-2]] < 0.3 * widths.max()
    assert widths[columns[1]] > 0.6 * widths.max()


def test_a_wake_follows_a_sailing_ship_and_is_still_water():
    moored, sailing = bare_surface(), bare_surface()
    for surface in (moored, sailing):
        surface.label[:] = LABEL["water"]
    paint_ship(moored, bare_layout(), SHIP)
    paint_ship(sailing, bare_layout(), replace(SHIP, sailing=True))
    np.testing.assert_array_equal(moored.label, sailing.label)
    foam = (sailing.label == LABEL["water"]) & (sailing.material != 0)
    assert not ((moored.label == LABEL["water"]) & (moored.material != 0)).any()
    assert np.nonzero(foam)[1].mean() < PLACES / 2 - 6 * SCALE
