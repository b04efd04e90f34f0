"""The data that a record names, which may be somebody else's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ldstyle.data.domains.csv import LabelColumns
from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.domains.scene_table import SceneTable


def read_recorded(
    place: Mapping[str, Any],
    names: Sequence[str],
    *,
    vocabulary: Sequence[str],
    root: Path | None = None,
    require_images: bool = True,
) -> tuple[SceneTable, ...]:
    """Read domains as the runs did.

    Args:
        place: What the record says of the data. A label map is read only if the caller has put it there, as a `Path`:
            a record may name any file of this machine.
        names: The domains.
        vocabulary: Label names of the runs.
        root: Data folder; by default the one of ``place``.
        require_images: Whether a row without an image is a problem.

    Raises:
        ValueError: The record names a label map and the caller gives none.
    """
    mapping = place.get("mapping")
    if mapping is not None and not isinstance(mapping, Path):
        raise ValueError(
            f"The runs used the label map {str(mapping)!r}, and files that a record names are not read. Give it by "
            "--mapping FILE."
        )
    columns = LabelColumns(*(tuple(map(str, place.get(name) or ())) for name in ("labels", "ignore")))
    return read_domains(
        root or Path(place["root"]),
        names,
        sea=place.get("sea", "drop"),
        mapping=mapping,
        vocabulary=None if mapping else vocabulary,
        columns=columns,
        require_images=require_images,
    )
