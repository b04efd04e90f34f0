"""Results of the paper's two studies: the ablations of Table 8 and the sweeps of the sensitivity figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ldstyle.benchmark.grid.ablations import ABLATIONS, Ablation
from ldstyle.benchmark.grid.sensitivity import Sweep
from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.comparison import Difference, Entry
from ldstyle.benchmark.results.view import Results


@dataclass(frozen=True)
class AblationResult:
    """A measured row of Table 8.

    Attributes:
        ablation: The row.
        map: Mean and deviation of the mAP.
        cf1: Those of the macro-averaged F1.
        of1: Those of the micro-averaged F1.
        change: mAP minus that of the full method, paired by seed; ``None`` for the full method.
    """

    ablation: Ablation
    map: Entry
    cf1: Entry
    of1: Entry
    change: Difference | None


def ablation_table(
    results: Sequence[CellResult], *, split: str, part: Literal["test", "all"] = "test"
) -> list[AblationResult]:
    """Return Table 8 as measured on a split; entries of rows that were not run name the missing seeds."""
    names = {ablation.name for ablation in ABLATIONS}
    found = Results(result for result in results if result.method in names and result.split == split)
    rows = []
    for ablation in ABLATIONS:
        name = ablation.name
        map_, cf1, of1 = (found.entry(name, split=split, part=part, metric=metric) for metric in ("map", "cf1", "of1"))
        change = found.difference(name, ablation.base, split=split, part=part) if ablation.edit else None
        rows.append(AblationResult(ablation, map_, cf1, of1, change))
    return rows


def sweep_points(
    results: Sequence[CellResult], sweep: Sweep, *, split: str, part: str = "test", metric: str = "map"
) -> list[tuple[Any, Entry]]:
    """Return the values of a sweep, each with its measured entry on a split."""
    names = {sweep.method(value).name: value for value in sweep.values}
    found = Results(result for result in results if result.method in names and result.split == split)
    return [(value, found.entry(name, split=split, part=part, metric=metric)) for name, value in names.items()]
