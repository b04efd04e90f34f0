"""Small georeferenced scenes, polygons and rasters of classes on disk, made by rasterio and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

from ldstyle.data.scenes.cutting import BlockGrid

UTM = "EPSG:32633"
LEFT, TOP, RESOLUTION = 500_000.0, 5_000_000.0, 0.5


def write_raster(path: Path, pixels: np.ndarray, *, crs: str | None = UTM, left: float = LEFT, **profile: Any) -> Path:
    """Write (bands, H, W) as a GeoTIFF of half a metre per pixel."""
    place = {"transform": rasterio.Affine(RESOLUTION, 0, left, 0, -RESOLUTION, TOP)} if crs else {}
    count, height, width = pixels.shape
    settings = {"driver": "GTiff", "height": height, "width": width, "count": count, "dtype": pixels.dtype, "crs": crs}
    with rasterio.open(path, "w", **(settings | place | profile)) as raster:
        raster.write(pixels)
    return path


def noise(height: int, width: int, *, bands: int = 3, dtype: str = "uint8", seed: int = 0) -> np.ndarray:
    """Draw values other than 0, (bands, H, W)."""
    highest = 255 if dtype == "uint8" else 4000
    return np.random.default_rng(seed).integers(1, highest, (bands, height, width)).astype(dtype)


def rectangle(top: float, left: float, bottom: float, right: float) -> list[list[float]]:
    """Return the outline of a rectangle of the scene's pixels, in its coordinates."""
    corners = [(top, left), (top, right), (bottom, right), (bottom, left), (top, left)]
    return [[LEFT + RESOLUTION * x, TOP - RESOLUTION * y] for y, x in corners]


def write_polygons(path: Path, shapes: list[tuple[Any, list[list[float]]]], *, crs: str | None = UTM) -> Path:
    """Write polygons as GeoJSON: (label, outline in the scene's coordinates), brought to ``crs``."""
    features = []
    for label, outline in shapes:
        xs, ys = zip(*outline, strict=True)
        if crs != UTM:
            xs, ys = rasterio.warp.transform(UTM, crs, xs, ys)
        ring = [list(point) for point in zip(xs, ys, strict=True)]
        features.append(
            {
                "type": "Feature",
                "properties": {"label": label, "height": 3},
                "geometry": {"type": "Polygon", "coordinates": [ring]},
            }
        )
    collection: dict[str, Any] = {"type": "FeatureCollection", "features": features}
    if crs != "EPSG:4326":
        collection["crs"] = {"type": "name", "properties": {"name": crs}}
    path.write_text(json.dumps(collection))
    return path


GRID = BlockGrid(size=20, stride=20, block=8, gap=0)
SHAPES = [
    ("water", rectangle(0, 0, 40, 30)),
    ("building", rectangle(45, 45, 49, 49)),  # 4 % of a tile
    ("building", rectangle(10, 61, 11, 63)),  # 0.5 %
    ("building", rectangle(5, 5, 15, 15)),  # inside the water
]
OPTIONS = {"grid": GRID}


def files_of(out: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
