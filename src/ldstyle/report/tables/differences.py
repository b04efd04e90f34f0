"""Paired differences: every method against ERM, every label-decoupled one against its global twin, and the oracle."""

from __future__ import annotations

from collections.abc import Mapping

from ldstyle.benchmark.grid.methods import BASELINE, ORACLE, global_twin
from ldstyle.benchmark.results.statistics import Difference, Entry
from ldstyle.benchmark.results.view import Results, correct
from ldstyle.report.model import Absent, Column, Number, Row, Table, Value, Word
from ldstyle.report.tables.entries import (
    PARTS,
    change_of,
    competing,
    explain_pairs,
    heading,
    interval_header,
    interval_of,
    method_table,
    nothing_done,
    p_of,
    part_text,
    row_header,
    rules,
    seeds_text,
)


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
