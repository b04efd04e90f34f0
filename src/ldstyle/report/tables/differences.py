"""Paired differences: every method against ERM, every label-decoupled one against its global twin, and the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ldstyle.benchmark.results.comparison import Difference, Entry
from ldstyle.benchmark.results.statistics import holm
from ldstyle.report.model import Absent, Table, Value
from ldstyle.report.order import BASELINE, ORACLE, global_twin, group
from ldstyle.report.tables.cells import PARTS, CellSet, competing, part_text, rules
from ldstyle.report.tables.scores import explain_pairs
from ldstyle.report.tables.values import (
    DASH,
    Statistic,
    interval_header,
    interval_of,
    of_difference,
    p_of,
    seeds_text,
)


def baseline_table(cells: CellSet, *, part: str) -> Table | Absent:
    """Return the paired differences of all methods to ERM."""
    slug, title = f"differences-{part}", f"Differences to ERM, {PARTS[part]}"
    if BASELINE not in cells.methods:
        return Absent(slug, title, "There is no ERM to compare with. Add it with `ldstyle bench run --methods erm`.")
    baselines = {method: BASELINE for method in cells.methods if method not in (BASELINE, ORACLE)}
    if not baselines:
        return Absent(slug, title, "There is nothing but ERM. Add methods with `ldstyle bench run --methods all`.")
    return _paired_table(cells, slug, title, baselines, part=part)


def twin_table(cells: CellSet, *, part: str) -> Table | Absent:
    """Return the paired differences of label-decoupled methods to the same operator applied to whole images."""
    slug, title = f"twins-{part}", f"Label-decoupled against global, {PARTS[part]}"
    decoupled = [method for method in cells.methods if group(method) == 1]
    twins = {method: str(global_twin(method)) for method in decoupled}
    baselines = {method: twin for method, twin in twins.items() if twin in cells.methods}
    if not decoupled:
        reason = "There is no label-decoupled method. Add some with `ldstyle bench run --methods ld`."
        return Absent(slug, title, reason)
    if not baselines:
        wanted = " ".join(dict.fromkeys(twins.values()))
        reason = (
            f"The global methods to compare with are missing. Add them with `ldstyle bench run --methods {wanted}`."
        )
        return Absent(slug, title, reason)
    alone = [cells.titles[method] for method in decoupled if method not in baselines]
    remark = f" Without a global twin here: {', '.join(alone)}." if alone else ""
    return _paired_table(cells, slug, title, baselines, part=part, remark=remark)


def oracle_table(cells: CellSet) -> Table | Absent:
    """Return how far each method stays below the oracle on the test part."""
    slug, title = "oracle-gap", "Gap to the oracle"
    if ORACLE not in cells.methods:
        reason = "There is no oracle, which is trained on the target. Add it with `ldstyle bench run --methods oracle`."
        return Absent(slug, title, reason)
    if cells.is_empty:
        return cells.nothing(slug, title)
    methods = [method for method in cells.methods if method != ORACLE]
    # A seed that a split was never run with is missing from the average only.
    columns = [_gaps(cells.on(split)) for split in cells.splits] if len(cells.splits) > 1 else []
    total = {gap.baseline: gap for gap in cells.results.oracle_gap()}
    columns.append(_gaps(cells))
    rows = tuple(
        (
            Value(cells.titles[method]),
            *(column.get(method, Value(DASH)) for column in columns),
            interval_of(total[method]),
        )
        for method in methods
    )
    several = [*map(cells.heading, cells.splits), "average"]
    headers = several if len(several) > 2 else several[:1]
    caption = (
        "mAP of the oracle, trained on the target itself, minus that of the method, on "
        f"{part_text(cells.cells, 'test')} in percentage points: paired by seed, mean over "
        f"{seeds_text(cells.results.seeds)}, with a 95 % bootstrap interval, or the values of fewer than 3 seeds. "
        "Bold: the smallest gap of a column and all that tie with it as printed."
    )
    return Table(
        slug, title, caption, (cells.row_header, *headers, interval_header(total.values())), rows, rules(methods)
    )


def _paired_table(
    cells: CellSet, slug: str, title: str, baselines: Mapping[str, str], *, part: str, remark: str = ""
) -> Table | Absent:
    if cells.is_empty:
        return cells.nothing(slug, title)
    total = _corrected(cells, baselines, part)
    several = len(cells.splits) > 1
    splits = [_corrected(cells.on(split), baselines, part) for split in cells.splits] if several else []
    shown = [one for of_split in (total, *splits) for one in of_split.values()]
    rows = []
    for method, baseline in baselines.items():
        found = total[method]
        row = [Value(cells.titles[method]), Value(cells.titles[baseline])]
        row += [of_difference(on[method], interval=True) if method in on else Value(DASH) for on in splits]
        row += [of_difference(found), interval_of(found), p_of(found, corrected=False), p_of(found)]
        rows.append((*row, Statistic(f"{found.ties}", float(found.ties))))
    headings = [*map(cells.heading, cells.splits), "all splits"] if several else [cells.heading(cells.splits[0])]
    columns = (cells.row_header, "minus", *headings, interval_header(total.values()), "p", "p (Holm)", "ties")
    caption = (
        f"Differences of mAP on {part_text(cells.without(ORACLE).cells, part)} in percentage points, mean "
        f"over {seeds_text(cells.results.seeds)}. {explain_pairs(len(cells.results.seeds), shown)} Ties are "
        f"pairs that are exactly equal.{remark}"
    )
    return Table(slug, title, caption, columns, tuple(rows), rules(list(baselines)))


def _corrected(cells: CellSet, baselines: Mapping[str, str], part: str) -> dict[str, Difference]:
    """Compare each method with its baseline where both are there; p-values are corrected over them."""
    pairs = {m: b for m, b in baselines.items() if m in cells.methods and b in cells.methods}
    found = [cells.results.difference(method, baseline, part=part) for method, baseline in pairs.items()]
    corrected = holm([one.p for one in found])
    return {one.method: replace(one, p_holm=p) for one, p in zip(found, corrected, strict=True)}


def _gaps(cells: CellSet) -> dict[str, Value]:
    if ORACLE not in cells.methods:
        return {}
    gaps = {gap.baseline: gap for gap in cells.results.oracle_gap()}
    # The smallest gap is the best.
    turned = {m: Entry({s: -v for s, v in gap.values.items()}, gap.absent) for m, gap in gaps.items()}
    first = competing(turned)
    return {method: of_difference(gap, best=method in first) for method, gap in gaps.items()}
