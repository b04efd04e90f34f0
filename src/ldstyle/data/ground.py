"""How much ground the images of a domain show."""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from ldstyle.data.domains.archives import ARCHIVES
from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading.bands import image_extent


def ground_sides(table: SceneTable, rows: ArrayLike) -> tuple[float, float] | None:
    """Return the shortest and the longest side of images on the ground in metres, or ``None`` if it is not known.

    A custom table states it by its column ``gsd``, images of other than square shape by the side of a square of their
    area; rows that leave it blank are left out. For an official download it is that of its release, whatever size its
    files were brought to.

    Args:
        table: The domain.
        rows: Rows of the images.
    """
    if table.archive is not None:
        return ARCHIVES[table.archive].ground
    chosen = table.select(rows)
    sides = [
        value * math.sqrt(math.prod(image_extent(chosen.path(row))))
        for row, value in enumerate(chosen.gsd or ())
        if value is not None
    ]
    return (min(sides), max(sides)) if sides else None
