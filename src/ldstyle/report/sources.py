"""Where a report may read data from: a results folder may be a stranger's, and its records may name any file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ldstyle.benchmark.results.records import CellResult

_REFUSED = "refused"


@dataclass(frozen=True)
class DataAccess:
    """What may be read outside of the results folder.

    Attributes:
        root: Data folder; ``None`` if none was named.
        mapping: Label map; ``None`` if none was named.
        trust: Whether to read the data folder and the label map that the records name.
    """

    root: Path | None = None
    mapping: Path | None = None
    trust: bool = False

    def apply(self, cell: CellResult, results: Path) -> CellResult:
        """Return a cell whose record names the data that may be read, or says why there are none."""
        place = cell.record.get("place")
        if not isinstance(place, Mapping):
            return cell
        return replace(cell, record={**cell.record, "place": self._allowed(place, results)})

    def _allowed(self, place: Mapping[str, Any], results: Path) -> dict[str, Any]:
        mapping = place.get("mapping")
        if self.trust:
            root = place.get("root") if self.root is None else str(self.root.absolute())
            known = None if mapping is None else Path(str(mapping))
            return {**place, "root": root, "mapping": self.mapping or known}
        within = results.resolve()
        named = {key: (within / str(place[key])).resolve() for key in ("root", "mapping") if place.get(key) is not None}
        if self.root is None and all(path.is_relative_to(within) for path in named.values()):
            return {**place, **named}
        if self.root is None:
            reason = (
                f"The records name {' and '.join(repr(place[key]) for key in named)}, outside of the results folder"
            )
            return {_REFUSED: f"{reason}, which is not read unasked. Add --data DIR, or --trust-record."}
        if mapping is not None and self.mapping is None:
            return {_REFUSED: f"The runs used the label map {mapping!r}. Add --mapping FILE, or --trust-record."}
        return {**place, "root": str(self.root.absolute()), "mapping": self.mapping and self.mapping.absolute()}


def data_of(cell: CellResult) -> Mapping[str, Any]:
    """Return what a cell's record says of its data, for :func:`ldstyle.report.recorded_data.read_recorded`.

    Raises:
        FileNotFoundError: It names none, or they may not be read.
    """
    place = cell.record.get("place")
    if not isinstance(place, Mapping) or not place.get("root", place.get(_REFUSED)):
        raise FileNotFoundError("The record names no data. Add --data DIR.")
    if _REFUSED in place:
        raise FileNotFoundError(place[_REFUSED])
    return place
