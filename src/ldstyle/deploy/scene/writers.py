"""The map as files: a cloud-optimized GeoTIFF of probabilities, and footprints as GeoJSON and GeoPackage."""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.scenes.raster import CACHE_MB, is_on_earth, rasterio
from ldstyle.deploy.scene.qgis import footprint_style
from ldstyle.deploy.scene.reader import Scene
from ldstyle.deploy.scene.tiles import TileGrid
from ldstyle.files import explained, replace_file

_BLOCK = 128  # small, since a map has few cells and overviews begin where a block ends


@dataclass(frozen=True)
class Georeference:
    """Georeference of a map.

    Attributes:
        crs: Reference system, or ``None``.
        transform: From (column, row) of cells to its coordinates.
    """

    crs: Any
    transform: Any

    @classmethod
    def of_cells(cls, scene: Scene, grid: TileGrid) -> Georeference:
        """Return that of the cells of a scene."""
        a, b, c, d, e, f = scene.dataset.transform[:6]
        step = grid.stride
        return cls(scene.dataset.crs, type(scene.dataset.transform)(a * step, b * step, c, d * step, e * step, f))


def write_geotiff(
    out: Path,
    rows: Iterator[NDArray[np.float32]],
    *,
    shape: tuple[int, int],
    vocabulary: Sequence[str],
    place: Georeference,
    tags: dict[str, str],
) -> None:
    """Write a cloud-optimized GeoTIFF with overviews, one band per label, in one step and little memory.

    Args:
        out: File to write.
        rows: Rows of cells from the top, each (L, columns) float32, NaN without data.
        shape: Rows and columns.
        vocabulary: Names of the bands.
        place: Its georeference.
        tags: Metadata.
    """
    library = rasterio()
    plain, partial = out.with_name(f"{out.name}.plain.tmp"), out.with_name(f"{out.name}.tmp")
    profile = {
        "driver": "GTiff",
        "height": shape[0],
        "width": shape[1],
        "count": len(vocabulary),
        "dtype": "float32",
        "nodata": float("nan"),
        "crs": place.crs,
        "transform": place.transform,
        "bigtiff": "if_safer",
    }
    cloud = {"compress": "deflate", "predictor": "yes", "overview_resampling": "average", "bigtiff": "if_safer"}
    try:
        with library.Env(GDAL_CACHEMAX=CACHE_MB):
            with library.open(plain, "w", **profile) as raster:
                raster.update_tags(**tags)
                raster.descriptions = tuple(vocabulary)
                for number, row in enumerate(rows):
                    raster.write(row[:, None], window=((number, number + 1), (0, shape[1])))
            # The driver of cloud-optimized files writes copies only: overviews must come before the data.
            library.shutil.copy(plain, partial, driver="COG", blocksize=_BLOCK, **cloud)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(out)
    finally:
        plain.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def write_footprints(
    out: Path,
    package: Path,
    raster: Path,
    *,
    thresholds: Sequence[float],
    vocabulary: Sequence[str],
    cell_area: float | None,
) -> int:
    """Write the regions where labels reach their thresholds.

    GeoJSON is in longitude and latitude if they are known; the GeoPackage is in the reference system of the map, and
    holds a style that QGIS loads with it.

    Args:
        out: GeoJSON file to write.
        package: GeoPackage to write.
        raster: Map of probabilities.
        thresholds: Threshold of each label.
        vocabulary: The labels.
        cell_area: Area of a cell in square metres, if known.

    Returns:
        Number of regions.
    """
    library = rasterio()
    with library.Env(GDAL_CACHEMAX=CACHE_MB), library.open(raster) as dataset:
        crs = dataset.crs
        regions = [
            region
            for band, (name, threshold) in enumerate(zip(vocabulary, thresholds, strict=True), start=1)
            for region in _regions(library, dataset, band, name, threshold, cell_area)
        ]
    features = []
    for properties, shape in regions:
        outline = shape if not is_on_earth(crs) else library.warp.transform_geom(crs, "EPSG:4326", shape, precision=7)
        features.append(json.dumps({"type": "Feature", "properties": properties, "geometry": outline}))
    body = ",\n".join(features)
    text = f'{{"type": "FeatureCollection", "features": [\n{body}\n]}}\n'
    replace_file(out, lambda file: file.write(text.encode()))
    write_geopackage(package, regions, crs, vocabulary)
    return len(features)


