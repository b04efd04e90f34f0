"""Labels of a scene, from polygons or a raster of classes, as regions on its pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.domains.csv import DESCRIPTIVE
from ldstyle.data.scenes.raster import is_on_earth, open_raster, rasterio, readable, shifted
from ldstyle.messages import did_you_mean, first_few

VECTOR_SUFFIXES = (".geojson", ".json", ".gpkg")


@dataclass(frozen=True)
class LabelSource:
    """Where the labels of scenes come from.

    Attributes:
        paths: One layer of polygons (GeoJSON, GeoPackage) for all scenes, or a raster of classes for each scene.
        column: Attribute of the polygons that holds their class.
        classes: Label of each class; several may mean one label, and others are left out. Empty: polygons of every
            class are labels, called as they are.
        one_label: Label of all polygons, which then need no attribute.
        crs: Reference system of the polygons; ``None`` for that of the layer. GeoJSON without one counts as EPSG:4326.
        layer: Layer of a file that has several.
    """

    paths: tuple[Path, ...]
    column: str = "label"
    classes: Mapping[str, str] = field(default_factory=dict)
    one_label: str | None = None
    crs: str | None = None
    layer: str | None = None

    def __post_init__(self) -> None:
        kinds = {path.suffix.lower() in VECTOR_SUFFIXES for path in self.paths}
        if len(kinds) != 1 or (self.polygons and len(self.paths) > 1):
            raise ValueError(
                f"--labels must be one file of polygons ({', '.join(VECTOR_SUFFIXES)}) or a raster for each scene; got "
                f"{first_few(map(str, self.paths))}."
            )
        if not self.polygons and not self.classes:
            raise ValueError(
                f"--labels '{self.paths[0]}' is a raster, whose values need names. Set --classes VALUE=LABEL ..., e.g. "
                "--classes 1=building 2=water."
            )
        if not self.polygons and (wrong := [value for value in self.classes if not _is_number(value)]):
            raise ValueError(
                f"--classes of a raster must be VALUE=LABEL with numbers as values; got {first_few(wrong)}. Set e.g. "
                "--classes 1=building 2=water."
            )
        if not self.polygons and (self.one_label or self.crs or self.layer):
            raise ValueError(f"--one-label, --labels-crs and --layer are for polygons; '{self.paths[0]}' is a raster.")
        if self.one_label is not None and self.classes:
            raise ValueError("--one-label and --classes both name the labels; set one of them.")

    @property
    def polygons(self) -> bool:
        """Whether the labels are polygons."""
        return self.paths[0].suffix.lower() in VECTOR_SUFFIXES


@dataclass(frozen=True, eq=False)
class Window:
    """A part of a scene: its first pixel and its size."""

    top: int
    left: int
    height: int
    width: int


class SceneLabels(Protocol):
    """The labels of one open scene."""

    def regions(self, window: Window) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
        """Return where each label is, (L, H, W), and where anything is annotated, (H, W), or ``None`` if all is."""


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
    if boxes and all(_apart(box, (left, bottom, right, top)) for box in boxes):
        x0, y0, x1, y1 = boxes[0]
        raise ValueError(
            f"The polygons of '{source.paths[0]}' are outside all scenes: they extend from ({left:.6g}, "
            f"{bottom:.6g}) to ({right:.6g}, {top:.6g}) in {crs}, '{scenes[0].name}' from ({x0:.6g}, {y0:.6g}) to "
            f"({x1:.6g}, {y1:.6g}). One of the reference systems is wrong, or the files do not belong together. State "
            "that of the polygons with --labels-crs, e.g. --labels-crs EPSG:32633."
        )


def _apart(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two extents have no point in common."""
    return one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]


