"""Labels of a scene from polygons or a raster of classes, as regions on the scene's pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.domains.csv import DESCRIPTIVE
from ldstyle.data.scenes.label_source import LabelSource, SceneLabels, Window
from ldstyle.data.scenes.polygons import read_classes, read_polygons
from ldstyle.data.scenes.raster import is_on_earth, open_raster, rasterio, readable
from ldstyle.messages import first_few


def read_vocabulary(source: LabelSource) -> tuple[str, ...]:
    """Return the labels, in the order of the classes given, or sorted if they come from the polygons."""
    if source.one_label is not None:
        names: Sequence[str] = (source.one_label,)
    elif source.classes:
        names = tuple(dict.fromkeys(source.classes.values()))
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
