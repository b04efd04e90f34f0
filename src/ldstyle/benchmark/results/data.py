"""The data of a grid's cells: whether all had the same, and which of it a report may read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from ldstyle.benchmark.grid.cells import Cell
from ldstyle.benchmark.results.cell import CellResult, RecordedData
from ldstyle.data.domains.csv import LabelColumns
from ldstyle.data.domains.discovery import read_domains
from ldstyle.data.domains.scene_table import SceneTable

if TYPE_CHECKING:
    from ldstyle.runs.config import DataConfig


KnownData: TypeAlias = Mapping[str, Mapping[str, str]]
"""Of each domain the digests that finished cells had, each with the name of such a cell."""


def differing_data(results: Sequence[CellResult]) -> tuple[str, ...]:
    """Name each domain whose images or labels differ between finished cells, one sentence each.

    Cells recorded without a digest of their data are passed over.
    """
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for cell in results:
        for domain, digest in cell.data_digests.items() if cell.status == "done" else ():
            found[domain][digest].append(cell.cell)
    return tuple(
        f"The data of {domain!r} differ between runs, which are not comparable: {_groups(list(cells.values()))}."
        for domain, cells in found.items()
        if len(cells) > 1
    )


def known_data(finished: Iterable[CellResult], *, preset: str) -> KnownData:
    """Return the data that finished cells of a preset were trained and scored on."""
    known: dict[str, dict[str, str]] = defaultdict(dict)
    for cell in finished:
        for domain, digest in cell.data_digests.items() if cell.preset == preset else ():
            known[domain].setdefault(digest, cell.cell)
    return known


def check_data(cell: Cell, data: DataConfig, known: KnownData) -> None:
    """Refuse a cell whose images, masks or labels are not those of the finished cells, before it is trained.

    Args:
        cell: The cell.
        data: Its data settings.
        known: What finished cells were trained and scored on.

    Raises:
        ValueError: A domain has changed.
    """
    from ldstyle.data.domains.scene_table import content_digest
    from ldstyle.data.loading.bands import find_format
    from ldstyle.data.loading.cache import open_cache
    from ldstyle.data.loading.splits import split_domain
    from ldstyle.runs.sources import read_tables

    if not known.keys() & {*data.sources, cell.split.target}:
        return
    tables = read_tables(data, data.sources)
    if cell.split.target not in data.sources:
        tables += read_tables(data, [cell.split.target], vocabulary=tables[0].vocabulary)
    rows = [split_domain(table, seed=cell.seed).train for table in tables]
    sources = len(data.sources)
    found = find_format(data.bands, data.range, tables[:sources], rows[:sources])
    for table in tables:
        cache = open_cache(table, size=data.size, cache_dir=Path(data.cache_dir).expanduser(), image_format=found)
        others = known.get(table.domain, {})
        if others and content_digest(table, cache.files) not in others:
            raise ValueError(
                f"All cells of a grid must have the same data; the images, masks or labels of {table.domain!r} are not "
                f"those of {next(iter(others.values()))}, which is done. Put the data back as they were, or choose "
                "another --results."
            )


def _groups(groups: Sequence[Sequence[str]]) -> str:
    return " against ".join(f"{cells[0]}" + (f" and {len(cells) - 1} more" if cells[1:] else "") for cells in groups)


@dataclass(frozen=True)
class DataAccess:
    """The files outside the results folder that may be read.

    Attributes:
        root: Data folder; ``None`` if none was named.
        mapping: Label map; ``None`` if none was named.
        trust: Whether to read the data folder and the label map that the records name.
    """

    root: Path | None = None
    mapping: Path | None = None
    trust: bool = False

    def locate(self, cell: CellResult, within: Path | None) -> RecordedData:
        """Return the data of a cell with the paths that may be read.

        Args:
            cell: The cell.
            within: The results folder, whose own data may always be read.

        Raises:
            FileNotFoundError: The record names no data, or they may not be read.
        """
        data = cell.data
        if data is None or data.root is None:
            raise FileNotFoundError("The record names no data. Add --data DIR.")
        root = data.root if self.root is None else str(self.root.absolute())
        mapping = data.mapping if self.mapping is None else str(self.mapping.absolute())
        if self.trust:
            return replace(data, root=root, mapping=mapping)
        if self.root is None:
            return self._inside(data, within)
        if data.mapping is not None and self.mapping is None:
            raise FileNotFoundError(
                f"The runs used the label map {data.mapping!r}. Add --mapping FILE, or --trust-record."
            )
        return replace(data, root=root, mapping=None if self.mapping is None else mapping)

    @staticmethod
    def _inside(data: RecordedData, within: Path | None) -> RecordedData:
        named = [path for path in (data.root, data.mapping) if path is not None]
        folder = None if within is None else within.resolve()
        if folder is None or not all((folder / path).resolve().is_relative_to(folder) for path in named):
            raise FileNotFoundError(
                f"The records name {' and '.join(map(repr, named))}, outside the results folder, which is not read "
                "unasked. Add --data DIR, or --trust-record."
            )
        root, mapping = (None if path is None else str((folder / path).resolve()) for path in (data.root, data.mapping))
        return replace(data, root=root, mapping=mapping)

    def read(
        self, cell: CellResult, names: Sequence[str], *, within: Path | None, require_images: bool = True
    ) -> tuple[SceneTable, ...]:
        """Read domains as a run did.

        Args:
            cell: The cell.
            names: The domains.
            within: The results folder.
            require_images: Whether a row without an image is an error.

        Raises:
            OSError: The data may not be read, or are not there.
            ValueError: They are not as they were.
        """
        data = self.locate(cell, within)
        assert data.root is not None
        if not Path(data.root).is_dir():
            raise FileNotFoundError(f"There is no data folder '{data.root}'. Add --data DIR.")
        sea: Literal["drop", "water+sea"] = "water+sea" if data.sea == "water+sea" else "drop"
        return read_domains(
            Path(data.root),
            names,
            sea=sea,
            mapping=None if data.mapping is None else Path(data.mapping),
            vocabulary=None if data.mapping else cell.vocabulary,
            columns=LabelColumns(data.labels, data.ignore),
            require_images=require_images,
        )
