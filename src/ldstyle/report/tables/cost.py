"""Cost of training: time, time per epoch, both relative to ERM, and memory."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from ldstyle.benchmark.grid.methods import BASELINE
from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.statistics import Entry
from ldstyle.benchmark.results.view import Results
from ldstyle.report.model import Absent, Column, Number, Table, Value
from ldstyle.report.tables.entries import mean_of, method_table, nothing_done, over_seeds

HOW = "the ratio of the times at the same split and seed, averaged over splits, then over seeds"
_UNITS = ((2 * 3600.0, 3600.0, "h"), (2 * 60.0, 60.0, "min"), (0.0, 1.0, "s"))
"""Least seconds of the longest time of a column, its unit in seconds, and the unit's name."""


def cost_table(results: Results) -> Table | Absent:
    """Return the cost of training each method."""
    slug, title = "cost", "Cost of training"
    if not results.done:
        return nothing_done(results, slug, title)
    unit, run = _in_unit(results.entries(metric=lambda cell: cell.wall_seconds))
    epoch_unit, epoch = _in_unit(results.entries(metric=lambda cell: _seconds(cell, per_epoch=True)))
    epochs = results.entries(metric=lambda cell: float(cell.epochs))
    memory = results.entries(metric=lambda cell: cell.peak_memory_mb)
    columns: list[tuple[Column, Mapping[str, Value]]] = [(Column(f"training ({unit})"), run)]
    columns += _relative(results, "training / ERM", per_epoch=False)
    columns += [(Column("epochs"), {m: mean_of(entry, scale=1.0) for m, entry in epochs.items()})]
    columns += [(Column(f"epoch ({epoch_unit})"), epoch)]
    columns += _relative(results, "epoch / ERM", per_epoch=True)
    peaks = {m: mean_of(entry, scale=1.0, digits=0, deviation=False) for m, entry in memory.items()}
    columns += [(Column("peak memory (MB)"), peaks)]
    averaged = ", averaged over the splits" if len(results.splits) > 1 else ""
    caption = (
        f"Time, epochs and memory of one training run{averaged}, {over_seeds(results.seeds)}. {_machines(results)} "
        "Training ends early where validation stops improving, so methods compare better by epoch."
        + (f" Relative to ERM: {HOW}." if BASELINE in results.methods else "")
    )
    return method_table(results, slug, title, caption, columns)


def relative_times(results: Results, method: str, *, per_epoch: bool = False) -> dict[int, float]:
    """Return by seed how many times as long as ERM a method trains: the mean of the ratios on all splits.

    Args:
        results: The grid. A seed that lacks a time of either method on a split has no ratio.
        method: Name of the method.
        per_epoch: Whether times are per epoch, or of a whole run, which may have stopped early.
    """
    times = {(c.method, c.split, c.seed): spent for c in results.done if (spent := _seconds(c, per_epoch=per_epoch))}
    splits = dict.fromkeys(cell.split for cell in results.done)
    ratios: dict[int, float] = {}
    for seed in results.seeds:
        pairs = [(times.get((method, split, seed)), times.get((BASELINE, split, seed))) for split in splits]
        found = [ours / theirs for ours, theirs in pairs if ours and theirs]
        if found and len(found) == len(splits):
            ratios[seed] = fmean(found)
    return ratios


def _seconds(cell: CellResult, *, per_epoch: bool) -> float | None:
    if cell.wall_seconds is None or not per_epoch:
        return cell.wall_seconds
    return cell.wall_seconds / cell.epochs if cell.epochs else None


def _relative(results: Results, title: str, *, per_epoch: bool) -> list[tuple[Column, Mapping[str, Value]]]:
    if BASELINE not in results.methods:
        return []
    ratios = {method: relative_times(results, method, per_epoch=per_epoch) for method in results.methods}
    return [(Column(title), {m: Number(number=fmean(r.values()), digits=2, unit=" ×") for m, r in ratios.items() if r})]


def _in_unit(entries: Mapping[str, Entry]) -> tuple[str, dict[str, Value]]:
    """Return the unit that suits the longest time of a column, and the column in it."""
    longest = max((entry.mean for entry in entries.values() if entry.mean is not None), default=0.0)
    size, unit = next((size, unit) for least, size, unit in _UNITS if longest >= least)
    digits = 2 if unit == "s" and longest < 10 else 1
    return unit, {method: mean_of(entry, scale=1 / size, digits=digits) for method, entry in entries.items()}


def _machines(results: Results) -> str:
    machines = [cell.machine for cell in results.done]
    hosts = {machine.host for machine in machines}
    threads = sorted({machine.threads for machine in machines if machine.threads is not None})
    used = f"{' or '.join(map(str, threads))} thread{'s' if threads != [1] else ''} per run" if threads else ""
    if len(hosts) > 1:
        return f"The runs were made on {len(hosts)} machines ({used}), so times are hardly comparable."
    return f"All runs on one machine, {used}." if used else "All runs on one machine."
