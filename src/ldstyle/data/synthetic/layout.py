"""Lays a scene out from its seed: the labels first, then the surfaces and their objects, where they fit."""

from __future__ import annotations

from typing import Literal

from ldstyle.data.synthetic.domains import Domain, PavingKind, WaterKind, find_domain
from ldstyle.data.synthetic.draws import TURN, Draws
from ldstyle.data.synthetic.placing import add_buildings, add_cars, add_ships, add_trees
from ldstyle.data.synthetic.plan import Axis, Box, Frame, Layout, Lot, Patch, Road, Site, Water


def add_water(site: Site) -> None:
    """Lay out one body of water; scenes of water alone are mostly water."""
    draws, half = site.draws, site.half
    alone = not set(site.held) & set("bctp")
    kind: WaterKind = draws.weighted(site.domain.waters)
    if "s" in site.held and (alone or kind == "lake"):
        kind = "coast"
    quay = kind == "coast" and draws.chance(site.domain.quay)
    wild = 0.0 if quay else draws.within((0.08, 0.2)) * half
    step = half * draws.within((0.35, 0.7))
    edge = draws.within((-0.15 * half, 0.25 * half))
    reach = draws.within((0.3, 0.5)) * half
    if alone and kind == "coast":
        edge = -2 * site.reach if draws.chance(0.4) else draws.within((-0.7 * half, -0.3 * half))
    if kind == "lake":
        edge, reach = draws.within((-0.3 * half, 0.3 * half)), draws.within((0.4, 0.6)) * half
    bends = tuple(tuple(draws.within((-wild, wild)) for _ in range(14)) for _ in range(2))
    site.layout.water = Water(
        kind, edge, reach, draws.within((-0.3 * half, 0.3 * half)), (bends[0], bends[1]), step, quay
    )
    site.layout.waters = draws.pick(site.domain.palette.water)
    site.layout.shore = site.tint(site.domain.palette.shore)


def add_paving(site: Site) -> None:
    """Lay out streets, a lot or an apron, on land; a street across a river is a bridge."""
    kind: PavingKind = site.draws.weighted(site.domain.paving)
    water = site.layout.water
    if water is not None and water.kind == "coast" and water.quay and site.draws.chance(0.6):
        _pave_quay(site, water)
        return
    # Trees need soil and a lake or river would cut a slab, so only bare dry scenes are paved all over.
    if kind == "apron" and (water is not None or "t" in site.held):
        kind = "street"
    match kind:
        case "street":
            _add_streets(site)
        case "lot":
            _add_streets(site, single=True)
            _add_lot(site)
        case "apron":
            everything = Box(0, 0, site.reach * 1.1, site.reach * 1.1)
            site.layout.lots.append(Lot(everything, site.tint(site.domain.palette.concrete), stalls=False))


def _pave_quay(site: Site, water: Water) -> None:
    deep = site.draws.within((0.25, 1.0)) * site.half
    box = Box(0, water.edge - deep / 2, site.reach * 1.1, deep / 2)
    site.layout.lots.append(Lot(box, site.tint(site.domain.palette.concrete), stalls=False))
    if deep < 0.5 * site.half:
        _add_streets(site, single=True)


def _add_streets(site: Site, *, single: bool = False) -> None:
    draws, domain, water = site.draws, site.domain, site.layout.water
    lanes = 4 if draws.chance(domain.avenue) else 2
    half = lanes * domain.lane / 2
    walk = draws.within((1.2, 2.2)) if draws.chance(0.75) else 0.0
    colour = site.tint(domain.palette.asphalt)
    spacing = draws.within(domain.block)
    first = draws.within((-0.4, 0.4)) * site.half
    if water is not None:
        clear = half + walk + draws.within((0.1, 0.35)) * site.half
        first = (water.edge if water.kind == "coast" else water.edge - water.reach) - clear
    along = [first] if single else [first + step * spacing for step in range(-6, 7)]
    across = []
    if not single and draws.chance(0.6):
        start = draws.within((-0.5, 0.5)) * site.half
        across = [start + step * spacing * 1.4 for step in range(-4, 5)]
    bridge = water is not None and water.kind == "river"
    if water is not None and water.kind == "lake" and single and draws.chance(0.5):
        along, across = [], [water.u + water.reach * 1.6]
    if bridge and not across and draws.chance(0.6):
        across = [draws.within((-0.4, 0.4)) * site.half]
    _add_roads(site, "u", along, half, walk, colour)
    _add_roads(site, "v", across, half, walk, colour, bridge=bridge)


