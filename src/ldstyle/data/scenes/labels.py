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
from ldstyle.data.scenes.polygons import read_classes, read_polygons
from ldstyle.data.scenes.raster import apart, bounds_in, is_on_earth, open_raster, rasterio, readable
from ldstyle.messages import first_few

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
    if box is not None and apart(box, bounds_in(scene, scene.crs) or box):
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


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
