"""Whether the cells of a grid were trained and scored on the same data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ldstyle.benchmark.grid.cells import Cell
from ldstyle.benchmark.results.cell import CellResult

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
    from ldstyle.data.domains.digest import content_digest
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
