"""Paints the surfaces of a layout: open ground, roads, lots, water and patches."""

from __future__ import annotations

import numpy as np

from ldstyle.data.synthetic.domains import VOCABULARY, Colour, Domain
from ldstyle.data.synthetic.draws import Draws, value_noise
from ldstyle.data.synthetic.placing import stalls
from ldstyle.data.synthetic.plan import Box, Grid, Layout, Lot, Patch, Road, Water
from ldstyle.data.synthetic.surface import NOTHING, Grain, Point, Surface

PAVEMENT = VOCABULARY.index("pavement")
WATER = VOCABULARY.index("water")

_SOIL = Grain(0.07, 0.1, 0.1)
_PAVED = Grain(0.035, 0.03, 0.05)
_PAINT = Grain(0.06, 0.12, 0.0)
_RIPPLES = Grain(0.035, 0.06, 0.07)
_WOOD = Grain(0.08, 0.03, 0.0)

_BANDS = 8
"""Steps between two colours: enough to pass for a gradient, with one material per subpixel."""


def corners(layout: Layout, box: Box) -> list[Point]:
    """Return a rectangle's corners in the view."""
    return [layout.frame.to_view(u, v) for u, v in box.corners]


def paint_ground(surface: Surface, layout: Layout, draws: Draws) -> None:
    """Cover everything with two kinds of ground that mingle, and plough it if the layout has furrows."""
    mingle = value_noise(draws, surface.subpixels, 3.5) + np.float32(0.4) * value_noise(draws, surface.subpixels, 17)
    surface.material[:] = np.clip(mingle * 6 + 3, 0, _BANDS - 1)
    for band in range(_BANDS):
        surface.add(_between(*layout.grounds, band / (_BANDS - 1)), _SOIL)
    for patch in layout.patches:
        if patch.kind in ("field", "yard"):
            surface.fill(corners(layout, patch.box), surface.add(patch.colour, _SOIL))
    if layout.furrows:
        _, v = _scene_grid(surface, layout)
        rows = draws.field(256)
        step = np.float32(1.4)
        surface.light += np.float32(layout.furrows) * rows[(v / step).astype(np.int64) % 256]


def paint_roads(surface: Surface, layout: Layout, domain: Domain, *, bridges: bool) -> None:
    """Paint the roads, or those that are bridges, with their markings."""
    chosen = [road for road in layout.roads if road.bridge == bridges]
    kerb = surface.add(_scaled(domain.palette.concrete[0], 1.0), _PAVED)
    reach = layout.extent
    for road in chosen:
        if bridges:
            surface.darken([_shifted(point, layout, 2.5) for point in corners(layout, road.box(reach).inset(-0.3))])
        surface.fill(corners(layout, road.box(reach)), kerb, label=PAVEMENT)
    for road in chosen:
        strip = Box(0, road.at, reach, road.half) if road.axis == "u" else Box(road.at, 0, road.half, reach)
        surface.fill(corners(layout, strip), surface.add(road.colour, _PAVED), label=PAVEMENT)
    marking = surface.add(domain.palette.marking, _PAINT)
    for road in chosen:
        _mark(surface, layout, road, marking, chosen)
        _cross(surface, layout, road, marking, chosen)


def _mark(surface: Surface, layout: Layout, road: Road, marking: int, roads: list[Road]) -> None:
    crossings = [(other.at, other.half + 2.5) for other in roads if other.axis != road.axis]
    wide = max(0.09, 0.5 / surface.scale)
    reach = layout.extent * 0.72
    pitch = 8 if surface.scale > 3 else 12
    dashed = [0.0] if road.half < 5 else [-road.half / 2, road.half / 2]
    for offset in dashed:
        for dash in range(int(2 * reach / pitch)):
            at = dash * pitch - reach
            u, v = (at, road.at + offset) if road.axis == "u" else (road.at + offset, at)
            if layout.sees(u, v, margin=-2) and all(abs(at - middle) > half for middle, half in crossings):
                box = Box(u, v, 1.5, wide) if road.axis == "u" else Box(u, v, wide, 1.5)
                surface.fill(corners(layout, box), marking, light=0.95, label=PAVEMENT)
    if road.half >= 5:
        ends = [-reach, *sorted(at + side * half for at, half in crossings for side in (-1, 1)), reach]
        for low, high in zip(ends[::2], ends[1::2], strict=True):
            middle, half = (low + high) / 2, (high - low) / 2
            line = Box(middle, road.at, half, wide) if road.axis == "u" else Box(road.at, middle, wide, half)
            if half > 0:
                surface.fill(corners(layout, line), marking, light=0.95, label=PAVEMENT)


