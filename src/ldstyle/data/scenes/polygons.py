"""Polygons as labels of a scene: layers of GeoJSON and GeoPackage files, in any reference system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.scenes.raster import apart, bounds_in, is_on_earth, rasterio, shifted
from ldstyle.messages import did_you_mean

if TYPE_CHECKING:
    from ldstyle.data.scenes.labels import LabelSource, Window

_POLYGONS = (3, 6)  # shapely's numbers of Polygon and MultiPolygon
_GEOPACKAGE = (b"GPKG", b"GP10", b"GP11")


@dataclass(frozen=True, eq=False)
class PolygonLabels:
    """Polygons in a scene's coordinates, found by a tree of their extents.

    Attributes:
        shapes: Geometries of shapely, (N,).
        labels: Position of each one's label, (N,).
        number: Number of labels.
        tree: Tree of the geometries.
        transform: From (column, row) of the scene to its coordinates.
    """

    shapes: NDArray[Any]
    labels: NDArray[np.int64]
    number: int
    tree: Any
    transform: Any

    def regions(self, window: Window) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
        """Rasterize the polygons that reach into a window; a pixel is inside if its centre is."""
        place = shifted(self.transform, top=window.top, left=window.left)
        a, b, c, d, e, f = place[:6]
        corners = [(a * x + b * y + c, d * x + e * y + f) for x in (0, window.width) for y in (0, window.height)]
        box = import_module("shapely").box(*np.min(corners, axis=0), *np.max(corners, axis=0))
        near = np.sort(self.tree.query(box))
        found = np.zeros((self.number, window.height, window.width), dtype=np.uint8)
        for label in np.unique(self.labels[near]):
            shapes = self.shapes[near[self.labels[near] == label]]
            rasterio().features.rasterize(shapes, out=found[label], transform=place)
        return found.view(np.bool_), None


def read_classes(source: LabelSource) -> set[str]:
    """Return the classes of all polygons."""
    column = _read(source).column
    return {name for value in ([] if column is None else column.tolist()) if (name := _text(value)) is not None}


def read_polygons(source: LabelSource, scene: Any, vocabulary: Sequence[str]) -> PolygonLabels:
    """Read the polygons that reach into a scene, in its coordinates.

    Args:
        source: The layer.
        scene: An open raster.
        vocabulary: The labels; polygons of other classes, and empty ones, are left out.

    Raises:
        ValueError: The scene has no position, or the layer has none, is damaged or holds other shapes.
    """
    shapely = import_module("shapely")
    if scene.crs is None or scene.transform.is_identity:
        raise ValueError(
            f"'{scene.name}' has no reference system or position, so polygons cannot be laid over it. Assign them, "
            "e.g. with `gdal_edit.py -a_srs EPSG:32633 -a_ullr LEFT TOP RIGHT BOTTOM FILE`, or warp it with `gdalwarp`."
        )
    stored = _read(source, scene)
    if stored.crs != scene.crs and not is_on_earth(scene.crs):
        raise ValueError(
            f"'{scene.name}' has local coordinates, so polygons in another reference system cannot be laid over it. "
            "Reproject them, or assign another one with `gdal_edit.py -a_srs EPSG:32633 FILE`."
        )
    shapes = shapely.from_wkb(stored.geometry)
    labels = np.array([_label(source, value, vocabulary) for value in stored.values(len(shapes))], dtype=np.int64)
    kept = (labels >= 0) & ~(shapely.is_missing(shapes) | shapely.is_empty(shapes))
    shapes, labels = shapes[kept], labels[kept]
    others = ~np.isin(shapely.get_type_id(shapes), _POLYGONS)
    if others.any():
        kind = shapes[others][0].geom_type
        raise ValueError(
            f"Labels must be polygons; {int(others.sum())} of {len(shapes)} in '{source.paths[0]}' are not, e.g. a "
            f"{kind}. Buffer points and lines first."
        )
    shapes = _moved(shapes, stored.crs, scene)
    return PolygonLabels(shapes, labels, len(vocabulary), shapely.STRtree(shapes), scene.transform)


def _label(source: LabelSource, value: object, vocabulary: Sequence[str]) -> int:
    """Return the position of a polygon's label, -1 if it has none."""
    if source.one_label is not None:
        return 0
    name = _text(value)
    label = source.classes.get(name or "") if source.classes else name
    return vocabulary.index(label) if label in vocabulary else -1


