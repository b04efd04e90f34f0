"""Table 8: the contribution of each part of the method, with the paper's numbers next to ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ldstyle.benchmark.paper import TABLE_8
from ldstyle.benchmark.results.statistics import Difference, best
from ldstyle.benchmark.results.view import Results, correct
from ldstyle.benchmark.studies import ABLATIONS, AblationResult, ablation_table
from ldstyle.report.model import Absent, Column, Number, Row, Table, Value, Word
from ldstyle.report.tables.entries import (
    BOLD,
    METRICS,
    change_of,
    count_seeds,
    explain_pairs,
    interval_header,
    interval_of,
    is_the_papers,
    mean_of,
    over_seeds,
    p_of,
    part_text,
    score_of,
)

TITLE = "Ablations"
PAPER_TARGET = "ucm"
"""Target of the split that Table 8 is of."""


def ablation_tables(results: Results) -> list[Table | Absent]:
    """Return Table 8 for each split with ablations.

    Next to the paper's numbers, ours are of the target's test part, and elsewhere of the whole target.
    """
    edited = {ablation.name for ablation in ABLATIONS if ablation.edit}
    splits = results.select(lambda cell: cell.method in edited).splits
    if not splits:
        command = results.command("ablations")
        return [Absent("ablation", TITLE, f"No ablations were run. Run them with `{command}`.", optional=True)]
    return [_table(results.on(split), split) for split in splits]


def _table(results: Results, split: str) -> Table | Absent:
    slug, target = f"ablation-{split}", results.targets[split]
    title = f"{TITLE} on {split}: target {target}"
    printed = target == PAPER_TARGET and is_the_papers(results, split)
    part: Literal["test", "all"] = "test" if printed else "all"
    found = ablation_table(results, split=split, part=part)
    if not any(row.map.values for row in found):
        command = results.command("ablations")
        return Absent(slug, title, f"None of the ablations on {split} is done. Run them with `{command}`.")
    seeds = sorted({*found[0].map.values, *found[0].map.absent})
    changed = [(row.ablation.name, row.change) for row in found if row.change is not None]
    corrected = correct(change for _, change in changed)
    changes = {name: change for (name, _), change in zip(changed, corrected, strict=True)}
    rows = tuple(_row(row, changes, found, printed=printed) for row in found)
    columns = [f"variant ({count_seeds(len(seeds))})", *METRICS.values()]
    columns += ["ΔmAP", interval_header(changes.values()), "p (Holm)"]
    columns += ["mAP (paper)", "ΔmAP (paper)"] if printed else []
    caption = (
        f"Loss without each part, on {part_text(results, part)} in percent, {over_seeds(seeds)}; "
        "ΔmAP is the change against the full method of the same block. "
        f"{explain_pairs(len(seeds), changes.values())} {BOLD}, by block."
    )
    caption += " Next to ours the paper's, over 5 seeds." if printed else ""
    blocks = [row.ablation.base for row in found]
    breaks = tuple(i for i in range(1, len(blocks)) if blocks[i] != blocks[i - 1])
    return Table(slug, title, caption, tuple(map(Column, columns)), rows, breaks)


def _row(
    row: AblationResult, changes: Mapping[str, Difference], found: Sequence[AblationResult], *, printed: bool
) -> Row:
    name, block = row.ablation.name, [other for other in found if other.ablation.base == row.ablation.base]
    values: list[Value] = [Word(row.ablation.title)]
    for metric in METRICS:
        first = best({other.ablation.name: getattr(other, metric) for other in block})
        values.append(mean_of(getattr(row, metric), best=name in first))
    change = changes.get(name)
    values += [Value()] * 3 if change is None else [change_of(change), interval_of(change), p_of(change)]
    if printed:
        values += [score_of(TABLE_8[name].map), Number(number=TABLE_8[name].change, digits=1, signed=True)]
    return Row(tuple(values), method=name)
