"""From statistics to entries of tables, and the words that captions share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ldstyle.benchmark.grid.methods import ORACLE, group
from ldstyle.benchmark.paper import TABLES_BY_TARGET, Score
from ldstyle.benchmark.results.statistics import LEAST_VALUES, NOT_REQUESTED, Difference, Entry, best, smallest_p
from ldstyle.benchmark.results.view import Results
from ldstyle.report.model import Absent, Change, Column, Interval, Mean, PValue, Row, Table, Value, Word

PARTS = {"all": "whole target", "test": "test part"}
"""Parts of the target that are reported on: all images of it, and the paper's number."""

METRICS = {"map": "mAP", "cf1": "CF1", "of1": "OF1"}
BOLD = "Bold: the best of a column and all that tie with it as printed"
PAPER_SEEDS = 5
"""Seeds of the paper's means and deviations."""


def mean_of(
    entry: Entry,
    *,
    scale: float = 100.0,
    digits: int = 1,
    deviation: bool = True,
    best: bool = False,
    undefined: str = "",
) -> Mean:
    """Return mean and standard deviation over seeds.

    Args:
        entry: The values by seed.
        scale: Factor from the values to the unit of the column; 100 for percent.
        digits: Digits after the point.
        deviation: Whether the deviation is printed.
        best: Whether it is the best of its column.
        undefined: Why a finished run may have no value.
    """
    note = why_incomplete(entry.values, entry.absent, undefined=undefined)
    if entry.mean is None:
        return Mean(note=note)
    return Mean(
        number=scale * entry.mean,
        sd=None if entry.sd is None else scale * entry.sd,
        n=len(entry.values),
        missing=len(entry.absent),
        digits=digits,
        show_sd=deviation,
        best=best,
        note=note,
    )


def change_of(difference: Difference, *, interval: bool = False, best: bool = False) -> Change:
    """Return a mean difference in percentage points; below three seeds, the seeds' values replace the interval."""
    note = why_incomplete(difference.values, difference.absent)
    if difference.mean is None:
        return Change(note=note)
    low, high = (None if end is None else 100 * end for end in (difference.low, difference.high))
    return Change(
        number=100 * difference.mean,
        low=low,
        high=high,
        by_seed=_by_seed(difference),
        missing=len(difference.absent),
        show_interval=interval,
        best=best,
        note=note,
    )


def interval_of(difference: Difference) -> Value:
    """Return the bootstrap interval of a difference in percentage points.

    Below three seeds it is the list of their values and the smallest p-value they allow; below two it is absent.
    """
    if difference.low is not None and difference.high is not None:
        return Interval(number=100 * difference.low, high=100 * difference.high)
    if len(difference.values) < 2:
        return Value()
    values = _by_seed(difference)
    return Interval(number=min(values), by_seed=values, smallest_p=difference.smallest_p)


def interval_header(differences: Iterable[Difference]) -> str:
    """Return the header of a column of :func:`interval_of`."""
    counts = [len(one.values) for one in differences if len(one.values) > 1]
    if not counts or min(counts) >= LEAST_VALUES:
        return "95 % interval"
    return "by seed" if max(counts) < LEAST_VALUES else "95 % interval, or by seed"


def p_of(difference: Difference, *, corrected: bool = True) -> Value:
    """Return a p-value; absent below two pairs, from which no test could conclude anything."""
    return PValue(number=(difference.p_holm if corrected else difference.p) if len(difference.values) > 1 else None)


def score_of(score: Score) -> Mean:
    """Return a mean and deviation of the paper."""
    return Mean(number=score.mean, sd=score.sd, n=PAPER_SEEDS)


def _by_seed(difference: Difference) -> tuple[float, ...]:
    return tuple(100 * value for _, value in sorted(difference.values.items()))


def competing(entries: Mapping[str, Entry]) -> tuple[str, ...]:
    """Return the best of the methods, all that tie; the oracle does not compete, and one alone is not the best."""
    rivals = {method: entry for method, entry in entries.items() if method != ORACLE}
    return best(rivals) if len(rivals) > 1 else ()


def method_table(
    results: Results,
    slug: str,
    title: str,
    caption: str,
    columns: Sequence[tuple[Column, Mapping[str, Value]]],
    *,
    methods: Sequence[str] | None = None,
    split: str | None = None,
) -> Table:
    """Return a table with a row per method; a method without an entry in a column has a dash."""
    names = results.methods if methods is None else methods
    rows = [Row((Word(results.titles[m]), *(column.get(m, Value()) for _, column in columns)), method=m) for m in names]
    headers = (Column(row_header(results)), *(header for header, _ in columns))
    return Table(slug, title, caption, headers, tuple(rows), rules(names), split)


def rows_by_split(
    results: Results, make: Callable[[Results, str], Sequence[Row]]
) -> tuple[tuple[Row, ...], tuple[int, ...]]:
    """Return the rows that ``make`` gives for each method of each split, and those that begin another split."""
    rows: list[Row] = []
    breaks: list[int] = []
    for split in results.splits:
        here = results.on(split)
        block = [row for method in here.methods for row in make(here, method)]
        breaks += [len(rows)] if rows and block else []
        rows += block
    return tuple(rows), tuple(breaks)


