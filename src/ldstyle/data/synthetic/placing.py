"""Places the things that stand on the surfaces: buildings, cars, trees and ships."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ldstyle.data.synthetic.draws import TURN, direction
from ldstyle.data.synthetic.plan import Box, Building, Car, Lot, Patch, Road, Ship, Site, Tree

INSIDE = 0.12
"""Fraction of half the view by which one thing of each label stands clear of the frame."""


def add_buildings(site: Site) -> None:
    """Place buildings in rows along the streets, or in rows of their own; at least one is in view if there is room."""
    draws = site.draws
    fill = draws.within((0.45, 0.95))
    parked = [lot.box for lot in site.layout.lots if lot.stalls]
    slabs = [lot.box for lot in site.layout.lots if not lot.stalls]
    site.taken.extend(parked)
    for low, high in _strips(site):
        u = -site.reach + draws.within((0, 6))
        while u < site.reach:
            long = draws.within(site.domain.footprint)
            deep = min(long * draws.within((0.5, 0.9)), (high - low) / 2)
            v = draws.within((low + deep / 2, high - deep / 2))
            box = Box(u + long / 2, v, long / 2, deep / 2)
            if draws.chance(fill) and site.near(box):
                _build(site, box, yard=not any(box.meets(slab, gap=0) for slab in slabs))
            u += long + draws.within((2.5, 7))
    tries = 160
    for attempt in range(tries):
        if any(_inside(site, building.wings[0]) for building in site.layout.buildings):
            break
        u, v = site.spot(margin=INSIDE * site.half)
        long = draws.within(site.domain.footprint) * (1 - 0.7 * attempt / tries)
        _build(site, Box(u, v, long / 2, long * 0.32), yard=False)
    if not any(_inside(site, building.wings[0]) for building in site.layout.buildings):
        site.layout.buildings.clear()


def _inside(site: Site, box: Box) -> bool:
    return site.layout.sees(box.u, box.v, margin=INSIDE * site.half)


def _strips(site: Site) -> Iterator[tuple[float, float]]:
    roads = sorted((road for road in site.layout.roads if road.axis == "u"), key=lambda road: road.at)
    deep = site.domain.footprint.high * 0.75
    edges = [(-site.reach - deep, 0.0), *((road.at, road.half + road.walk) for road in roads), (site.reach + deep, 0.0)]
    for (left, near), (right, far) in pairwise(edges):
        low, high = left + near + 2.0, right - far - 2.0
        rows = max(1, int((high - low) / (deep + 3)))
        if high - low > 5:
            for row in range(rows):
                yield low + (high - low) * row / rows, low + (high - low) * (row + 1) / rows - 1.5


def _build(site: Site, box: Box, *, yard: bool) -> None:
    draws, palette = site.draws, site.domain.palette
    if not (site.free(box, gap=1.2) and site.dry(box, margin=1.5)):
        return
    roof = draws.weighted(site.domain.roofs)
    wings = [box]
    if box.half_u > 5 and draws.chance(0.3):
        half = box.half_u * draws.within((0.3, 0.45))
        reach = box.half_v * draws.within((0.4, 0.7))
        side = 1 if draws.chance(0.5) else -1
        end = 1 if draws.chance(0.5) else -1
        wing = Box(box.u + end * (box.half_u - half), box.v + side * (box.half_v + reach - 0.5), half, reach + 0.5)
        if site.free(wing, gap=1.0) and site.dry(wing, margin=1.5):
            wings.append(wing)
    fittings = _fittings(site, box) if roof == "flat" else ()
    colour = site.tint(palette.flat if roof == "flat" else palette.pitched)
    site.layout.buildings.append(Building(tuple(wings), draws.within(site.domain.height), roof, colour, fittings))
    site.taken.extend(wings)
    if yard and draws.chance(0.6):
        grow = draws.within((2.0, 5.0))
        plot = Box(box.u, box.v, box.half_u + grow, box.half_v + grow)
        site.layout.patches.append(Patch(plot, site.tint(palette.ground), "yard"))


def _fittings(site: Site, box: Box) -> tuple[Box, ...]:
    draws = site.draws
    return tuple(
        Box(
            box.u + draws.within((-0.7, 0.7)) * box.half_u,
            box.v + draws.within((-0.65, 0.65)) * box.half_v,
            draws.within((0.6, 1.5)),
            draws.within((0.6, 1.3)),
        )
        for _ in range(draws.whole(1, 5))
    )


def add_cars(site: Site) -> None:
    """Place cars in stalls, in lanes and along the kerb; without pavement, next to the buildings."""
    draws = site.draws
    busy = draws.within((0.25, 0.9))
    for lot in site.layout.lots:
        if lot.stalls:
            _park(site, lot, busy)
        else:
            _scatter(site, draws.whole(1, 6), paved=lot.box)
    for road in site.layout.roads:
        _drive(site, road, busy)
    # Seen from far away, three cars are hardly a few pixels.
    enough = max(3, int(site.layout.extent / 16))
    for _ in range(24):
        if sum(site.layout.sees(car.u, car.v, margin=INSIDE * site.half) for car in site.layout.cars) >= enough:
            break
        if site.layout.roads:
            _drive(site, draws.pick(site.layout.roads), 1.0)
        else:
            _scatter(site, 2, paved=site.layout.lots[0].box if site.layout.lots else None)
    if not any(site.layout.sees(car.u, car.v, margin=INSIDE * site.half) for car in site.layout.cars):
        site.layout.cars.clear()


def _car(site: Site, u: float, v: float, ahead: tuple[int, int], *, gap: float = 0.3) -> None:
    draws = site.draws
    length, width = draws.within((4.0, 5.0)), draws.within((1.75, 2.0))
    if draws.chance(0.06):
        length, width = draws.within((6.0, 9.0)), 2.4
    box = Box(u, v, length / 2, width / 2) if ahead[0] else Box(u, v, width / 2, length / 2)
    if site.near(box) and site.free(box, gap=gap):
        site.layout.cars.append(Car(u, v, ahead, length, width, site.tint(site.domain.palette.cars)))
        site.taken.append(box)


def stalls(lot: Lot) -> Iterator[tuple[float, float, int]]:
    """Yield the middle of each stall of a lot and the side (±1) it opens to; stalls are 2.7 m by 5.2 m along v."""
    u, v, half_u, half_v = lot.box
    modules = max(1, int(half_v / 8))
    for module in range(modules):
        middle = v - half_v + (module + 0.5) * 2 * half_v / modules
        for side in (-1, 1):
            for stall in range(int((2 * half_u - 3) / 2.7)):
                yield u - half_u + 1.5 + (stall + 0.5) * 2.7, middle + side * 5.3, -side


def _park(site: Site, lot: Lot, busy: float) -> None:
    # The lot itself is taken, for the buildings' sake; the cars belong on it.
    site.taken = [box for box in site.taken if box != lot.box]
    for u, v, side in stalls(lot):
        if site.draws.chance(busy):
            facing = side if site.draws.chance(0.8) else -side
            _car(site, u, v + site.draws.within((-0.3, 0.3)), (0, facing), gap=0.1)
    site.taken.append(lot.box)


def _drive(site: Site, road: Road, busy: float) -> None:
    draws = site.draws
    own = road.box(site.reach)
    others = site.taken
    # A car may stand on its own road, but not where another crosses.
    site.taken = [box for box in others if box != own]
    known = len(site.taken)
    lane = site.domain.lane
    lanes = max(1, int(road.half / lane + 0.5))
    for side in (-1, 1):
        for number in range(lanes):
            at = road.at + side * (number + 0.5) * road.half / lanes
            along = -site.reach + draws.within((0, 0.5 * site.half))
            while along < site.reach:
                ahead = (side, 0) if road.axis == "u" else (0, -side)
                u, v = (along, at) if road.axis == "u" else (at, along)
                if road.bridge or site.depth((u, v))[0] < 0:
                    _car(site, u, v, ahead)
                along += 7 + draws.within((3, 0.65 * site.layout.extent)) * (1.1 - busy)
    site.taken = others + site.taken[known:]


def _scatter(site: Site, count: int, *, paved: Box | None) -> None:
    draws = site.draws
    area = paved
    for _ in range(count):
        u, v = site.spot(margin=0.15 * site.half)
        if area is not None and not (abs(u - area.u) < area.half_u - 2 and abs(v - area.v) < area.half_v - 2):
            continue
        box = Box(u, v, 2.5, 2.5)
        if site.dry(box, margin=1.0):
            _car(site, u, v, ((1, 0), (-1, 0), (0, 1), (0, -1))[draws.whole(0, 3)], gap=0.6)


def add_trees(site: Site) -> None:
    """Place trees on free soil: a forest or an orchard if there is nothing else, else groups and single trees."""
    draws = site.draws
    site.taken.extend(lot.box for lot in site.layout.lots)
    wild = site.held in ("t", "tw")
    if wild and draws.chance(0.25):
        _orchard(site)
    area = site.layout.extent * site.layout.extent
    crown = (site.domain.crown.low + site.domain.crown.high) / 2
    cover = draws.within((0.5, 1.6)) if wild else draws.within((0.08, 0.5))
    goal = max(3, min(260, int(cover * area / (3.1 * crown * crown))))
    seeds = [site.spot(margin=-0.1 * site.half) for _ in range(draws.whole(3, 9))]
    for _ in range(goal):
        u, v = site.spot(margin=-1.0)
        if not wild and draws.chance(0.6):
            middle = draws.pick(seeds)
            spread = 0.2 * site.half
            u, v = (at + draws.within((-spread, spread)) for at in middle)
        _plant(site, u, v)
    for _ in range(300):
        if sum(site.layout.sees(tree.u, tree.v, margin=INSIDE * site.half) for tree in site.layout.trees) >= 2:
            break
        _plant(site, *site.spot(margin=INSIDE * site.half))
    if not any(site.layout.sees(tree.u, tree.v, margin=INSIDE * site.half) for tree in site.layout.trees):
        site.layout.trees.clear()


def _orchard(site: Site) -> None:
    step = site.domain.crown.high * 2.2
    count = int(site.reach / step) + 1
    for row in range(-count, count + 1):
        for column in range(-count, count + 1):
            _plant(site, column * step, row * step)


def _plant(site: Site, u: float, v: float) -> None:
    draws = site.draws
    radius = draws.within(site.domain.crown)
    # The crown may hang over a kerb, the stem may not stand on it.
    box = Box(u, v, radius * 0.7, radius * 0.7)
    if site.layout.sees(u, v, margin=-radius) and site.free(box, gap=0.2) and site.dry(box, margin=0.5):
        site.layout.trees.append(Tree(u, v, radius, site.tint(site.domain.palette.crowns, 0.15)))


def add_ships(site: Site) -> None:
    """Place ships: moored at piers or along a wall, or under way."""
    draws, water = site.draws, site.layout.water
    assert water is not None, "a ship is always on water"
    if water.kind == "coast" and not draws.chance(site.domain.sailing):
        _moor(site, max(water.edge, -site.reach))
    for attempt in range(120):
        count = sum(site.layout.sees(s.u, s.v, margin=INSIDE * site.half) for s in site.layout.ships)
        if count >= (3 if attempt < 12 else 1):
            break
        u, v = site.spot(margin=INSIDE * site.half)
        along = water.kind != "coast" or draws.chance(0.7)
        heading = draws.pick((0, TURN // 2)) + draws.whole(-8, 8) if along else draws.whole(0, TURN - 1)
        shrink = 1 - attempt / 200
        sailing = draws.chance(site.domain.sailing)
        _float(site, u, v, direction(heading), draws.within(site.domain.ship) * shrink, sailing=sailing)


def _float(site: Site, u: float, v: float, ahead: tuple[float, float], length: float, *, sailing: bool) -> bool:
    draws, palette = site.draws, site.domain.palette
    beam = length * draws.within((0.24, 0.34))
    bow, side = (ahead[0] * length / 2, ahead[1] * length / 2), (-ahead[1] * beam / 2, ahead[0] * beam / 2)
    ends = [(u + i * bow[0] + j * side[0], v + i * bow[1] + j * side[1]) for i in (-1, 0, 1) for j in (-1, 1)]
    half_u, half_v = (max(abs(point[axis] - (u, v)[axis]) for point in ends) for axis in (0, 1))
    box = Box(u, v, half_u, half_v)
    if not (site.near(box) and min(site.depth(*ends)) > 0.3 and site.free(box, gap=0.5)):
        return False
    hull, deck = site.tint(palette.hulls, 0.04), site.tint(palette.decks)
    site.layout.ships.append(Ship(u, v, ahead, length, beam, hull, deck, sailing))
    site.taken.append(box)
    return True


def _moor(site: Site, edge: float) -> None:
    draws = site.draws
    longest = draws.within(site.domain.ship)
    pitch = longest * 0.36 + 0.8
    gap = 2 * longest + 2.4 + draws.within((0.3, 0.9)) * longest
    u = -site.reach + draws.within((0, gap))
    while u < site.reach:
        length = draws.within((2.5, 6.0)) * pitch
        pier = Box(u, edge + length / 2 - 0.5, 0.9, length / 2)
        open_water = site.depth((u, edge + length))[0] > 2
        if site.near(pier) and open_water:
            site.layout.patches.append(Patch(pier, site.tint(((150, 136, 116), (168, 160, 148))), "pier"))
            site.taken.append(pier)
            for berth in range(int(length / pitch)):
                for side in (-1, 1):
                    size = longest * draws.within((0.7, 1.0))
                    at = u + side * (1.5 + size / 2)
                    if draws.chance(0.75):
                        _float(site, at, edge + (berth + 0.7) * pitch, (side, 0), size, sailing=False)
        u += gap
