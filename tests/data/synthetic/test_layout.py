"""Layouts: labels as frequent as in the archives and as often together, and everything where it belongs."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import numpy as np
import pytest
import torch
from tests.tolerance import bound

from ldstyle.data.synthetic import BUILT_IN, DOMAINS, VOCABULARY, find_domain, frequencies, lay_out
from ldstyle.data.synthetic.plan import Box, Frame, Water

SCENES = 400

# Positive images of building, car, tree, water, pavement and ship, and of each pair, in the archive a domain follows.
ARCHIVES = {
    "suburb": (
        2100,
        [
            [691, 416, 469, 11, 557, 3],
            [416, 886, 536, 6, 833, 0],
            [469, 536, 1009, 80, 686, 2],
            [11, 6, 80, 203, 16, 102],
            [557, 833, 686, 16, 1300, 0],
            [3, 0, 2, 102, 0, 102],
        ],
    ),
    "region": (
        3000,
        [
            [2161, 1892, 2020, 690, 2065, 264],
            [1892, 2026, 1884, 624, 1993, 263],
            [2020, 1884, 2407, 775, 2074, 266],
            [690, 624, 775, 852, 702, 186],
            [2065, 1993, 2074, 702, 2328, 282],
            [264, 263, 266, 186, 282, 284],
        ],
    ),
    "harbour": (
        3342,
        [
            [1001, 538, 120, 158, 995, 58],
            [538, 705, 63, 111, 705, 55],
            [120, 63, 258, 49, 214, 0],
            [158, 111, 49, 998, 824, 258],
            [995, 705, 214, 824, 3133, 172],
            [58, 55, 0, 258, 172, 270],
        ],
    ),
}


@pytest.fixture(scope="module")
def layouts():
    return {domain: [lay_out(domain, number, seed=5) for number in range(SCENES)] for domain in DOMAINS}


def pair_weights(domain):
    sets = BUILT_IN[domain].label_sets
    total = sum(sets.values())
    together = np.zeros((len(VOCABULARY), len(VOCABULARY)))
    for held, weight in sets.items():
        present = np.array([label[0] in held for label in VOCABULARY])
        together += weight / total * np.outer(present, present)
    return together


def test_initials_tell_the_labels_apart():
    assert len({label[0] for label in VOCABULARY}) == len(VOCABULARY)


@pytest.mark.parametrize("domain", DOMAINS)
def test_targets_are_within_2_percent_of_the_archives_frequencies(domain):
    images, counts = ARCHIVES[domain]
    np.testing.assert_allclose(list(frequencies(BUILT_IN[domain]).values()), np.diag(counts) / images, atol=0.02)


@pytest.mark.parametrize("domain", DOMAINS)
def test_targets_of_pairs_are_within_3_percent_of_the_archives(domain):
    images, counts = ARCHIVES[domain]
    wanted = np.array(counts) / images
    # A drawn ship is always on water; the archives also know ships at sea, which is not of the shared vocabulary.
    ship, water = VOCABULARY.index("ship"), VOCABULARY.index("water")
    wanted[ship, water] = wanted[water, ship] = wanted[ship, ship]
    np.testing.assert_allclose(pair_weights(domain), wanted, atol=0.03)


@pytest.mark.parametrize("domain", DOMAINS)
def test_layouts_hold_labels_and_pairs_as_often_as_targeted(domain, layouts):
    held = np.array([layout.labels for layout in layouts[domain]], float)
    wanted = pair_weights(domain)
    # Four standard errors, and one percent for things that found no room.
    tolerance = 4 * np.sqrt(wanted * (1 - wanted) / SCENES) + 0.01
    assert (np.abs(held.T @ held / SCENES - wanted) <= tolerance).all()


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_layout_is_the_same_every_time_and_differs_by_number_and_seed(domain):
    assert lay_out(domain, 3, seed=1) == lay_out(domain, 3, seed=1)
    assert lay_out(domain, 3, seed=1) != lay_out(domain, 4, seed=1)
    assert lay_out(domain, 3, seed=1) != lay_out(domain, 3, seed=2)


@pytest.mark.parametrize("domain", DOMAINS)
def test_what_a_label_stands_for_is_well_in_view(domain, layouts):
    for layout in layouts[domain]:
        things = {
            "building": [building.wings[0] for building in layout.buildings],
            **{"car": layout.cars, "tree": layout.trees, "ship": layout.ships},
        }
        for label, places in things.items():
            inside = any(layout.sees(place.u, place.v, margin=0.05 * layout.extent) for place in places)
            assert inside or not places, label


@pytest.mark.parametrize("domain", DOMAINS)
def test_ships_float_and_all_else_stands_on_land_or_on_a_bridge(domain, layouts):
    for layout in layouts[domain]:
        if layout.water is None:
            assert not layout.ships
            continue
        bridges = [road.box(layout.extent) for road in layout.roads if road.bridge]
        dry = [(wing.u, wing.v) for building in layout.buildings for wing in building.wings]
        dry += [(tree.u, tree.v) for tree in layout.trees]
        dry += [(c.u, c.v) for c in layout.cars if not any(Box(c.u, c.v, 0, 0).meets(b, gap=0) for b in bridges)]
        for u, v in dry:
            assert layout.water.depth(np.array([u], np.float32), np.array([v], np.float32))[0] < 0
        for ship in layout.ships:
            assert layout.water.depth(np.array([ship.u], np.float32), np.array([ship.v], np.float32))[0] > 0


@pytest.mark.parametrize("domain", DOMAINS)
def test_buildings_keep_off_roads_cars_and_each_other(domain, layouts):
    for layout in layouts[domain][:120]:
        roads = [road.box(layout.extent) for road in layout.roads]
        stands = [wing for building in layout.buildings for wing in building.wings[:1]]
        cars = [Box(car.u, car.v, 0.8, 0.8) for car in layout.cars]
        for first, second in combinations(stands, 2):
            assert not first.meets(second, gap=0.9)
        for wing in stands:
            assert not any(wing.meets(other, gap=0) for other in (*roads, *cars))


def test_an_unknown_domain_is_refused_by_name():
    with pytest.raises(ValueError, match=r"`domain` must be one of suburb, region, harbour; got 'ucm'\."):
        find_domain("ucm")


def test_boxes_meet_when_closer_than_the_gap_along_both_axes():
    box = Box(0, 0, 2, 1)
    assert box.meets(Box(5, 0, 2, 1), gap=1.5)
    assert not box.meets(Box(5, 0, 2, 1), gap=0.5)
    assert not box.meets(Box(3, 9, 2, 1), gap=1.5)
    assert box.inset(0.5) == Box(0, 0, 1.5, 0.5)


@pytest.mark.parametrize("heading", [0, 17, 64, 200])
def test_a_frame_turns_forth_and_back(heading):
    frame = Frame(heading)
    x, y = frame.to_view(3.0, -7.0)
    u, v = frame.to_scene(np.array([x], np.float32), np.array([y], np.float32))
    # Directions are on a grid of 1/4096, so that turning forth and back scales by up to 2 · √2 / 4096 · √2 / 2.
    error = 8 / 4096
    assert (u[0], v[0]) == (pytest.approx(3.0, abs=error), pytest.approx(-7.0, abs=error))


@pytest.mark.parametrize(
    ("kind", "depth"),
    [
        ("coast", lambda u, v: v - 4),
        ("river", lambda u, v: 6 - abs(v - 4)),
        ("lake", lambda u, v: 6 - sqrt(0.6 * (u - 1) ** 2 + (v - 4) ** 2)),
    ],
)
def test_without_bends_the_depth_is_the_distance_to_the_shore(kind, depth):
    straight = (0.0,) * 5
    water = Water(kind, edge=4.0, reach=6.0, u=1.0, bends=(straight, straight), step=3.0, quay=False)
    for u, v in [(0, 0), (1, 4), (-30, 12), (8.5, -3)]:
        got = water.depth(np.array([u], np.float32), np.array([v], np.float32))[0]
        assert got == pytest.approx(depth(u, v), abs=bound(12, scale=60, dtype=torch.float32))


def test_bends_move_the_shore_by_their_size_at_their_places():
    water = Water("coast", 0.0, 1.0, 0.0, ((0.0, 2.0, -1.0, 0.0), (0.0,) * 4), step=10.0, quay=False)
    # Four bends stand at u = -20, -10, 0 and 10.
    u = np.array([-20, -10, 0], np.float32)
    np.testing.assert_allclose(
        water.depth(u, np.zeros(3, np.float32)), [0, 2, -1], rtol=0, atol=bound(12, scale=2 * 3, dtype=torch.float32)
    )
