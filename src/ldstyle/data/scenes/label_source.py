"""Where the labels of scenes come from, and what part of a scene is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
        crs: Reference system of a layer that does not state one.
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
