"""The tables of a report.

Everything takes cells of one set: one results folder, one preset (see
:func:`~ldstyle.benchmark.results.records.read_results`). What cannot be made is an
:class:`~ldstyle.report.model.Absent` with its reason; nothing raises over cells that are not done.

:func:`make_tables`
    What follows from the scores: per split and part of the target, labels beside the paper's, summary, paired
    differences to ERM and to the global twins, gap to the oracle, localization, calibration, cost.
:func:`ablation_tables`
    Table 8, for each split with ablations.
:func:`dataset_table`
    Table 1, if the data folder that the records name can be read.
:func:`search_space_table`
    Table 2; depends on nothing.
:func:`selected_tables`
    The values that the runs were made with, and beside Table 3 where the runs are the paper's.
:func:`complexity_table`
    Table 9, counted for the network of the runs; throughput from ``complexity.json`` of the results folder.

The order of rows and columns follows from what the cells are, not from when they ran, so the same records give the same
bytes. :mod:`ldstyle.report.formats` turns tables into Markdown, LaTeX and CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ldstyle.benchmark.results.records import CellResult
from ldstyle.report.model import Absent, Item
from ldstyle.report.tables.ablation import ablation_tables
from ldstyle.report.tables.attention import attention_parts_table
from ldstyle.report.tables.calibration import calibration_table
from ldstyle.report.tables.cells import PARTS, CellSet
from ldstyle.report.tables.complexity import complexity_table
from ldstyle.report.tables.dataset import dataset_table
from ldstyle.report.tables.differences import baseline_table, oracle_table, twin_table
from ldstyle.report.tables.observed import attention_table, cost_table, development_table, localization_table
from ldstyle.report.tables.scores import label_paper_table, split_table, summary_table
from ldstyle.report.tables.settings import search_space_table, selected_tables

__all__ = [
    "ablation_tables",
    "attempt",
    "complexity_table",
    "dataset_table",
    "make_tables",
    "search_space_table",
    "selected_tables",
]


def make_tables(results: Sequence[CellResult]) -> list[Item]:
    """Return every table that follows from the scores of a set of cells, the most asked for first.

    Args:
        results: Cells of one results folder and preset. Ablations and points of sweeps are left out.
    """
    cells = CellSet(results)
    if not cells.cells:
        return [Absent("summary-all", "All splits", "There is no run of a method. Start with `ldstyle bench run`.")]
    makers: dict[str, Callable[[], Item | None]] = {}
    makers |= {f"summary-{part}": partial(summary_table, cells, part=part) for part in PARTS}
    for split in cells.splits:
        makers |= {f"split-{split}-{part}": partial(split_table, cells, split, part=part) for part in PARTS}
        makers[f"split-{split}-labels"] = partial(label_paper_table, cells, split)
    for part in PARTS:
        makers[f"differences-{part}"] = partial(baseline_table, cells, part=part)
        makers[f"twins-{part}"] = partial(twin_table, cells, part=part)
    others = {"oracle-gap": oracle_table, "attention-parts": attention_parts_table, "localization": localization_table}
    others |= {"learned-attention": attention_table, "calibration": calibration_table}
    makers |= {slug: partial(make, cells) for slug, make in others.items()}
    makers |= {"development": partial(development_table, cells), "cost": partial(cost_table, cells)}
    return [item for slug, make in makers.items() for item in attempt(slug, make)]


def attempt(slug: str, make: Callable[[], Item | Sequence[Item] | None]) -> list[Item]:
    """Make an item, or several; where a record holds something else than it must, say so instead."""
    try:
        made = make()
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError, OSError) as error:
        reason = f"A record holds something else than it must: {type(error).__name__}: {error}."
        return [Absent(slug, slug, reason, damaged=True)]
    if made is None:
        return []
    return list(made) if isinstance(made, Sequence) else [made]