def rules(methods: Sequence[str]) -> tuple[int, ...]:
    """Return the rows that begin another group of methods."""
    return tuple(row for row in range(1, len(methods)) if group(methods[row]) != group(methods[row - 1]))


def row_header(results: Results) -> str:
    """Return the header of the column of methods, with the number of seeds."""
    return f"method ({count_seeds(len(results.seeds))})"


def heading(results: Results, split: str) -> Column:
    """Return the column of a split: ``s1 → ucm``."""
    return Column(f"{split} → {results.targets[split]}", split=split)


def is_the_papers(results: Results, split: str) -> bool:
    """Whether a split is one of the paper's, at its size."""
    cell = results.on(split).cells[0]
    return cell.preset == "paper" and {*cell.sources, cell.target} == TABLES_BY_TARGET.keys()


def nothing_done(results: Results, slug: str, title: str) -> Absent:
    """Return the item of a view without a finished cell."""
    cells = results.cells
    if not cells:
        return Absent(slug, title, f"No cell has such a score. Add methods with `{results.command('run', ['all'])}`.")
    counts = {status: sum(cell.status == status for cell in cells) for status in ("failed", "running")}
    known = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    reason = f"None of {len(cells)} cells is done{f' ({known})' if known else ''}. Run them with `{results.command()}`"
    return Absent(slug, title, f"{reason}; `{results.command('status')}` shows the progress.")


def part_text(results: Results, part: str) -> str:
    """Return the images that scores are of: ``the whole target (656 images of drone)``."""
    counts = [f"{count:,} of {target}" for target, count in results.count_images(part).items()]
    images = f" ({', '.join(counts)})".replace(" of ", " images of ", 1) if counts else ""
    return f"the {'whole target' if part == 'all' else 'test part of the target'}{images}"


def explain_pairs(seeds: int, found: Iterable[Difference]) -> str:
    """Explain how differences are tested, and the smallest p-value that the seeds allow.

    Args:
        seeds: Number of seeds of the table.
        found: The differences that are shown; some may have fewer seeds.
    """
    if seeds < 2:
        return "One seed does not show how certain differences are."
    tested = (
        "an exact two-sided sign-flip test, corrected by Holm's method over the rows; with "
        f"{count_seeds(seeds)} its p-value is at least {smallest_p(seeds):.2g} before correction."
    )
    if seeds < LEAST_VALUES:
        return f"Differences are paired by seed: the values of the seeds, too few for an interval, and {tested}"
    few = any(1 < len(one.values) < LEAST_VALUES for one in found)
    listed = f" Below {LEAST_VALUES} seeds there is no interval; their values are listed." if few else ""
    return f"Differences are paired by seed: 95 % percentile bootstrap interval of the mean, and {tested}{listed}"


def seeds_text(seeds: Sequence[int]) -> str:
    """Return e.g. ``5 seeds (0–4)``, ``2 seeds (0, 7)`` or ``1 seed (3)``."""
    return f"{count_seeds(len(seeds))} ({_listed(seeds)})"


def count_seeds(n: int) -> str:
    """Return ``1 seed`` or ``N seeds``."""
    return f"{n} seed{'' if n == 1 else 's'}"


def over_seeds(seeds: Sequence[int]) -> str:
    """Return ``mean ± standard deviation over 5 seeds (0–4)``, or just the one seed."""
    return f"{'mean ± standard deviation over ' if len(seeds) > 1 else ''}{seeds_text(seeds)}"


def capital(text: str) -> str:
    """Return a text that begins a sentence."""
    return text[0].upper() + text[1:]


def joined(names: Sequence[str]) -> str:
    """Return ``a, b and c``; empty without names."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def why_incomplete(values: Mapping[int, float], absent: Mapping[int, str], *, undefined: str = "") -> str:
    """Return e.g. ``3 of 5 seeds; seed 1 failed; seed 4 missing``; empty if every seed has a value.

    It is empty as well where no finished run has such a value, as a method without attention has no map. Seeds that
    were never requested for a row are not listed; its number of seeds shows that it has fewer.

    Args:
        values: The values by seed.
        absent: Why a seed has none: ``failed``, ``running``, ``missing``, ``not requested`` or ``undefined``.
        undefined: Why a finished run may have no value.
    """
    requested = {seed: reason for seed, reason in absent.items() if not reason.startswith(NOT_REQUESTED)}
    if not values and absent and not requested:
        return next(iter(absent.values()))
    absent = requested
    if not absent or (not values and not undefined and set(absent.values()) == {"undefined"}):
        return ""
    by_reason: dict[str, list[int]] = {}
    for seed, reason in absent.items():
        by_reason.setdefault(reason, []).append(seed)
    parts = [f"{len(values)} of {count_seeds(len(values) + len(absent))}"] if values else []
    for reason, seeds in by_reason.items():
        which = f"seed{'s' if len(seeds) > 1 else ''} {_listed(seeds)}"
        if reason == "undefined":
            parts.append(f"{undefined} ({which})" if undefined else f"{which} without a value")
        else:
            parts.append(f"{which} {reason}")
    return "; ".join(parts)


def _listed(seeds: Sequence[int]) -> str:
    ordered = sorted(seeds)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}–{ordered[-1]}"
    return ", ".join(map(str, ordered))
