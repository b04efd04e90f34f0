"""Comparison of a scene with the training images: ground sampling distance and range of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.runs.model_file import LoadedModel

_ALIKE = 1.5
_MOST_APART = 2.0
_MOST_CLIPPED = 0.1
_LEAST_FILLED = 1 / 8


@dataclass(frozen=True)
class GroundScale:
    """Side of an image on the ground, in metres.

    Attributes:
        shortest: Of the images the model was trained on, the smallest.
        longest: Of those, the largest.
        by_source: Smallest and largest of each source, where they are known by source.
    """

    shortest: float
    longest: float
    by_source: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def trained_scale(model: LoadedModel, stated: Sequence[float] = ()) -> GroundScale | None:
    """Return how much ground the training images show, or ``None`` if neither user nor model states it for all sources.

    Args:
        model: The model; it may state the ground sampling distance of its training images.
        stated: Metres per pixel of the training images at the model's size, one value per source or one for all; they
            take precedence. The names of the sources state nothing.
    """
    if not all(math.isfinite(value) and value > 0 for value in stated):
        raise ValueError(f"--trained-gsd must be metres above 0; got {' '.join(f'{value:g}' for value in stated)}.")
    if len(stated) not in (0, 1, len(model.sources)):
        raise ValueError(
            f"--trained-gsd takes one value for all sources or one for each, in the order {list(model.sources)}; got "
            f"{len(stated)} values."
        )
    if stated:
        ranges = dict(zip(model.sources, ((value, value) for value in stated), strict=False))
        return _scale(ranges if len(stated) > 1 else {"": (stated[0], stated[0])}, model.size)
    if model.gsd is not None:
        return _scale({"": (model.gsd, model.gsd)}, model.size)
    if unscaled_sources(model) or not model.source_gsd:
        return None
    return _scale(model.source_gsd, model.size)


def unscaled_sources(model: LoadedModel) -> tuple[str, ...]:
    """Return the sources whose ground sampling distance the model does not state."""
    return () if model.gsd is not None else tuple(name for name in model.sources if name not in model.source_gsd)


def _scale(ranges: Mapping[str, tuple[float, float]], size: int) -> GroundScale:
    sides = {name: (low * size, high * size) for name, (low, high) in ranges.items()}
    by_source = {name: side for name, side in sides.items() if name}
    return GroundScale(min(low for low, _ in sides.values()), max(high for _, high in sides.values()), by_source)


def matching_tile(scale: GroundScale, gsd: float) -> int:
    """Return the side in pixels of a tile that shows as much ground as the training images.

    Raises:
        ValueError: The sources differ by more than a factor of two, so no one tile suits them.
    """
    if scale.longest > _MOST_APART * scale.shortest:
        raise ValueError(
            "--match-gsd needs training images of about one scale; the sources show "
            f"{_range_by_source(scale)} of ground, more than a factor of {_MOST_APART:g} apart. Choose --tile for the "
            "source that the scene resembles, or state its metres per pixel by --trained-gsd."
        )
    return max(1, round(math.sqrt(scale.shortest * scale.longest) / gsd))


def scale_words(model: LoadedModel, *, gsd: float | None, tile: int, stated: Sequence[float] = ()) -> list[str]:
    """Return sentences on whether tiles show as much ground as the training images.

    Args:
        model: The model.
        gsd: Metres per pixel of the scene; ``None`` if it has no georeference.
        tile: Side of a tile in pixels.
        stated: See :func:`trained_scale`.
    """
    if gsd is None:
        return ["The scene has no reference system, or a local one, so the size of a pixel on the ground is not known."]
    side = gsd * tile
    here = f"A tile of {tile} px at {gsd:.3g} m shows {side:.0f} m of ground"
    scale = trained_scale(model, stated)
    if scale is None:
        return [
            f"{here}; the model does not state how much the training images of {', '.join(unscaled_sources(model))} "
            "showed. State it with --trained-gsd, or compare, and set --tile."
        ]
    trained = _range(scale)
    if scale.shortest / _ALIKE <= side <= scale.longest * _ALIKE:
        return [f"{here}, about as the training images did ({trained})."]
    larger = side < scale.shortest
    one = scale.longest <= _MOST_APART * scale.shortest
    way_out = f"Set --match-gsd (tiles of {matching_tile(scale, gsd)} px)" if one else "Set --tile"
    factor = scale.shortest / side if larger else side / scale.longest
    return [
        f"warning: {here}, the training images {trained}: objects look {factor:.1f} times "
        f"{'larger' if larger else 'smaller'} than in the training images. {way_out}, or do not "
        "trust the map."
    ]


def range_words(values: NDArray[Any], limits: tuple[float, float] | None) -> list[str]:
    """Warn if the values of a scene do not fill the range that becomes 0 to 255.

    Args:
        values: Values of pixels all over the scene, (N,).
        limits: Values that become 0 and 255; ``None`` for 0 and 255 themselves.
    """
    if not len(values):
        return []
    low, high = limits or (0.0, 255.0)
    first, last = (float(value) for value in np.percentile(values, [2, 98]))
    clipped = float(np.mean((values < low) | (values > high)))
    middle = f"96 % of its values are between {first:.4g} and {last:.4g}"
    way_out = f"Set --range, e.g. --range {first:.4g} {last:.4g}, or do not trust the map."
    if clipped > _MOST_CLIPPED:
        return [f"warning: {clipped:.0%} of the scene is outside the range {low:g} to {high:g}; {middle}. {way_out}"]
    if last - first < _LEAST_FILLED * (high - low):
        return [
            f"warning: the scene fills little of the range {low:g} to {high:g}: {middle}, while training images fill "
            f"it. {way_out}"
        ]
    return []


def band_range_words(values: NDArray[Any], image_format: ImageFormat) -> list[str]:
    """Warn if bands of a scene do not fill the ranges that a model was trained with.

    Args:
        values: Values of pixels all over the scene, (bands, N).
        image_format: The bands and their ranges.
    """
    if not values.size:
        return []
    clipped, narrow = [], []
    for name, band, (low, high) in zip(image_format.names, values, image_format.limits, strict=True):
        first, last = (float(value) for value in np.percentile(band, [2, 98]))
        where = f"{name} ({first:.4g} to {last:.4g} instead of {low:.4g} to {high:.4g})"
        if float(np.mean((band < low) | (band > high))) > _MOST_CLIPPED:
            clipped.append(where)
        elif last - first < _LEAST_FILLED * (high - low):
            narrow.append(where)
    way_out = "Check --bands and the units of the values, set --range, or do not trust the map."
    words = []
    if clipped:
        words.append(f"warning: much of the scene is outside the range of {', '.join(clipped)}. {way_out}")
    if narrow:
        words.append(f"warning: the scene fills little of the range of {', '.join(narrow)}. {way_out}")
    return words


def _range(scale: GroundScale) -> str:
    return _between(scale.shortest, scale.longest)


def _range_by_source(scale: GroundScale) -> str:
    by_source = ", ".join(f"{name} {_between(*side)}" for name, side in scale.by_source.items())
    return f"{_range(scale)} ({by_source})" if by_source else _range(scale)


def _between(shortest: float, longest: float) -> str:
    low, high = f"{shortest:.0f}", f"{longest:.0f}"
    return f"{low} m" if low == high else f"{low} to {high} m"