def _cross(surface: Surface, layout: Layout, road: Road, marking: int, roads: list[Road]) -> None:
    # Zebra crossings would blur into a grey bar where a stripe is under two subpixels wide.
    if surface.scale < 3.5:
        return
    for other in (other for other in roads if other.axis != road.axis):
        at = other.at + other.half + other.walk + 2.0
        for stripe in range(int(road.half / 0.5)):
            across = road.at - road.half + 0.5 + stripe
            u, v = (at, across) if road.axis == "u" else (across, at)
            box = Box(u, v, 1.3, 0.25) if road.axis == "u" else Box(u, v, 0.25, 1.3)
            if layout.sees(u, v, margin=-1) and road.walk:
                surface.fill(corners(layout, box), marking, light=0.95, label=PAVEMENT)


def paint_lot(surface: Surface, layout: Layout, lot: Lot, domain: Domain, draws: Draws) -> None:
    """Paint a lot with its stalls, or an apron of slabs with stains and rails."""
    surface.fill(corners(layout, lot.box), surface.add(lot.colour, _PAVED), label=PAVEMENT)
    if lot.stalls:
        wide = max(0.07, 0.5 / surface.scale)
        marking = surface.add(domain.palette.marking, _PAINT)
        for u, v, _ in stalls(lot):
            if layout.sees(u, v, margin=-3):
                surface.fill(corners(layout, Box(u - 1.35, v, wide, 2.5)), marking, light=0.9, label=PAVEMENT)
    else:
        _lay_slabs(surface, layout, lot, draws)
        _paint_lines(surface, layout, lot, draws)
    for _ in range(draws.whole(2, 8)):
        _stain(surface, layout, draws)


def _lay_slabs(surface: Surface, layout: Layout, lot: Lot, draws: Draws) -> None:
    window, inside = surface.polygon(corners(layout, lot.box))
    u, v = (at[window] for at in _scene_grid(surface, layout))
    size = draws.within((0.06, 0.16)) * layout.extent
    column, row = u / np.float32(size) + 64, v / np.float32(size) + 64
    if draws.chance(0.4):
        column = column + np.float32(0.5) * (row.astype(np.int64) % 2)
    left, top = column.astype(np.int64), row.astype(np.int64)
    joint = np.float32(max(0.1, 0.8 / surface.scale) / size)
    slabs = 1 + np.float32(draws.within((0.01, 0.06))) * draws.field(128, 128)[top % 128, left % 128]
    light = np.where((column - left < joint) | (row - top < joint), np.float32(0.84), slabs)
    surface.light[window][inside] = light[inside]


def _paint_lines(surface: Surface, layout: Layout, lot: Lot, draws: Draws) -> None:
    u, v, half_u, half_v = lot.box
    at = v + draws.within((-0.35, 0.35)) * min(half_v, layout.extent / 2)
    wide = max(0.08, 0.5 / surface.scale)
    if draws.chance(0.35):
        rail = surface.add((86, 78, 74), _PAINT)
        for side in (-0.75, 0.75):
            surface.fill(corners(layout, Box(u, at + side, half_u, wide)), rail, label=PAVEMENT)
    elif draws.chance(0.5):
        line = surface.add(draws.pick(((222, 190, 84), (226, 226, 222))), _PAINT)
        surface.fill(corners(layout, Box(u, at, half_u, wide)), line, label=PAVEMENT)


def _stain(surface: Surface, layout: Layout, draws: Draws) -> None:
    x, y = (draws.within((-0.5, 0.5)) * layout.extent for _ in range(2))
    window, dx, dy = surface.disc((x, y), draws.within((0.01, 0.07)) * layout.extent)
    strength = np.float32(draws.within((0.05, 0.2)))
    surface.light[window] *= 1 - strength * np.clip(1 - dx * dx - dy * dy, 0, 1)


