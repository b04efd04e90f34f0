"""The contact sheet: a few scenes of each domain side by side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.synthetic.domains import DOMAINS
from ldstyle.data.synthetic.layout import lay_out
from ldstyle.data.synthetic.render import draw_scene

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
