"""How large things are on the ground: whether a scene shows them at the size the model was trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ldstyle.training.model_file import LoadedModel

# Side of an image in metres, smallest and largest; pixels of the release times ground sampling distance.
_ARCHIVES = {"ucm": (76.8, 76.8), "aid": (300.0, 4800.0), "dfc15": (30.0, 30.0)}
_METRES_PER_DEGREE = 111_320.0
_ALIKE = 1.5


@dataclass(frozen=True)
class GroundScale:
    """Side of an image on the ground, in metres.

    Attributes:
        shortest: Of the images the model was trained on, the smallest.
        longest: Of those, the largest.
    """

    shortest: float
    longest: float


def trained_scale(model: LoadedModel) -> GroundScale | None:
    """Return how much ground the training images show: by the model's own note, else by its sources if known."""
    if model.gsd is not None:
        return GroundScale(model.gsd * model.size, model.gsd * model.size)
    known = [_ARCHIVES.get(name.lower()) for name in model.sources]
    sides = [side for side in known if side is not None]
    if not sides or len(sides) < len(known):
        return None
    return GroundScale(min(side[0] for side in sides), max(side[1] for side in sides))


def matching_tile(scale: GroundScale, gsd: float) -> int:
    """Return the side in pixels of a tile that shows as much ground as the training images, the middle of them."""
    return max(1, round(math.sqrt(scale.shortest * scale.longest) / gsd))


def metres_per_pixel(x_scale: float, y_scale: float, *, degrees: bool, unit: float, latitude: float) -> float:
    """Return the ground sampling distance of a raster.

    Args:
        x_scale: Width of a pixel in the units of its reference system.
        y_scale: Height of a pixel in those units.
        degrees: Whether they are degrees.
        unit: Metres per unit otherwise.
        latitude: Latitude of the middle of the raster in degrees.
    """
    if degrees:
        x_scale, y_scale = x_scale * math.cos(math.radians(latitude)), y_scale
        unit = _METRES_PER_DEGREE
    return math.sqrt(abs(x_scale * y_scale)) * unit


def scale_words(model: LoadedModel, *, gsd: float | None, tile: int) -> list[str]:
    """Say whether tiles show as much ground as the training images.

    Args:
        model: The model.
        gsd: Metres per pixel of the scene; ``None`` if it has no reference system.
        tile: Side of a tile in pixels.
    """
    if gsd is None:
        return ["The scene has no reference system, so the size of a pixel on the ground is not known."]
    side = gsd * tile
    here = f"A tile of {tile} px at {gsd:.3g} m shows {side:.0f} m of ground"
    scale = trained_scale(model)
    if scale is None:
        return [f"{here}; the model does not say how much its training images showed. Compare, and set --tile."]
    trained = _range(scale)
    if scale.shortest / _ALIKE <= side <= scale.longest * _ALIKE:
        return [f"{here}, about as the training images did ({trained})."]
    larger = side < scale.shortest
    factor = scale.shortest / side if larger else side / scale.longest
    return [
        f"warning: {here}, the training images {trained}: objects look {factor:.1f} times "
        f"{'larger' if larger else 'smaller'} than the model knows them. Set --match-gsd (tiles of "
        f"{matching_tile(scale, gsd)} px), or do not trust the map."
    ]


def _range(scale: GroundScale) -> str:
    if scale.shortest == scale.longest:
        return f"{scale.shortest:.0f} m"
    return f"{scale.shortest:.0f} to {scale.longest:.0f} m"