def paint_water(surface: Surface, layout: Layout, water: Water, draws: Draws) -> None:
    """Paint water over the ground, from its shallows to the deep, with a beach or a wall around it."""
    u, v = _scene_grid(surface, layout)
    depth = water.depth(u, v)
    rough = value_noise(draws, surface.subpixels, layout.extent / 1.5)
    ragged = np.float32(0.0 if water.quay else 0.012 * layout.extent)
    depth = depth + rough * ragged
    everything = (slice(None), slice(None))
    beach = np.float32(0.6 if water.quay else 0.022 * layout.extent)
    shore = surface.add(layout.shore, Grain(0.04, 0.06, 0.0))
    surface.paint(everything, (depth > -beach) & (depth <= 0), shore, light=1.05, label=NOTHING)
    shelf = layout.extent * (0.02 if water.quay else 0.09)
    shade = depth + value_noise(draws, surface.subpixels, layout.extent / 3) * np.float32(shelf * 0.35)
    wet = depth > 0
    first = len(surface.colours)
    for band in range(_BANDS):
        surface.add(_between(*layout.waters, band / (_BANDS - 1)), _RIPPLES)
    surface.paint(everything, wet, first, label=WATER)
    waves = value_noise(draws, surface.subpixels, layout.extent / 0.9, layout.extent / 4)
    surface.light += np.float32(0.09) * waves * wet
    surface.material += (np.clip(shade * np.float32(_BANDS / shelf), 0, _BANDS - 1) * wet).astype(np.int16)
    if water.quay:
        surface.shadow |= wet & (depth < np.float32(0.012 * layout.extent + 0.4))


def paint_patch(surface: Surface, layout: Layout, patch: Patch) -> None:
    """Paint a pier, a court or a crate; fields and yards are part of the ground."""
    outline = corners(layout, patch.box)
    match patch.kind:
        case "field" | "yard":
            return
        case "pier":
            surface.darken([*outline, *(_shifted(point, layout, 1.0) for point in outline)])
            surface.fill(outline, surface.add(patch.colour, _WOOD), label=NOTHING)
        case "court":
            surface.fill(corners(layout, patch.box.inset(-2.5)), surface.add(_scaled(patch.colour, 0.85), _PAVED))
            line = surface.add((226, 226, 222), _PAINT)
            surface.fill(outline, line)
            court = surface.add(patch.colour, _PAVED)
            u, v, half_u, half_v = patch.box
            for side in (-1, 1):
                inner = Box(u + side * half_u / 2, v, half_u / 2, half_v).inset(0.3)
                surface.fill(corners(layout, inner), court)
        case "crate":
            surface.darken([*outline, *(_shifted(point, layout, 2.6) for point in outline)])
            surface.fill(outline, surface.add(patch.colour, Grain(0.04, 0.05, 0.0)), label=NOTHING)
            ridge = patch.box.inset(patch.box.half_v * 0.35 if patch.box.half_u > patch.box.half_v else 0.4)
            surface.fill(corners(layout, ridge), surface.add(_scaled(patch.colour, 1.12)), label=NOTHING)


def _shifted(point: Point, layout: Layout, height: float) -> Point:
    dx, dy = layout.cast(height)
    return point[0] + dx, point[1] + dy


def _scene_grid(surface: Surface, layout: Layout) -> tuple[Grid, Grid]:
    at = (np.arange(surface.subpixels, dtype=np.float32) + np.float32(0.5 - surface.subpixels / 2)) / np.float32(
        surface.scale
    )
    return layout.frame.to_scene(at[None, :], at[:, None])


def _scaled(colour: Colour, factor: float) -> Colour:
    red, green, blue = (min(255, round(level * factor)) for level in colour)
    return red, green, blue


def _between(first: Colour, second: Colour, fraction: float) -> Colour:
    red, green, blue = (round(a + (b - a) * fraction) for a, b in zip(first, second, strict=True))
    return red, green, blue
