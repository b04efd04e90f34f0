"""``ldstyle bench ablations``: the rows of Table 8, each one edit of a method."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from ldstyle.cli.bench.options import add_grid_options, run_grid

if TYPE_CHECKING:
    from ldstyle.benchmark.results.cell import CellResult


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; Table 8 is on split 1."""
    add_grid_options(parser, splits="s1")


def run(arguments: argparse.Namespace) -> int:
    """Run the ablations of Table 8 and print it beside the paper's; the paper preset takes the values of Table 3."""
    from ldstyle.benchmark.grid.ablations import ablation_methods
    from ldstyle.benchmark.results.records import read_results

    if arguments.selected is None and arguments.preset == "paper":
        arguments.selected = "paper"
    code = run_grid(arguments, ablation_methods())
    if arguments.dry_run:
        return code
    results = [one for one in read_results(arguments.results) if one.preset == arguments.preset]
    splits = dict.fromkeys(one.split for one in results if one.method.startswith("ld-efdmix-gc."))
    for split in splits:
        Console(markup=False, emoji=False).print(table([one for one in results if one.split == split], split=split))
    return code


def table(results: list[CellResult], *, split: str) -> Table:
    """Draw Table 8 as measured on a split, with the paper's change of mAP beside it."""
    from ldstyle.benchmark.paper import TABLE_8
    from ldstyle.benchmark.results.studies import ablation_table

    drawn = Table(title=f"Ablations on {split}, target test part (%)", box=box.SIMPLE_HEAD)
    drawn.add_column("variant", no_wrap=True)
    for name in ("mAP", "CF1", "OF1", "ΔmAP", "95 %", "ΔmAP (paper)"):
        drawn.add_column(name, justify="right")
    for row in ablation_table(results, split=split):
        change = interval = ""
        if row.change is not None and row.change.mean is not None:
            change = f"{100 * row.change.mean:+.1f}"
        if row.change is not None and row.change.low is not None and row.change.high is not None:
            interval = f"{100 * row.change.low:+.1f} … {100 * row.change.high:+.1f}"
        printed = TABLE_8[row.ablation.name].change
        paper = "" if printed is None else f"{printed:+.1f}"
        drawn.add_row(row.ablation.title, str(row.map), str(row.cf1), str(row.of1), change, interval, paper)
    return drawn