def bounds_in(scene: Any, crs: Any) -> tuple[float, float, float, float] | None:
    """Return the extent of a scene in another reference system, ``None`` if it has none there."""
    if scene.crs is None or not (is_on_earth(scene.crs) and is_on_earth(crs)):
        return None
    xs, ys = sorted(scene.bounds[::2]), sorted(scene.bounds[1::2])  # rows may lead north
    try:
        left, bottom, right, top = rasterio().warp.transform_bounds(scene.crs, crs, xs[0], ys[0], xs[1], ys[1])
    except rasterio().errors.RasterioError:
        return None
    known = all(map(math.isfinite, (left, bottom, right, top))) and left <= right
    return (left, bottom, right, top) if known else None


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


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _text(value: object) -> str | None:
    """Return a class as text: whole numbers without a decimal point, ``None`` where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip() or None


def read_vocabulary(source: LabelSource) -> tuple[str, ...]:
    """Return the labels, in the order of the classes given, or sorted if they come from the polygons."""
    if source.one_label is not None:
        names: Sequence[str] = (source.one_label,)
    elif source.classes:
        names = tuple(dict.fromkeys(source.classes.values()))
        if source.polygons and not (found := read_classes(source)) & set(source.classes):
            raise ValueError(
                f"--classes must be values of {source.column!r} in '{source.paths[0]}'; got "
                f"{first_few(source.classes)}. It has {first_few(sorted(found))}."
            )
    else:
        names = sorted(read_classes(source))
    wrong = [name for name in names if name in DESCRIPTIVE or not name.strip()]
    if wrong or not names:
        raise ValueError(
            f"Labels must be names other than {list(DESCRIPTIVE)}; '{source.paths[0]}' gives "
            f"{first_few(wrong) or 'none'}. Name them with --classes VALUE=LABEL."
        )
    return tuple(names)


@contextmanager
def open_labels(source: LabelSource, number: int, scene: Any, vocabulary: Sequence[str]) -> Iterator[SceneLabels]:
    """Open the labels of a scene.

    Args:
        source: Where they come from.
        number: Number of the scene.
        scene: Its open raster.
        vocabulary: The labels.
    """
    if source.polygons:
        yield read_polygons(source, scene, vocabulary)
        return
    path = source.paths[number]
    with ExitStack() as stack:
        raster = stack.enter_context(open_raster(path))
        if raster.count != 1:
            raise ValueError(f"A raster of classes must have one band; '{path}' has {raster.count}.")
        if (raster.crs, raster.transform, raster.shape) != (scene.crs, scene.transform, scene.shape):
            raster = stack.enter_context(_warped(raster, scene, path))
        numbers = [[float(value) for value, label in source.classes.items() if label == name] for name in vocabulary]
        yield _ClassRaster(raster, tuple(map(tuple, numbers)))


def _warped(raster: Any, scene: Any, path: Path) -> Any:
    if not (is_on_earth(raster.crs) and is_on_earth(scene.crs)):
        named = f"'{path}'" if is_on_earth(scene.crs) else "the scene"
        raise ValueError(
            f"'{path}' and '{scene.name}' differ in size or position, and {named} has no reference system, or a "
            "local one, to align them by. Assign one, e.g. with `gdal_edit.py -a_srs EPSG:32633 FILE`."
        )
    box = bounds_in(raster, scene.crs)
    if box is not None and _apart(box, bounds_in(scene, scene.crs) or box):
        raise ValueError(
            f"The raster of classes '{path}' is outside '{scene.name}'. One of the reference systems is wrong, or the "
            "files do not belong together; rasters must be in the order of the scenes."
        )
    return rasterio().vrt.WarpedVRT(
        raster, crs=scene.crs, transform=scene.transform, height=scene.height, width=scene.width, add_alpha=True
    )


@dataclass(frozen=True)
class _ClassRaster:
    raster: Any
    values: tuple[tuple[float, ...], ...]

    def regions(self, window: Window) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
        part = import_module("rasterio.windows").Window(window.left, window.top, window.width, window.height)
        with readable(self.raster):
            classes = self.raster.read(1, window=part)
            annotated = self.raster.dataset_mask(window=part) > 0
        found = np.stack([np.isin(classes, values) for values in self.values]) & annotated
        return found, None if annotated.all() else annotated
