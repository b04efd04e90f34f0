"""One self-contained page of a map: the scene, a layer per label, and the probabilities of the cell that is clicked."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ldstyle.data.scenes.raster import CACHE_MB, is_on_earth, rasterio
from ldstyle.deploy.scene.qgis import colour_of
from ldstyle.deploy.scene.reader import Scene
from ldstyle.deploy.scene.tiles import TileGrid
from ldstyle.files import replace_text

LARGEST_PICTURE = 1200
"""Most pixels along a side of the picture of the scene."""
LARGEST_GRID = 400
"""Most cells along a side of a layer; larger maps are averaged."""

_SCALE, _NONE = 250, 255
_OPACITY = 70


@dataclass(frozen=True)
class MapText:
    """Text of the page.

    Attributes:
        title: Its heading.
        subtitle: A line below it.
        vocabulary: The labels.
        thresholds: Threshold of each.
    """

    title: str
    subtitle: str
    vocabulary: Sequence[str]
    thresholds: Sequence[float]


def write_preview(out: Path, raster: Path, scene: Scene, grid: TileGrid, text: MapText) -> None:
    """Write the page.

    Args:
        out: HTML file to write.
        raster: Map of probabilities.
        scene: The scene.
        grid: Cells of the map.
        text: Text of the page.
    """
    jinja2 = import_module("jinja2")
    cells = _read_cells(raster)
    shown = _first_shown(cells, text.thresholds)
    labels = [
        {
            "name": name,
            "threshold": threshold,
            "colour": colour_of(number),
            "opacity": _OPACITY if number == shown else 0,
            "covered": _covered(cells[number], threshold),
        }
        for number, (name, threshold) in enumerate(zip(text.vocabulary, text.thresholds, strict=True))
    ]
    data = {
        "shape": list(cells.shape[1:]),
        "extent": [grid.cells[0] * grid.stride / grid.height, grid.cells[1] * grid.stride / grid.width],
        "pixels": [grid.height, grid.width],
        "corners": _corners(scene.dataset),
        "labels": [
            {
                "threshold": threshold,
                "rgb": [int(colour_of(number)[i : i + 2], 16) for i in (1, 3, 5)],
                "cells": base64.b64encode(_quantised(cells[number]).tobytes()).decode(),
            }
            for number, threshold in enumerate(text.thresholds)
        ],
    }
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    ).get_template("preview.html.j2")
    page = template.render(
        title=text.title,
        subtitle=text.subtitle,
        alt=f"The scene, {grid.width} by {grid.height} pixels",
        aspect=f"{grid.width / grid.height:.4f}",
        thumbnail=base64.b64encode(_picture(scene)).decode(),
        labels=labels,
        # A name with a tag in it must not end the script.
        data=jinja2.utils.markupsafe.Markup(json.dumps(data).replace("<", "\\u003c")),
    )
    replace_text(out, page)


def _read_cells(raster: Path) -> NDArray[np.float32]:
    """Return the map, (L, rows, columns), averaged to at most the largest grid."""
    library = rasterio()
    with library.Env(GDAL_CACHEMAX=CACHE_MB), library.open(raster) as dataset:
        shape = _fitted(dataset.height, dataset.width, LARGEST_GRID)
        average = import_module("rasterio.enums").Resampling.average
        values: NDArray[np.float32] = dataset.read(out_shape=(dataset.count, *shape), resampling=average)
    return values


def _picture(scene: Scene) -> bytes:
    shape = _fitted(scene.dataset.height, scene.dataset.width, LARGEST_PICTURE)
    pixels, valid = scene.overview(shape)
    picture = np.where(valid, pixels[:3] if len(pixels) >= 3 else pixels[[0, 0, 0]], 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0))).save(content, "JPEG", quality=82)
    return content.getvalue()


def _fitted(height: int, width: int, most: int) -> tuple[int, int]:
    factor = min(1.0, most / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor))


def _quantised(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    known = ~np.isnan(values)
    return np.where(known, np.round(np.where(known, values, 0) * _SCALE), _NONE).astype(np.uint8)


def _covered(values: NDArray[np.float32], threshold: float) -> str:
    known = ~np.isnan(values)
    return f"{np.mean(values[known] >= threshold):.0%}" if known.any() else "no data"


def _first_shown(cells: NDArray[np.float32], thresholds: Sequence[float]) -> int:
    """Return the label that is found in the most cells."""
    return int(np.argmax([np.sum(values >= threshold) for values, threshold in zip(cells, thresholds, strict=True)]))


def _corners(dataset: Any) -> list[list[float]] | None:
    """Return longitude and latitude of the corners, row by row; ``None`` without a reference system."""
    if not is_on_earth(dataset.crs) or dataset.transform.is_identity:
        return None
    a, b, c, d, e, f = dataset.transform[:6]
    corners = [(x, y) for y in (0, dataset.height) for x in (0, dataset.width)]
    xs, ys = zip(*((a * x + b * y + c, d * x + e * y + f) for x, y in corners), strict=True)
    longitudes, latitudes = rasterio().warp.transform(dataset.crs, "EPSG:4326", xs, ys)
    return [[round(x, 7), round(y, 7)] for x, y in zip(longitudes, latitudes, strict=True)]
