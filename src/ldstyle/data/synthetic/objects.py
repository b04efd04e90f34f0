"""Paints the things of a layout: buildings, cars, trees and ships, each with its shadow and its label."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.synthetic.domains import VOCABULARY, Colour
from ldstyle.data.synthetic.draws import direction
from ldstyle.data.synthetic.plan import Box, Building, Car, Grid, Layout, Ship
from ldstyle.data.synthetic.surface import Grain, Point, Surface, Window
from ldstyle.data.synthetic.terrain import corners

BUILDING, CAR, TREE, _, _, SHIP = range(len(VOCABULARY))

_TILES = Grain(0.05, 0.05, 0.03)
_TAR = Grain(0.04, 0.06, 0.05)
_METAL = Grain(0.02, 0.0, 0.0)
_LEAVES = Grain(0.12, 0.1, 0.06)

_HULL = (
    *((-0.5, -0.36), (-0.5, 0.36), (-0.3, 0.5), (0.08, 0.5), (0.32, 0.34)),
    *((0.5, 0.0), (0.32, -0.34), (0.08, -0.5), (-0.3, -0.5)),
)

_HOLDS: tuple[Colour, ...] = ((150, 70, 56), (70, 96, 128), (92, 92, 90), (170, 150, 96), (110, 62, 52))


def _cast(surface: Surface, layout: Layout, outline: list[Point], height: float) -> None:
    dx, dy = layout.cast(height)
    surface.darken([*outline, *((x + dx, y + dy) for x, y in outline)])


def _facing(layout: Layout, normal: tuple[float, float]) -> float:
    """Return the brightness of a slope that faces ``normal`` (scene axes): bright towards the sun."""
    x, y = layout.frame.to_view(*normal)
    sun_x, sun_y = direction(layout.sun)
    return 1.0 - 0.27 * (x * sun_x + y * sun_y)


def paint_shadows(surface: Surface, layout: Layout) -> None:
    """Put the ground next to the buildings in the shadow; done for all before any roof is painted."""
    for building in layout.buildings:
        for wing in building.wings:
            _cast(surface, layout, corners(layout, wing), building.height)


def paint_building(surface: Surface, layout: Layout, building: Building) -> None:
    """Paint the roofs of a building."""
    flat = building.roof == "flat"
    roof = surface.add(building.colour, _TAR if flat else _TILES)
    for wing in building.wings:
        match building.roof:
            case "gable":
                _paint_pitched(surface, layout, wing, roof, hip=0.0)
            case "hip":
                _paint_pitched(surface, layout, wing, roof, hip=0.9)
            case "flat":
                surface.fill(corners(layout, wing), roof, light=1.14, label=BUILDING)
                surface.fill(corners(layout, wing.inset(0.5)), roof, light=0.96, label=BUILDING)
    unit = surface.add((188, 190, 190), _METAL)
    for fitting in building.fittings:
        outline = corners(layout, fitting)
        # The shadow stays on the roof: a small thing close to the edge must not darken the ground far below.
        _cast(surface, layout, outline, 0.8)
        surface.fill(outline, unit, label=BUILDING)


def _paint_pitched(surface: Surface, layout: Layout, wing: Box, roof: int, *, hip: float) -> None:
    u, v, half_u, half_v = wing
    along_u = half_u >= half_v
    run, rise = (half_u, half_v) if along_u else (half_v, half_u)
    ridge = run - hip * rise

    def to_point(along: float, across: float) -> Point:
        return layout.frame.to_view(u + along, v + across) if along_u else layout.frame.to_view(u + across, v + along)

    for side in (-1, 1):
        slope = [to_point(-run, side * rise), to_point(run, side * rise), to_point(ridge, 0), to_point(-ridge, 0)]
        normal = (0, side) if along_u else (side, 0)
        surface.fill(slope, roof, light=_facing(layout, normal), label=BUILDING)
        if hip:
            end = [to_point(side * run, -rise), to_point(side * run, rise), to_point(side * ridge, 0)]
            normal = (side, 0) if along_u else (0, side)
            surface.fill(end, roof, light=_facing(layout, normal), label=BUILDING)
    wide = max(0.12, 0.5 / surface.scale)
    line = [to_point(-ridge, -wide), to_point(ridge, -wide), to_point(ridge, wide), to_point(-ridge, wide)]
    surface.fill(line, roof, light=1.16, label=BUILDING)


def paint_car(surface: Surface, layout: Layout, car: Car) -> None:
    """Paint a car: body, glass and roof, as far as they can be distinguished."""
    body = surface.add(car.colour, _METAL)
    ahead = layout.frame.to_view(*car.ahead)
    middle = layout.frame.to_view(car.u, car.v)
    long, wide = car.length / 2, car.width / 2

    def part(back: float, front: float, fraction: float) -> list[Point]:
        return _oriented(middle, ahead, ((back * long, fraction * wide), (front * long, fraction * wide)))

    dx, dy = layout.cast(1.2)
    # So low a thing hides the start of its shadow, and the end of it needs no hull.
    surface.darken([(x + dx, y + dy) for x, y in part(-1, 1, 1)], hull=False)
    across = surface.scale * car.width
    if across > 5:
        surface.fill(part(-0.88, 0.86, 1), body, label=CAR)
        surface.fill(part(-1, 1, 0.8), body, label=CAR)
    else:
        surface.fill(part(-1, 1, 1), body, label=CAR)
    if across > 2.5:
        glass = surface.add((44, 52, 62), _METAL)
        surface.fill(part(-0.72, 0.4, 0.84), glass, label=CAR)
        surface.fill(part(-0.5, 0.1, 0.78), body, light=1.08, label=CAR)


def _oriented(middle: Point, ahead: Point, ends: tuple[Point, Point]) -> list[Point]:
    (back, half), (front, other) = ends
    (x, y), (ax, ay) = middle, ahead
    local = ((back, -half), (front, -other), (front, other), (back, half))
    return [(x + along * ax - across * ay, y + along * ay + across * ax) for along, across in local]


def paint_trees(surface: Surface, layout: Layout, leaves: Grid, *, foliage: float) -> None:
    """Paint all shadows of trees, then all crowns: ragged domes, lit from the sun's side.

    Args:
        surface: The sheet.
        layout: The scene's layout.
        leaves: Smooth noise over the sheet, that frays and dapples the crowns.
        foliage: Fraction of a crown that is leaves; the ground shows through the rest.
    """
    gaps = leaves < np.float32(1 - 1.7 * foliage) if foliage < 1 else None
    for tree in layout.trees:
        x, y = layout.frame.to_view(tree.u, tree.v)
        off_x, off_y = layout.cast(tree.radius * 1.3)
        window, inside, *_ = _crown(surface, (x + off_x, y + off_y), tree.radius, leaves, gaps)
        surface.shadow[window] |= inside
    sun_x, sun_y = (np.float32(0.32 * part) for part in direction(layout.sun))
    for tree in layout.trees:
        middle = layout.frame.to_view(tree.u, tree.v)
        window, inside, dx, dy = _crown(surface, middle, tree.radius * 1.15, leaves, gaps)
        light = np.float32(0.95) + np.float32(0.22) * leaves[window] - dx * (sun_x + np.float32(0.2) * dx)
        light -= dy * (sun_y + np.float32(0.2) * dy)
        surface.paint(window, inside, surface.add(tree.colour, _LEAVES), label=TREE)
        surface.light[window][inside] = light[inside]


def _crown(
    surface: Surface, middle: Point, radius: float, leaves: Grid, gaps: NDArray[np.bool_] | None
) -> tuple[Window, NDArray[np.bool_], Grid, Grid]:
    window, dx, dy = surface.disc(middle, radius)
    inside = dx * dx + dy * dy < np.float32(0.78) + np.float32(0.3) * leaves[window]
    return window, inside if gaps is None else inside & ~gaps[window], dx, dy


def paint_ship(surface: Surface, layout: Layout, ship: Ship) -> None:
    """Paint a ship: wake, shadow, hull, deck and house."""
    ahead = layout.frame.to_view(*ship.ahead)
    middle = layout.frame.to_view(ship.u, ship.v)

    def shape(points: tuple[Point, ...], grow: float = 1.0) -> list[Point]:
        (x, y), (ax, ay) = middle, ahead
        local = [(along * ship.length * grow, across * ship.beam * grow) for along, across in points]
        return [(x + a * ax - c * ay, y + a * ay + c * ax) for a, c in local]

    def block(back: float, front: float, half: float) -> list[Point]:
        return shape(((back, -half), (front, -half), (front, half), (back, half)))

    if ship.sailing:
        foam = surface.add((206, 214, 212), Grain(0.12, 0.1, 0.0))
        trail = surface.add(_mixed(layout.waters[0], (206, 214, 212)), Grain(0.08, 0.1, 0.0))
        surface.fill(shape(((-0.4, -0.4), (-2.2, -1.0), (-2.2, 1.0), (-0.4, 0.4))), trail)
        surface.fill(shape(((-0.4, -0.34), (-1.3, -0.22), (-1.3, 0.22), (-0.4, 0.34))), foam)
        for side in (-1.0, 1.0):
            surface.fill(shape(((0.35, side * 0.4), (-1.2, side * 1.7), (-0.9, side * 1.2))), foam, light=0.95)
    outline = shape(_HULL)
    _cast(surface, layout, outline, 0.12 * ship.length)
    surface.fill(outline, surface.add(ship.hull, _METAL), label=SHIP)
    surface.fill(shape(_HULL, 0.8), surface.add(ship.deck, Grain(0.05, 0.06, 0.0)), label=SHIP)
    if ship.length > 15:
        for hatch in range(3):
            at = -0.12 + 0.15 * hatch
            hold = surface.add(_HOLDS[(hatch + round(ship.length)) % len(_HOLDS)], _TAR)
            surface.fill(block(at, at + 0.12, 0.3 - 0.04 * hatch), hold, label=SHIP)
    house = surface.add((228, 228, 224), _METAL)
    back, front = (-0.4, -0.22) if ship.length > 15 else (-0.22, 0.16)
    surface.fill(block(back + 0.02, front + 0.06, 0.3), surface.add((52, 60, 70), _METAL), label=SHIP)
    surface.fill(block(back, front, 0.28), house, label=SHIP)


def _mixed(first: Colour, second: Colour) -> Colour:
    red, green, blue = ((a + b) // 2 for a, b in zip(first, second, strict=True))
    return red, green, blue