def _add_roads(
    site: Site,
    axis: Axis,
    positions: list[float],
    half: float,
    walk: float,
    colour: tuple[int, int, int],
    *,
    bridge: bool = False,
) -> None:
    for at in positions:
        road = Road(axis, at, half, walk, colour, bridge)
        box = road.box(site.reach)
        if abs(at) > site.reach:
            continue
        middle = (0.0, at) if axis == "u" else (at, 0.0)
        wet = axis == "u" and site.depth(middle)[0] > -half
        if wet and not bridge:
            continue
        site.layout.roads.append(road)
        site.taken.append(box)


def _add_lot(site: Site) -> None:
    draws = site.draws
    for _ in range(12):
        half_u = draws.within((0.35, 0.8)) * site.half
        half_v = 8.0 * draws.whole(1, max(1, int(site.half / 14)))
        u, v = site.spot(margin=0.2 * site.half)
        for road in site.layout.roads:
            if road.axis == "u":
                side = 1 if v > road.at else -1
                v = road.at + side * (road.half + road.walk + half_v)
        box = Box(u, v, half_u, half_v)
        if site.free(box, gap=-0.1) and site.dry(box, margin=1.0):
            site.layout.lots.append(Lot(box, site.tint(site.domain.palette.asphalt), stalls=True))
            return


def add_patches(site: Site) -> None:
    """Lay out fields on open ground, courts and stacked crates: things of no label that scenes are full of."""
    draws = site.draws
    palette = site.domain.palette
    if not site.held:
        for _ in range(draws.whole(0, 3)):
            u, v = site.spot(margin=-0.2 * site.half)
            box = Box(u, v, draws.within((0.3, 1.0)) * site.half, draws.within((0.3, 1.0)) * site.half)
            colours = palette.bare if draws.chance(0.5) else palette.ground
            site.layout.patches.append(Patch(box, site.tint(colours), "field"))
        if draws.chance(0.2):
            _add_single(site, "court", Box(0, 0, 11.9, 5.5), ((88, 128, 96), (154, 96, 76), (84, 110, 150)))
        return
    paved = any(not lot.stalls for lot in site.layout.lots)
    if paved and draws.chance(0.5):
        for _ in range(draws.whole(1, 6)):
            long = draws.chance(0.5)
            box = Box(0, 0, 3.0 if long else 1.2, 1.2 if long else 3.0)
            _add_single(site, "crate", box, ((150, 62, 48), (54, 92, 128), (170, 140, 60), (72, 108, 84)))


def _add_single(
    site: Site, kind: Literal["court", "crate"], size: Box, colours: tuple[tuple[int, int, int], ...]
) -> None:
    u, v = site.spot(margin=0)
    box = Box(u, v, size.half_u, size.half_v)
    if site.free(box, gap=0.4) and site.dry(box, margin=1.0):
        site.layout.patches.append(Patch(box, site.tint(colours), kind))
        site.taken.append(box)


def lay_out(domain: str, number: int, *, seed: int) -> Layout:
    """Return what stands where in scene ``number`` of a domain.

    The layout is in metres and does not depend on the size of the image. The set of labels is drawn first, from the
    domain's weights; a thing that finds no room is left out, and its label with it.

    Args:
        domain: Name of a built-in domain.
        number: Number of the scene, from 0.
        seed: Seed of the collection.
    """
    style = find_domain(domain)
    draws = Draws("scene", domain, number, seed)
    held = draws.weighted(style.label_sets)
    site = Site(style, _open_ground(style, draws, held), draws, held)
    if "w" in held:
        add_water(site)
    if "p" in held:
        add_paving(site)
    if "s" in held:
        add_ships(site)
    if "b" in held:
        add_buildings(site)
    if "c" in held:
        add_cars(site)
    add_patches(site)
    if "t" in held:
        add_trees(site)
    return site.layout


def _open_ground(style: Domain, draws: Draws, held: str) -> Layout:
    palette = style.palette
    bare = not held and draws.chance(0.5)
    first = draws.pick(palette.bare if bare else palette.ground)
    second = draws.pick(palette.bare if bare or draws.chance(0.25) else palette.ground)
    return Layout(
        extent=draws.within(style.extent),
        frame=Frame(draws.whole(0, TURN - 1)),
        sun=draws.whole(0, TURN - 1),
        shadow=draws.within(style.shadow),
        grounds=(first, second),
        furrows=draws.within((0.05, 0.16)) if not held and draws.chance(0.6) else 0.0,
    )