def _moved(shapes: NDArray[Any], crs: Any, scene: Any) -> NDArray[Any]:
    """Bring geometries to a scene's reference system."""
    if crs == scene.crs or not len(shapes):
        return shapes
    shapely = import_module("shapely")

    def move(points: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack(rasterio().warp.transform(crs, scene.crs, points[:, 0], points[:, 1]), axis=1)

    moved: NDArray[Any] = shapely.transform(shapes, move)
    if not np.isfinite(shapely.bounds(moved)).all():
        raise ValueError(
            f"Polygons near '{scene.name}' have no position in its reference system, {scene.crs}. Reproject them "
            "first, e.g. with `ogr2ogr -t_srs`."
        )
    return moved


@dataclass(frozen=True, eq=False)
class _Stored:
    """What a layer holds: WKB geometries, the cells of one attribute, and the reference system."""

    geometry: Any
    column: NDArray[Any] | None
    crs: Any

    def values(self, number: int) -> list[object]:
        return [None] * number if self.column is None else self.column.tolist()


def _read(source: LabelSource, scene: Any = None) -> _Stored:
    """Read the polygons that reach into a scene; without one, the classes of all."""
    crs = layer_info(source)["crs"]
    options: dict[str, Any] = {"columns": [] if source.one_label else [source.column], "layer": source.layer}
    if scene is not None:
        options["bbox"] = bounds_in(scene, crs)
    _, _, shapes, columns = import_module("pyogrio.raw").read(
        source.paths[0], read_geometry=scene is not None, force_2d=True, **options
    )
    return _Stored(shapes, columns[0] if len(columns) else None, crs)


@dataclass(frozen=True)
class Extent:
    """Where a scene is.

    Attributes:
        name: Its file.
        crs: Its reference system, or ``None``.
        bounds: Left, bottom, right and top in it.
    """

    name: str
    crs: Any
    bounds: tuple[float, float, float, float]


def require_overlap(source: LabelSource, scenes: Sequence[Extent]) -> None:
    """Raise if all polygons are outside the scenes, which happens if a reference system is wrong."""
    info = layer_info(source)
    crs = info["crs"]
    left, bottom, right, top = info["total_bounds"]
    boxes = [box for scene in scenes if (box := bounds_in(scene, crs)) is not None]
    if boxes and all(apart(box, (left, bottom, right, top)) for box in boxes):
        x0, y0, x1, y1 = boxes[0]
        raise ValueError(
            f"The polygons of '{source.paths[0]}' are outside all scenes: they extend from ({left:.6g}, "
            f"{bottom:.6g}) to ({right:.6g}, {top:.6g}) in {crs}, '{scenes[0].name}' from ({x0:.6g}, {y0:.6g}) to "
            f"({x1:.6g}, {y1:.6g}). One of the reference systems is wrong, or the files do not belong together. State "
            "that of the polygons with --labels-crs, e.g. --labels-crs EPSG:32633."
        )


def layer_info(source: LabelSource) -> dict[str, Any]:
    """Describe a layer; it must be GeoJSON or GeoPackage, with polygons and the attribute of the classes.

    Its reference system is the stated one; see :class:`LabelSource`.
    """
    path = source.paths[0]
    try:
        pyogrio = import_module("pyogrio")
        import_module("shapely")
    except ImportError as error:
        raise ValueError(
            "Polygons need the extra `geo`, which is not installed. Run `pip install ldstyle[geo]`."
        ) from error
    _require_known_format(path)
    try:
        info: dict[str, Any] = pyogrio.read_info(
            path, layer=source.layer, force_feature_count=True, force_total_bounds=True
        )
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as error:
        raise ValueError(f"'{path}' must be a layer of polygons; it cannot be read: {error}.") from error
    if not info["features"] or info["total_bounds"] is None:
        raise ValueError(f"--labels must be a layer of polygons; '{path}' has none.")
    fields = list(info["fields"])
    if source.one_label is None and source.column not in fields:
        raise ValueError(
            f"--label-column must be an attribute of '{path}'; got {source.column!r}."
            f"{did_you_mean(source.column, fields)} It has {fields}. A layer of one kind needs "
            "--one-label NAME instead."
        )
    return {**info, "crs": _reference_system(source.crs or info["crs"], path)}


def _reference_system(stated: str | None, path: Path) -> Any:
    library = rasterio()
    if not stated:
        raise ValueError(
            f"'{path}' states no reference system, so its polygons have no position. State it with --labels-crs, e.g. "
            "--labels-crs EPSG:4326."
        )
    try:
        return library.CRS.from_user_input(stated)
    except (library.errors.CRSError, ValueError) as error:
        raise ValueError(f"--labels-crs must be a reference system such as EPSG:4326; got {stated!r}.") from error


def _require_known_format(path: Path) -> None:
    """Refuse content other than GeoJSON and GeoPackage: other formats may refer to other files."""
    if not path.is_file():
        raise FileNotFoundError(f"The labels '{path}' are not a file.")
    with path.open("rb") as file:
        start = file.read(100)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"{") and not (start.startswith(b"SQLite format 3\0") and start[68:72] in _GEOPACKAGE):
        raise ValueError(
            f"'{path}' must be a GeoJSON or GeoPackage file; it begins with {start[:12]!r}. Convert it with `ogr2ogr`."
        )


def _text(value: object) -> str | None:
    """Return a class as text: whole numbers without a decimal point, ``None`` where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip() or None
