"""Table 8: what each part of the method contributes, with the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ldstyle.benchmark.grid.ablations import ABLATIONS, AblationResult, ablation_table
from ldstyle.benchmark.paper import TABLE_8, TABLES_BY_TARGET
from ldstyle.benchmark.results.comparison import Difference, best
from ldstyle.benchmark.results.records import CellResult
from ldstyle.benchmark.results.statistics import holm
from ldstyle.report.model import Absent, Table, Value
from ldstyle.report.order import split_rank
from ldstyle.report.tables.cells import part_text
from ldstyle.report.tables.scores import BOLD, explain_pairs
from ldstyle.report.tables.values import (
    DASH,
    count_seeds,
    interval_header,
    interval_of,
    of_difference,
    of_entry,
    of_score,
    over_seeds,
    p_of,
    signed,
)

TITLE = "Ablations"
METRICS = {"map": "mAP", "cf1": "CF1", "of1": "OF1"}
PAPER_TARGET = "ucm"
"""Target of the split that Table 8 is of."""


def ablation_tables(results: Sequence[CellResult]) -> list[Table | Absent]:
    """Return Table 8 for each split on which ablations were asked for.

    Where the paper's stand next to ours, they are of the target's test part, and elsewhere of the whole target.

    Args:
        results: Cells of one results folder and preset.
    """
    edited = {ablation.name for ablation in ABLATIONS if ablation.edit}
    splits = sorted({cell.split for cell in results if cell.method in edited}, key=split_rank)
    if not splits:
        return [
            Absent("ablation", TITLE, "No ablations were run. Run them with `ldstyle bench ablations`.", optional=True)
        ]
    return [_table([cell for cell in results if cell.split == split], split) for split in splits]


def _table(results: Sequence[CellResult], split: str) -> Table | Absent:
    slug, target = f"ablation-{split}", results[0].target
    title = f"{TITLE} on {split}: target {target}"
    printed = _of_the_paper(results[0])
    part: Literal["test", "all"] = "test" if printed else "all"
    found = ablation_table(results, split=split, part=part)
    if not any(row.map.values for row in found):
        reason = f"None of the ablations on {split} is done. Run them with `ldstyle bench ablations`."
        return Absent(slug, title, reason)
    seeds = sorted({*found[0].map.values, *found[0].map.absent})
    changes = _corrected(found)
    rows = tuple(_row(row, changes.get(row.ablation.name), found, printed=printed) for row in found)
    columns = [
        f"variant ({count_seeds(len(seeds))})",
        *METRICS.values(),
        "ΔmAP",
        interval_header(changes.values()),
        "p (Holm)",
    ]
    columns += ["mAP (paper)", "ΔmAP (paper)"] if printed else []
    caption = (
        f"What is lost without each part, on {part_text(results, part)} in percent, {over_seeds(seeds)}; "
        "ΔmAP is the change against the full method of the same block. "
        f"{explain_pairs(len(seeds), changes.values())} {BOLD}, by block."
    )
    caption += " Beside ours the paper's, over 5 seeds." if printed else ""
    blocks = [row.ablation.base for row in found]
    breaks = tuple(i for i in range(1, len(blocks)) if blocks[i] != blocks[i - 1])
    return Table(slug, title, caption, tuple(columns), rows, breaks)


def _row(
    row: AblationResult, change: Difference | None, found: Sequence[AblationResult], *, printed: bool
) -> tuple[Value, ...]:
    name, block = row.ablation.name, [other for other in found if other.ablation.base == row.ablation.base]
    cells = [Value(row.ablation.title)]
    for metric in METRICS:
        first = best({other.ablation.name: getattr(other, metric) for other in block})
        cells.append(of_entry(getattr(row, metric), best=name in first))
    if change is None:
        cells += [Value(DASH)] * 3
    else:
        cells += [of_difference(change), interval_of(change), p_of(change)]
    if printed:
        paper = TABLE_8[name]
        cells += [of_score(paper.map), _printed_change(paper.change)]
    return tuple(cells)


def _printed_change(change: float | None) -> Value:
    return Value(DASH) if change is None else Value(signed(change), change)


def _corrected(found: Sequence[AblationResult]) -> dict[str, Difference]:
    changes = {row.ablation.name: row.change for row in found if row.change is not None}
    corrected = holm([change.p for change in changes.values()])
    pairs = zip(changes.items(), corrected, strict=True)
    return {name: Difference(**{**vars(change), "p_holm": p}) for (name, change), p in pairs}


def _of_the_paper(cell: CellResult) -> bool:
    domains = {*cell.sources, cell.target}
    return cell.preset == "paper" and cell.target == PAPER_TARGET and domains == TABLES_BY_TARGET.keys()
