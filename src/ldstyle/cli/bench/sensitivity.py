"""``ldstyle bench sensitivity``: the five sweeps of the sensitivity figure."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from ldstyle.cli.bench.options import add_grid_options, run_grid

if TYPE_CHECKING:
    from ldstyle.benchmark.grid.sensitivity import Sweep
    from ldstyle.benchmark.results.cell import CellResult


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; the figure is on split 1, with one seed of its own."""
    from ldstyle.benchmark.grid.sensitivity import SENSITIVITY_SEED

    parser.add_argument("--sweeps", nargs="+", metavar="SWEEP", help="some of the sweeps (default: all)")
    add_grid_options(parser, splits="s1", seeds=f"{SENSITIVITY_SEED},")


def run(arguments: argparse.Namespace) -> int:
    """Run the sweeps of the sensitivity figure and print their points; the paper preset takes the values of Table 3."""
    from ldstyle.benchmark.grid.sensitivity import check_seeds, choose_sweeps, sensitivity_methods
    from ldstyle.benchmark.results.records import read_results

    check_seeds(arguments.seeds)
    if arguments.selected is None and arguments.preset == "paper":
        arguments.selected = "paper"
    sweeps = choose_sweeps(arguments.sweeps)
    code = run_grid(arguments, sensitivity_methods(arguments.sweeps))
    if arguments.dry_run:
        return code
    results = [one for one in read_results(arguments.results) if one.preset == arguments.preset]
    for split in dict.fromkeys(one.split for one in results if "~" in one.method):
        for sweep in sweeps:
            Console(markup=False, emoji=False).print(table(results, sweep, split=split))
    return code


def table(results: list[CellResult], sweep: Sweep, *, split: str) -> Table:
    """Draw the points of a sweep."""
    from ldstyle.benchmark.results.studies import sweep_points

    drawn = Table(title=f"{sweep.base}, {sweep.title}, on {split} (mAP, %)", box=box.SIMPLE_HEAD)
    points = sweep_points(results, sweep, split=split)
    for value, _ in points:
        drawn.add_column("+".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}", justify="right")
    drawn.add_row(*(str(entry) for _, entry in points))
    return drawn
