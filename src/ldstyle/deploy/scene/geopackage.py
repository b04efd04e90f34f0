"""Footprints as a GeoPackage, with the style that QGIS loads by default."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ldstyle.deploy.scene.qgis import footprint_style
from ldstyle.files import explained

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
