"""Whether the cells of a grid were trained and scored on the same data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ldstyle.benchmark.results.cell import CellResult


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


def _groups(groups: Sequence[Sequence[str]]) -> str:
    return " against ".join(f"{cells[0]}" + (f" and {len(cells) - 1} more" if cells[1:] else "") for cells in groups)
