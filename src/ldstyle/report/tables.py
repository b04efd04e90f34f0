"""The tables of a report.

Everything takes cells of one set: one results folder, one preset (:func:`ldstyle.benchmark.records.read_results`). What
cannot be made is an :class:`~ldstyle.report.items.Absent` with its reason; nothing raises over cells that are not done.

:func:`make_tables`
    What follows from the scores: per split and part of the target, labels beside the paper's, summary, paired
    differences to ERM and to the global twins, gap to the oracle, localization, cost.
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

from collections.abc import Sequence

from ldstyle.benchmark.records import CellResult
from ldstyle.report.items import Absent, Table
from ldstyle.report.tables_ablation import ablation_tables
from ldstyle.report.tables_attention import attention_parts_table
from ldstyle.report.tables_cells import PARTS, CellSet
from ldstyle.report.tables_complexity import complexity_table
from ldstyle.report.tables_dataset import dataset_table
from ldstyle.report.tables_differences import baseline_table, oracle_table, twin_table
from ldstyle.report.tables_observed import attention_table, cost_table, development_table, localization_table
from ldstyle.report.tables_scores import label_paper_table, split_table, summary_table
from ldstyle.report.tables_settings import search_space_table, selected_tables

__all__ = [
    "ablation_tables",
    "complexity_table",
    "dataset_table",
    "make_tables",
    "search_space_table",
    "selected_tables",
]


def make_tables(results: Sequence[CellResult]) -> list[Table | Absent]:
    """Return every table that follows from the scores of a set of cells, the most asked for first.

    Args:
        results: Cells of one results folder and preset. Ablations and points of sweeps are left out.
    """
    cells = CellSet(results)
    if not cells.cells:
        return [Absent("summary-all", "All splits", "There is no run of a method. Start with `ldstyle bench run`.")]
    made: list[Table | Absent | None] = [summary_table(cells, part=part) for part in PARTS]
    for split in cells.splits:
        made += [split_table(cells, split, part=part) for part in PARTS]
        made.append(label_paper_table(cells, split))
    for part in PARTS:
        made += [baseline_table(cells, part=part), twin_table(cells, part=part)]
    made += [oracle_table(cells), attention_parts_table(cells), localization_table(cells), attention_table(cells)]
    made += [development_table(cells), cost_table(cells)]
    return [table for table in made if table is not None]
