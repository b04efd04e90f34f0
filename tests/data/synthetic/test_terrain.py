"""Surfaces: roads as wide as laid out, water where it is deep, and patches without a label."""

from __future__ import annotations

import numpy as np
import pytest

from ldstyle.data.synthetic import BUILT_IN, VOCABULARY
from ldstyle.data.synthetic.draws import Draws
from ldstyle.data.synthetic.plan import Box, Frame, Layout, Lot, Patch, Road, Water
from ldstyle.data.synthetic.surface import NOTHING, Surface
from ldstyle.data.synthetic.terrain import paint_ground, paint_lot, paint_patch, paint_roads, paint_water

PLACES, EXTENT = 200, 50.0
SCALE = PLACES / EXTENT
LABEL = {label: position for position, label in enumerate(VOCABULARY)}
SUBURB = BUILT_IN["suburb"]
STRAIGHT = ((0.0,) * 14, (0.0,) * 14)


def bare_layout(heading=0, furrows=0.0):
    return Layout(EXTENT, Frame(heading), 0, 1.0, ((60, 120, 60), (160, 120, 60)), furrows)


def painted(layout):
    surface = Surface(PLACES, EXTENT)
    paint_ground(surface, layout, Draws("ground"))
    return surface


def road(axis="u", at=3.0, half=3.5, walk=1.5, *, bridge=False):
    return Road(axis, at, half, walk, (110, 110, 110), bridge)


def test_the_ground_runs_from_one_colour_to_the_other():
    surface = painted(bare_layout())
    reds = np.array(surface.colours)[surface.material][..., 0]
    assert (reds.min(), reds.max()) == (60, 160)
    assert (surface.label == NOTHING).all()
    assert (surface.light == 1).all()


def test_furrows_run_along_the_scenes_first_axis():
    surface = painted(bare_layout(furrows=0.1))
    assert (surface.light == surface.light[:, :1]).all()
    assert surface.light[:, 0].std() > 0.03


def test_a_field_is_a_patch_of_ground_of_its_own_colour():
    layout = bare_layout()
    layout.patches.append(Patch(Box(5, 5, 8, 6), (1, 2, 3), "field"))
    surface = painted(layout)
    own = surface.material == surface.colours.index((1, 2, 3))
    assert np.count_nonzero(own) == 16 * 12 * SCALE**2
    assert (surface.label == NOTHING).all()


@pytest.mark.parametrize("axis", ["u", "v"])
@pytest.mark.parametrize("half", [3.5, 7.0])
def test_a_road_is_paved_over_its_width_and_its_walks(axis, half):
    layout = bare_layout()
    layout.roads.append(road(axis, half=half))
    surface = painted(layout)
    paint_roads(surface, layout, SUBURB, bridges=False)
    paved = surface.label == LABEL["pavement"]
    at = np.flatnonzero(paved.all(1) if axis == "u" else paved.all(0))
    assert at[0] == (EXTENT / 2 + 3 - half - 1.5) * SCALE
    assert at[-1] + 1 == (EXTENT / 2 + 3 + half + 1.5) * SCALE
    assert np.count_nonzero(paved) == len(at) * PLACES


def test_markings_are_dashes_along_the_middle_and_stop_at_crossings():
    layout = bare_layout()
    layout.roads.extend([road("u", 0.125), road("v", 0.0)])
    surface = painted(layout)
    paint_roads(surface, layout, SUBURB, bridges=False)
    line = surface.material[PLACES // 2] == surface.colours.index(SUBURB.palette.marking)
    assert 0.15 < line.mean() < 0.5
    crossing = slice(int((EXTENT / 2 - 3.5) * SCALE), int((EXTENT / 2 + 3.5) * SCALE))
    assert not line[crossing].any()


def test_only_bridges_are_painted_over_water():
    water = Water("river", 0.0, 8.0, 0.0, STRAIGHT, 10.0, quay=False)
    layout = bare_layout()
    layout.water, layout.roads = water, [road("v", 10.0, bridge=True), road("v", -10.0)]
    surface = painted(layout)
    paint_roads(surface, layout, SUBURB, bridges=False)
    paint_water(surface, layout, water, Draws("water"))
    paint_roads(surface, layout, SUBURB, bridges=True)
    middle = surface.label[PLACES // 2]
    assert middle[int((EXTENT / 2 + 10) * SCALE)] == LABEL["pavement"]
    assert middle[int((EXTENT / 2 - 10) * SCALE)] == LABEL["water"]


@pytest.mark.parametrize("kind", ["coast", "river", "lake"])
@pytest.mark.parametrize("heading", [0, 77])
def test_water_is_where_the_depth_is_positive(kind, heading):
    water = Water(kind, -2.0, 9.0, 3.0, STRAIGHT, 10.0, quay=True)
    layout = bare_layout(heading)
    surface = painted(layout)
    paint_water(surface, layout, water, Draws("water"))
    at = (np.arange(PLACES) + 0.5) / SCALE - EXTENT / 2
    x, y = np.meshgrid(at.astype(np.float32), at.astype(np.float32))
    np.testing.assert_array_equal(surface.label == LABEL["water"], water.depth(*layout.frame.to_scene(x, y)) > 0)


def test_a_natural_shore_is_ragged_and_a_wall_is_straight():
    edges = {}
    for quay in (False, True):
        water = Water("coast", 0.0, 1.0, 0.0, STRAIGHT, 10.0, quay=quay)
        layout = bare_layout()
        surface = painted(layout)
        paint_water(surface, layout, water, Draws("water"))
        edges[quay] = np.argmax(surface.label == LABEL["water"], axis=0)
    assert len(set(edges[True].tolist())) == 1
    assert np.ptp(edges[False]) >= 2


def test_deep_water_has_the_deep_colour_and_the_shore_the_shallow_one():
    water = Water("coast", -10.0, 1.0, 0.0, STRAIGHT, 10.0, quay=False)
    layout = bare_layout()
    layout.waters = ((100, 150, 150), (20, 60, 80))
    surface = painted(layout)
    paint_water(surface, layout, water, Draws("water"))
    reds = np.array(surface.colours)[surface.material][..., 0]
    assert (reds[-20:] == 20).all()
    first = np.argmax(surface.label == LABEL["water"], axis=0)
    assert reds[first, np.arange(PLACES)].mean() > 70


@pytest.mark.parametrize("stalls", [False, True])
def test_a_lot_is_paved_all_over(stalls):
    layout = bare_layout(20)
    surface = painted(layout)
    paint_lot(surface, layout, Lot(Box(0, 0, 15, 8), (120, 120, 120), stalls), SUBURB, Draws("lot"))
    paved = surface.label == LABEL["pavement"]
    assert np.count_nonzero(paved) / SCALE**2 == pytest.approx(30 * 16, rel=0.01)
    marked = surface.material[paved] != surface.colours.index((120, 120, 120))
    assert marked.any() if stalls else surface.light[paved].std() > 0.01


@pytest.mark.parametrize("kind", ["pier", "court", "crate"])
def test_patches_carry_no_label_but_hide_the_one_below(kind):
    layout = bare_layout()
    surface = painted(layout)
    surface.label[:] = LABEL["pavement"] if kind == "crate" else LABEL["water"] if kind == "pier" else NOTHING
    paint_patch(surface, layout, Patch(Box(0, 0, 8, 4), (150, 60, 50), kind))
    assert np.count_nonzero(surface.label == NOTHING) == (PLACES**2 if kind == "court" else 16 * 8 * SCALE**2)
    assert surface.material[PLACES // 2, PLACES // 2 + 8] != 0
