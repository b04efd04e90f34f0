"""Lays a scene out from its seed: the labels first, then their objects, where they fit."""

from __future__ import annotations

from ldstyle.data.synthetic.domains import Domain, find_domain
from ldstyle.data.synthetic.draws import TURN, Draws
from ldstyle.data.synthetic.grounds import add_patches, add_paving, add_water
from ldstyle.data.synthetic.placing import add_buildings, add_cars, add_ships, add_trees
from ldstyle.data.synthetic.plan import Frame, Layout
from ldstyle.data.synthetic.site import Site


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
