"""Table 1 for the data that the runs were made with: images, labels per image and positives, beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from ldstyle.benchmark.results.records import CellResult
from ldstyle.data.domains.table1 import PAPER_TABLE_1, Statistics, count
from ldstyle.report.model import Absent, Table, Value
from ldstyle.report.order import split_rank
from ldstyle.report.recorded_data import read_recorded
from ldstyle.report.sources import data_of
from ldstyle.report.tables.values import DASH, number

SLUG = "dataset"
TITLE = "Data sets"


def dataset_table(results: Sequence[CellResult]) -> Table | Absent:
    """Count what Table 1 counts, from the data folder that the runs name.

    Args:
        results: Cells of one set.
    """
    done = [cell for cell in results if cell.status == "done" and "place" in cell.record]
    if not done:
        return Absent(SLUG, TITLE, "No cell is done, so there is no record of the data. Run `ldstyle bench run` first.")
    # The oracle has read its target alone, whose labels may be fewer.
    cell = max(sorted(done, key=lambda cell: cell.cell), key=lambda cell: len(cell.vocabulary))
    domains = _domains(results)
    try:
        tables = read_recorded(data_of(cell), domains, vocabulary=cell.vocabulary, require_images=False)
    except (OSError, ValueError) as error:
        return Absent(SLUG, TITLE, f"The data cannot be read here: {error}")
    counted = {table.domain: count(table) for table in tables}
    paper = {table.domain: PAPER_TABLE_1[table.archive] for table in tables if table.archive is not None}
    columns: list[str] = []
    for domain in domains:
        columns += [domain, *([f"{domain} (paper)"] if domain in paper else [])]
    sides = [side for domain in domains for side in (counted[domain], paper.get(domain)) if side is not None]
    rows = [
        (Value("images"), *(number(side.images) for side in sides)),
        (Value("labels per image"), *(number(side.labels_per_image, digits=2) for side in sides)),
        *((Value(label), *(_positives(side, label) for side in sides)) for label in cell.vocabulary),
    ]
    beside = " Beside what is found here, the paper's Table 1." if len(sides) > len(domains) else ""
    dashes = any(value.text == DASH for row in rows for value in row)
    unknown = " Labels that a data set leaves unknown have a dash." if dashes else ""
    caption = f"Images, labels per image, and images that have each label, in all parts together.{beside}{unknown}"
    return Table(SLUG, TITLE, caption, ("", *columns), tuple(rows), (2,))


def _domains(results: Sequence[CellResult]) -> list[str]:
    """Return the domains in the order of the grid: the target of split ``sN`` is the N-th."""
    names: list[str] = []
    for cell in sorted(results, key=lambda cell: split_rank(cell.split)):
        place = cell.split.removeprefix("s")
        of_split = list(cell.sources)
        of_split.insert(int(place) - 1 if place.isdecimal() else 0, cell.target)
        names += of_split
    return list(dict.fromkeys(names))


def _positives(side: Statistics, label: str) -> Value:
    found = side.positives.get(label)
    return Value(DASH) if found is None else number(found)
