"""The tables of a report, each from one view of a grid's cells.

Everything takes :class:`~ldstyle.benchmark.results.view.Results`. A table that cannot be made is an
:class:`~ldstyle.report.model.Absent` with its reason; cells that are not done raise nothing.

=====================  ==============================================================  ============================
``leaderboard``        mAP by target, gain over ERM and over the twin, and cost        :mod:`.leaderboard`
``summary-PART``       mAP on all splits, and the gain over ERM                        :mod:`.scores`
``split-SPLIT-PART``   average precision by label, mAP, CF1, OF1 on a split            :mod:`.scores`
``split-SPLIT-labels`` labels next to the paper's                                      :mod:`.scores`
``differences-PART``   paired differences to ERM                                       :mod:`.differences`
``twins-PART``         paired differences of label-decoupled to global methods         :mod:`.differences`
``additions-PART``     paired differences of e.g. LD-EFDMix + SWAD to SWAD             :mod:`.differences`
``oracle-gap``         distance to the oracle                                          :mod:`.differences`
``calibration``        calibration error of probabilities, before and after scaling    :mod:`.scores`
``attention-parts``    agreement of attention with masks on training to unseen images  :mod:`.attention`
``strength``           relative feature change and sharpness of the maps               :mod:`.attention`
``localization``       agreement of class activation maps with masks                   :mod:`.attention`
``learned-attention``  agreement of learned attention with masks                       :mod:`.attention`
``development``        all of these by epoch                                           :mod:`.attention`
``cost``               time and memory of training                                     :mod:`.cost`
``ablation-SPLIT``     Table 8                                                         :mod:`.differences`
``complexity``         Table 9; throughput from ``complexity.json``                    :mod:`.cost`
``dataset``            Table 1, if the data can be read                                :mod:`.setup`
``search-space``       Table 2                                                         :mod:`.setup`
``selected``           settings of the runs, and next to Table 3                       :mod:`.setup`
=====================  ==============================================================  ============================

The order of rows and columns follows from the names of the cells, not from when they ran, so the same records give the
same bytes. :mod:`.formats` turns tables into Markdown, LaTeX and CSV; :mod:`.entries` makes their entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ldstyle.benchmark.results.view import Results
from ldstyle.report.model import Absent, Item
from ldstyle.report.tables.attention import (
    attention_parts_table,
    attention_table,
    development_table,
    localization_table,
    strength_table,
)
from ldstyle.report.tables.cost import complexity_table, cost_table
from ldstyle.report.tables.differences import ablation_tables, addition_table, baseline_table, oracle_table, twin_table
from ldstyle.report.tables.entries import PARTS
from ldstyle.report.tables.leaderboard import leaderboard_table
from ldstyle.report.tables.scores import calibration_table, label_paper_table, split_table, summary_table
from ldstyle.report.tables.setup import dataset_table, search_space_table, selected_tables

__all__ = ["SLOW_TABLES", "attempt", "make_tables"]

SLOW_TABLES: dict[str, Callable[[Results], Item]] = {"dataset": dataset_table, "complexity": complexity_table}
"""Tables that read data or build networks, by slug; they are made on request only."""


def make_tables(results: Results) -> list[Item]:
    """Return every table that follows from the records of a grid, the most important first."""
    main = results.main
    if not main.cells:
        reason = f"There is no run of a method. Start with `{results.command()}`."
        found: list[Item] = [Absent("summary-all", "All splits", reason)]
    else:
        makers: dict[str, Callable[[Results], Item | None]] = {}
        makers["leaderboard"] = leaderboard_table
        makers |= {f"summary-{part}": partial(summary_table, part=part) for part in PARTS}
        for split in main.splits:
            makers |= {f"split-{split}-{part}": partial(split_table, split=split, part=part) for part in PARTS}
            makers[f"split-{split}-labels"] = partial(label_paper_table, split=split)
        for part in PARTS:
            makers[f"differences-{part}"] = partial(baseline_table, part=part)
            makers[f"twins-{part}"] = partial(twin_table, part=part)
            makers[f"additions-{part}"] = partial(addition_table, part=part)
        makers |= {"oracle-gap": oracle_table, "attention-parts": attention_parts_table}
        makers |= {"localization": localization_table, "learned-attention": attention_table}
        makers |= {"calibration": calibration_table, "strength": strength_table}
        makers |= {"development": development_table, "cost": cost_table}
        found = [item for slug, make in makers.items() for item in attempt(slug, partial(make, main))]
    found += attempt("ablation", lambda: ablation_tables(results))
    return [*found, *attempt("selected", lambda: selected_tables(main)), search_space_table()]


def attempt(slug: str, make: Callable[[], Item | Sequence[Item] | None]) -> list[Item]:
    """Make an item, or several; a record with entries of other types makes it absent."""
    try:
        made = make()
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError, OSError) as error:
        reason = f"A record contains something else than it must: {type(error).__name__}: {error}."
        return [Absent(slug, slug, reason, damaged=True)]
    if made is None:
        return []
    return list(made) if isinstance(made, Sequence) else [made]