def _regions(
    library: Any, dataset: Any, band: int, name: str, threshold: float, cell_area: float | None
) -> Iterator[Region]:
    values = dataset.read(band)
    found = (values >= threshold).astype(np.uint8)  # NaN is never
    place = dataset.transform
    shapes = [shape for shape, _ in library.features.shapes(found, mask=found > 0, connectivity=4, transform=place)]
    if not shapes:
        return
    # All regions are numbered at once: a mask for each would take as long as there are regions times cells.
    numbered = library.features.rasterize(
        zip(shapes, range(1, len(shapes) + 1), strict=True), found.shape, transform=place, dtype="int32"
    ).ravel()
    scores = np.nan_to_num(values).ravel()
    cells = np.bincount(numbered, minlength=len(shapes) + 1)
    sums = np.bincount(numbered, weights=scores, minlength=len(shapes) + 1)
    highest = np.zeros(len(shapes) + 1)
    np.maximum.at(highest, numbered, scores)
    for number, shape in enumerate(shapes, start=1):
        properties: dict[str, Any] = {
            "label": name,
            "mean_probability": round(float(sums[number] / cells[number]), 4),
            "max_probability": round(float(highest[number]), 4),
            "cells": int(cells[number]),
        }
        if cell_area is not None:
            properties["area_m2"] = round(int(cells[number]) * cell_area, 1)
        yield properties, shape


LAYER = "footprints"
_GEOMETRY = "geom"

Region: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""Properties and outline (a GeoJSON geometry in the coordinates of the map) of a region."""

_FIELDS: dict[str, tuple[type, Any]] = {
    "label": (object, None),
    "mean_probability": (float, np.nan),
    "max_probability": (float, np.nan),
    "cells": (np.int64, 0),
    "area_m2": (float, np.nan),
}
"""Attributes of a region, their types, and their values where they are not known."""

_STYLES = """
CREATE TABLE layer_styles (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, f_table_catalog TEXT, f_table_schema TEXT, f_table_name TEXT,
    f_geometry_column TEXT, styleName TEXT, styleQML TEXT, styleSLD TEXT, useAsDefault BOOLEAN, description TEXT,
    owner TEXT, ui TEXT, update_time DATETIME DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
)
"""


def write_geopackage(out: Path, regions: Sequence[Region], crs: Any, vocabulary: Sequence[str]) -> None:
    """Write regions in one step.

    Args:
        out: File to write.
        regions: The regions.
        crs: Reference system, or ``None``.
        vocabulary: The labels, for the style.
    """
    try:
        write, shapely = import_module("pyogrio.raw").write, import_module("shapely")
    except ImportError as error:
        raise ValueError(
            "Maps need the extra `geo`, which is not installed. Run `pip install ldstyle[geo]`."
        ) from error
    columns: list[NDArray[Any]] = [
        np.array([row.get(name, missing) for row, _ in regions], dtype=kind)
        for name, (kind, missing) in _FIELDS.items()
    ]
    shapes = np.array([shapely.geometry.shape(outline) for _, outline in regions], dtype=object)
    partial = out.with_name(f"{out.stem}.tmp.gpkg")
    partial.unlink(missing_ok=True)
    try:
        with explained(out), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*crs. was not provided")
            write(
                partial,
                shapely.to_wkb(shapes),
                columns,
                list(_FIELDS),
                layer=LAYER,
                driver="GPKG",
                geometry_type="Polygon",
                crs=None if crs is None else crs.to_wkt(),
                layer_options={"GEOMETRY_NAME": _GEOMETRY},
                dataset_options={"VERSION": "1.2"},  # older versions of QGIS warn of later ones
            )
            _add_style(partial, footprint_style(vocabulary))
            partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def _add_style(path: Path, style: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(_STYLES)
        database.execute(
            "INSERT INTO layer_styles (f_table_catalog, f_table_schema, f_table_name, f_geometry_column, styleName, "
            "styleQML, styleSLD, useAsDefault, description, owner) VALUES ('', '', ?, ?, 'labels', ?, '', 1, '', '')",
            (LAYER, _GEOMETRY, style),
        )
        database.execute(
            "INSERT INTO gpkg_contents (table_name, data_type, identifier) VALUES ('layer_styles', 'attributes', "
            "'layer_styles')"
        )
