"""Paired differences: methods against ERM, their global twins and the oracle, and the ablations of Table 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ldstyle.benchmark.grid.methods import BASELINE, ORACLE, global_twin, without_style
from ldstyle.benchmark.paper import TABLE_8
from ldstyle.benchmark.results.statistics import Difference, Entry, best
from ldstyle.benchmark.results.view import Results, correct
from ldstyle.benchmark.studies import ABLATIONS, AblationResult, ablation_table
from ldstyle.report.model import Absent, Column, Number, Row, Table, Value, Word
from ldstyle.report.tables.entries import (
    BOLD,
    METRICS,
    PARTS,
    change_of,
    competing,
    count_seeds,
    explain_pairs,
    heading,
    interval_header,
    interval_of,
    is_the_papers,
    mean_of,
    method_table,
    nothing_done,
    over_seeds,
    p_of,
    part_text,
    row_header,
    rules,
    score_of,
    seeds_text,
)

PAPER_TARGET = "ucm"
"""Target of the split that Table 8 is of."""


def baseline_table(results: Results, *, part: str) -> Table | Absent:
    """Return the paired differences of all methods to ERM."""
    slug, title = f"differences-{part}", f"Differences to ERM, {PARTS[part]}"
    if BASELINE not in results.methods:
        command = results.command("run", ["erm"])
        return Absent(slug, title, f"There is no ERM to compare with. Add it with `{command}`.")
    baselines = {method: BASELINE for method in results.methods if method not in (BASELINE, ORACLE)}
    if not baselines:
        command = results.command("run", ["all"])
        return Absent(slug, title, f"ERM is the only method. Add others with `{command}`.")
    return _paired_table(results, slug, title, baselines, part=part)


def twin_table(results: Results, *, part: str) -> Table | Absent:
    """Return the paired differences of label-decoupled methods to the same operator applied to whole images."""
    slug, title = f"twins-{part}", f"Label-decoupled against global, {PARTS[part]}"
    twins = {method: twin for method in results.methods if (twin := global_twin(method)) is not None}
    baselines = {method: twin for method, twin in twins.items() if twin in results.methods}
    if not twins:
        command = results.command("run", ["ld"])
        return Absent(slug, title, f"There is no label-decoupled method. Add some with `{command}`.")
    if not baselines:
        command = results.command("run", list(dict.fromkeys(twins.values())))
        return Absent(slug, title, f"The global methods to compare with are missing. Add them with `{command}`.")
    alone = [results.titles[method] for method in twins if method not in baselines]
    remark = f" Without a global twin here: {', '.join(alone)}." if alone else ""
    return _paired_table(results, slug, title, baselines, part=part, remark=remark)


def addition_table(results: Results, *, part: str) -> Table | Absent:
    """Return the paired differences of methods with an addition, e.g. LD-EFDMix + SWAD, to the addition alone."""
    slug, title = f"additions-{part}", f"Styles in addition to other methods, {PARTS[part]}"
    found = {method: other for method in results.methods if (other := without_style(method)) is not None}
    baselines = {method: other for method, other in found.items() if other in results.methods}
    if not baselines:
        command = results.command("run", ["swad", "ld-efdmix+swad"])
        reason = f"There is no pair such as LD-EFDMix + SWAD and SWAD. Add one with `{command}`."
        return Absent(slug, title, reason, optional=True)
    return _paired_table(results, slug, title, baselines, part=part)


def oracle_table(results: Results) -> Table | Absent:
    """Return how far each method stays below the oracle on the test part."""
    slug, title = "oracle-gap", "Gap to the oracle"
    if ORACLE not in results.methods:
        command = results.command("run", [ORACLE])
        return Absent(slug, title, f"There is no oracle, which is trained on the target. Add it with `{command}`.")
    if not results.done:
        return nothing_done(results, slug, title)
    methods = [method for method in results.methods if method != ORACLE]
    several = len(results.splits) > 1
    # A seed that a split was never run with is missing from the average only.
    columns = [(heading(results, split), _gaps(results.on(split))) for split in results.splits if several]
    total = {gap.baseline: gap for gap in results.oracle_gap()}
    columns.append((Column("average") if several else heading(results, results.splits[0]), _gaps(results)))
    columns.append((Column(interval_header(total.values())), {m: interval_of(gap) for m, gap in total.items()}))
    caption = (
        "mAP of the oracle, trained on the target itself, minus that of the method, on "
        f"{part_text(results, 'test')} in percentage points: paired by seed, mean over {seeds_text(results.seeds)}, "
        "with a 95 % bootstrap interval, or the values of fewer than 3 seeds. "
        "Bold: the smallest gap of a column and all that tie with it as printed."
    )
    return method_table(results, slug, title, caption, columns, methods=methods)


def _paired_table(
    results: Results, slug: str, title: str, baselines: Mapping[str, str], *, part: str, remark: str = ""
) -> Table | Absent:
    if not results.done:
        return nothing_done(results, slug, title)
    total = _corrected(results, baselines, part)
    several = len(results.splits) > 1
    splits = [_corrected(results.on(split), baselines, part) for split in results.splits] if several else []
    shown = [one for of_split in (total, *splits) for one in of_split.values()]
    rows = []
    for method, baseline in baselines.items():
        found = total[method]
        row: list[Value] = [Word(results.titles[method]), Word(results.titles[baseline])]
        row += [change_of(on[method], interval=True) if method in on else Value() for on in splits]
        row += [change_of(found), interval_of(found), p_of(found, corrected=False), p_of(found)]
        rows.append(Row((*row, Number(number=float(found.ties), digits=0)), method=method, baseline=baseline))
    headings = [heading(results, split) for split in results.splits] + ([Column("all splits")] if several else [])
    first, last = (row_header(results), "minus"), (interval_header(total.values()), "p", "p (Holm)", "ties")
    caption = (
        f"Differences of mAP on {part_text(results.without(ORACLE), part)} in percentage points, mean "
        f"over {seeds_text(results.seeds)}. {explain_pairs(len(results.seeds), shown)} Ties are "
        f"pairs that are exactly equal.{remark}"
    )
    columns = (*map(Column, first), *headings, *map(Column, last))
    return Table(slug, title, caption, columns, tuple(rows), rules(list(baselines)))


def _corrected(results: Results, baselines: Mapping[str, str], part: str) -> dict[str, Difference]:
    """Compare each method with its baseline where both exist; p-values are corrected over them."""
    pairs = {m: b for m, b in baselines.items() if m in results.methods and b in results.methods}
    return {one.method: one for one in correct(results.difference(m, b, part=part) for m, b in pairs.items())}


def _gaps(results: Results) -> dict[str, Value]:
    if ORACLE not in results.methods:
        return {}
    gaps = {gap.baseline: gap for gap in results.oracle_gap()}
    # The smallest gap is the best.
    first = competing({m: Entry({s: -v for s, v in gap.values.items()}, gap.absent) for m, gap in gaps.items()})
    return {method: change_of(gap, best=method in first) for method, gap in gaps.items()}


def ablation_tables(results: Results) -> list[Table | Absent]:
    """Return Table 8 for each split with ablations.

    Next to the paper's numbers, ours are of the target's test part, and elsewhere of the whole target.
    """
    edited = {ablation.name for ablation in ABLATIONS if ablation.edit}
    splits = results.select(lambda cell: cell.method in edited).splits
    if not splits:
        command = results.command("ablations")
        return [Absent("ablation", "Ablations", f"No ablations were run. Run them with `{command}`.", optional=True)]
    return [_ablation_table(results.on(split), split) for split in splits]


def _ablation_table(results: Results, split: str) -> Table | Absent:
    slug, target = f"ablation-{split}", results.targets[split]
    title = f"Ablations on {split}: target {target}"
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
    rows = tuple(_ablation_row(row, changes, found, printed=printed) for row in found)
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


def _ablation_row(
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
