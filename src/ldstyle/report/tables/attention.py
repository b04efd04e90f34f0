"""Whether attention finds its labels: on images it was trained on, on held-out ones, and on an unseen domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ldstyle.benchmark.results.comparison import Results
from ldstyle.benchmark.results.records import CellResult
from ldstyle.report.model import Absent, Table, Value
from ldstyle.report.tables.cells import CellSet
from ldstyle.report.tables.observed import Observation
from ldstyle.report.tables.values import of_entry, over_seeds

PARTS = ("training", "held-out", "unseen")
SLUG, TITLE = "attention-parts", "Does attention find its labels?"


def attention_parts_table(cells: CellSet) -> Table | Absent:
    """Return IoU and its ratio to the uniform map's, by method and attention source, on each part."""
    if cells.is_empty:
        return cells.nothing(SLUG, TITLE)
    rows: list[tuple[Value, ...]] = []
    breaks: list[int] = []
    for split in cells.splits:
        here = cells.on(split)
        block = [row for method in here.methods for row in _rows(here, method)]
        breaks += [len(rows)] if rows and block else []
        rows += block
    if not rows:
        return Absent(SLUG, TITLE, "No domain has masks to compare with, or the runs were made before this was judged.")
    caption = (
        "Overlap (IoU, in percent, means over labels) of each label's region with as many highest locations of its "
        "map, and its ratio to the uniform map's: on training images of the sources, on their held-out images "
        "(validation and test parts), and on the unseen target, up to 256 images of each part. Class activation maps "
        "are those of the selected network for all labels, predicted or not; learned attention (LLAM) is shown by "
        f"insertion point. {over_seeds(cells.results.seeds).capitalize()}."
    )
    columns = [name for part in PARTS for name in (f"{part}: IoU", f"{part}: × uniform")]
    return Table(SLUG, TITLE, caption, (cells.row_header, "target", "attention", *columns), tuple(rows), tuple(breaks))


def _rows(cells: CellSet, method: str) -> list[tuple[Value, ...]]:
    judged = [cell for cell in cells.cells if cell.method == method and cell.record.get("attention_parts")]
    sources = dict.fromkeys(
        source for cell in judged for tables in cell.record["attention_parts"].values() for source in tables
    )
    head = (Value(cells.titles[method]),)
    return [(*head, Value(judged[0].target), Value(_title(source)), *_values(judged, source)) for source in sources]


def _values(cells: Sequence[CellResult], source: str) -> list[Value]:
    values: list[Value] = []
    for part in PARTS:
        found = Results(
            Observation(cell.method, cell.split, cell.seed, cell.status, {"test": _measures(cell, part, source)})
            for cell in cells
        )
        values.append(of_entry(found.entry(cells[0].method, metric="iou")))
        values.append(of_entry(found.entry(cells[0].method, metric="ratio"), scale=1.0, digits=2))
    return values


def _measures(cell: CellResult, part: str, source: str) -> Mapping[str, Any]:
    mean = cell.record["attention_parts"].get(part, {}).get(source) or {}
    iou, chance = mean.get("iou"), mean.get("iou_chance")
    return {"iou": iou, "ratio": None if iou is None or not chance else iou / chance}


def _title(source: str) -> str:
    name, _, point = source.partition("/")
    return f"LLAM, {point}" if name == "llam" else "class activation" if name == "cam" else source
