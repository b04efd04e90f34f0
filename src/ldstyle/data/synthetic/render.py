"""Draws a scene: paints its layout on a sheet twice as fine, then looks at it through the domain's sensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.synthetic.domains import DOMAINS, VOCABULARY, Domain, find_domain
from ldstyle.data.synthetic.draws import Draws, value_noise
from ldstyle.data.synthetic.layout import lay_out
from ldstyle.data.synthetic.objects import (
    paint_building,
    paint_car,
    paint_shadows,
    paint_ship,
    paint_trees,
)
from ldstyle.data.synthetic.plan import Layout
from ldstyle.data.synthetic.sensor import expose
from ldstyle.data.synthetic.surface import Surface
from ldstyle.data.synthetic.terrain import paint_ground, paint_lot, paint_patch, paint_roads, paint_water

FINER = 2
"""Subpixels of the sheet per pixel and side."""

LEAST_PIXELS = 4
"""A label that covers fewer pixels is not there."""

SMALLEST, LARGEST = 48, 1024


@dataclass(frozen=True)
class Scene:
    """A synthetic scene.

    Attributes:
        image: Colours, (S, S, 3) uint8.
        masks: Where each label of the vocabulary is seen, (L, S, S) bool. A pixel that two labels share has both.
        labels: Which labels are present, (L,) bool: those whose mask is not empty.
    """

    image: NDArray[np.uint8]
    masks: NDArray[np.bool_]
    labels: NDArray[np.bool_]


def draw_scene(domain: str, number: int, *, seed: int, size: int = 128) -> Scene:
    """Draw scene ``number`` of a domain, the same on every machine.

    Args:
        domain: Name of a built-in domain, see ``DOMAINS``.
        number: Number of the scene, from 0.
        seed: Seed of the collection.
        size: Side S of the image in pixels. The layout does not depend on it; its pixels' size on the ground does.
    """
    check_size(size)
    style = find_domain(domain)
    layout = lay_out(domain, number, seed=seed)
    draws = Draws("paint", domain, number, seed)
    surface = paint(layout, style, draws, subpixels=FINER * size)
    masks = _masks(surface)
    return Scene(expose(surface, layout, style.sensor, draws, finer=FINER), masks, np.asarray(masks.any((1, 2))))


def check_size(size: int) -> None:
    """Refuse image sizes that cannot be drawn."""
    if not SMALLEST <= size <= LARGEST:
        raise ValueError(f"`size` must be from {SMALLEST} to {LARGEST} pixels; got {size}.")


def paint(layout: Layout, style: Domain, draws: Draws, *, subpixels: int) -> Surface:
    """Paint a layout, from the ground up."""
    surface = Surface(subpixels, layout.extent)
    paint_ground(surface, layout, draws)
    paint_roads(surface, layout, style, bridges=False)
    for lot in layout.lots:
        paint_lot(surface, layout, lot, style, draws)
    if layout.water is not None:
        paint_water(surface, layout, layout.water, draws)
    paint_roads(surface, layout, style, bridges=True)
    for patch in layout.patches:
        paint_patch(surface, layout, patch)
    for ship in layout.ships:
        paint_ship(surface, layout, ship)
    paint_shadows(surface, layout)
    for building in layout.buildings:
        paint_building(surface, layout, building)
    for car in layout.cars:
        paint_car(surface, layout, car)
    leaves = value_noise(draws, subpixels, layout.extent / style.leaf)
    paint_trees(surface, layout, leaves, foliage=style.foliage)
    return surface


def _masks(surface: Surface) -> NDArray[np.bool_]:
    labels = np.arange(len(VOCABULARY), dtype=np.int8)[:, None, None]
    phases = [surface.label[row::FINER, column::FINER] for row in range(FINER) for column in range(FINER)]
    seen = sum((phase == labels).view(np.int8) for phase in phases)  # (L, S, S): subpixels of the pixel
    masks: NDArray[np.bool_] = seen >= np.int8(FINER * FINER // 2)
    masks &= np.count_nonzero(masks, axis=(1, 2))[:, None, None] >= LEAST_PIXELS
    return masks


_SEARCHED = 100
_GAP = 3


def contact_sheet(*, columns: int = 8, seed: int = 0, size: int = 128) -> NDArray[np.uint8]:
    """Draw a row of scenes per domain whose sets of labels are as different as can be, richest first.

    Args:
        columns: Scenes per domain.
        seed: Seed of the collection.
        size: Side of a scene in pixels.

    Returns:
        The sheet, (H, W, 3).
    """
    rows = []
    for domain in DOMAINS:
        scenes = [draw_scene(domain, number, seed=seed, size=size).image for number in _varied(domain, columns, seed)]
        framed = [np.pad(scene, ((_GAP, 0), (_GAP, 0), (0, 0)), constant_values=255) for scene in scenes]
        rows.append(np.concatenate(framed, axis=1))
    return np.concatenate(rows)


def _varied(domain: str, count: int, seed: int) -> list[int]:
    first: dict[tuple[bool, ...], int] = {}
    for number in range(_SEARCHED):
        first.setdefault(lay_out(domain, number, seed=seed).labels, number)
    rest = sorted(first, key=lambda labels: (-sum(labels), first[labels]))
    chosen = [rest.pop(0)]
    while rest and len(chosen) < count:
        furthest = max(rest, key=lambda labels: min(_differences(labels, other) for other in chosen))
        rest.remove(furthest)
        chosen.append(furthest)
    return [first[labels] for labels in sorted(chosen, key=lambda labels: (-sum(labels), first[labels]))]


def _differences(labels: tuple[bool, ...], others: tuple[bool, ...]) -> int:
    return sum(one != other for one, other in zip(labels, others, strict=True))
