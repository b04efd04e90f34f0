"""The one definition of a training time relative to plain training, for tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ldstyle.benchmark.results.records import CellResult
from ldstyle.report.order import BASELINE

HOW = "the ratio of the times at the same split and seed, averaged over splits, then over seeds"


def relative_times(cells: Sequence[CellResult], method: str, *, per_epoch: bool = False) -> dict[int, float]:
    """Return by seed how many times as long as ERM a method trains: the mean of the ratios on all splits.

    Args:
        cells: Cells of one grid. A seed that lacks a time of either method on a split has no ratio.
        method: Name of the method.
        per_epoch: Whether times are per epoch, or of a whole run, which may have stopped early.
    """
    times = {(cell.method, cell.split, cell.seed): spent for cell in cells if (spent := _seconds(cell, per_epoch))}
    splits = dict.fromkeys(cell.split for cell in cells if cell.status == "done")
    ratios: dict[int, float] = {}
    for seed in sorted({cell.seed for cell in cells}):
        pairs = [(times.get((method, split, seed)), times.get((BASELINE, split, seed))) for split in splits]
        found = [ours / theirs for ours, theirs in pairs if ours and theirs]
        if found and len(found) == len(splits):
            ratios[seed] = fmean(found)
    return ratios


def _seconds(cell: CellResult, per_epoch: bool) -> float | None:
    if cell.wall_seconds is None or not per_epoch:
        return cell.wall_seconds
    return cell.wall_seconds / cell.epochs if cell.epochs else None
