"""``ldstyle bench``: run the grid of methods, splits and seeds, see how far it is, and verify it."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

if TYPE_CHECKING:
    from ldstyle.benchmark.results.cell import CellResult
    from ldstyle.benchmark.results.reading import DamagedFileError

EXAMPLES = """
examples:
  ldstyle bench run --data synthetic --methods all --splits all --seeds 2 --preset smoke
  ldstyle bench run --methods erm ld-efdmix-gc my-method.yaml --splits s1 --shard 3/16
  ldstyle bench run --executor ray --address 10.0.0.1:6379
  ldstyle bench status --watch
"""
SUBCOMMANDS = {
    "ablations": "ldstyle.cli.bench.ablations",
    "sensitivity": "ldstyle.cli.bench.sensitivity",
    "complexity": "ldstyle.cli.bench.complexity",
}
"""Further commands: modules with ``add(parser)`` and ``run(arguments)``, whose docstring says what it does."""


def main(argv: Sequence[str]) -> int:
    """Run one ``ldstyle bench`` command and return its exit code."""
    arguments = _parser().parse_args(argv)
    return int(arguments.run(arguments))


def run(arguments: argparse.Namespace) -> int:
    """Run the cells that are not done yet: methods by splits by seeds."""
    from ldstyle.benchmark.grid.methods import load_methods
    from ldstyle.cli.bench.options import run_grid

    names = [name for text in arguments.methods for name in text.split(",") if name]
    return run_grid(arguments, load_methods(names))


def status(arguments: argparse.Namespace) -> int:
    """Show how far the grid is; exit with 1 if a cell failed or a file is damaged."""
    from ldstyle.benchmark.results.records import read_results
    from ldstyle.benchmark.results.status import status_view

    damaged: list[DamagedFileError] = []
    found = read_results(arguments.results, damaged=damaged)
    console = Console(markup=False, emoji=False)
    if not arguments.watch:
        console.print(status_view(found), highlight=False)
    else:
        with suppress(KeyboardInterrupt), Live(status_view(found), console=console, auto_refresh=False) as live:
            while any(cell.status in ("running", "missing") for cell in found):
                time.sleep(arguments.every)
                damaged.clear()
                found = read_results(arguments.results, damaged=damaged)
                live.update(status_view(found), refresh=True)
    name_damaged(damaged)
    return int(bool(damaged) or any(cell.status == "failed" for cell in found))


def verify(arguments: argparse.Namespace) -> int:
    """Rebuild all tables from the kept predictions, run one random cell again, and compare; exit with 1 if unequal."""
    from ldstyle.benchmark.results.records import read_results
    from ldstyle.benchmark.results.verify import check_predictions, choose_cell

    results: Path = arguments.results
    damaged: list[DamagedFileError] = []
    found = read_results(results)
    wrong = check_predictions(results, damaged=damaged)
    for name, differences in wrong.items():
        sys.stdout.write(f"{name}: the predictions do not give the recorded {differences[0].name}\n")
    name_damaged(damaged)
    done = [cell for cell in found if cell.status == "done"]
    spoilt = {cell.cell for cell in done for one in damaged if results / cell.cell in one.path.parents}
    equal = len(done) - len(wrong) - len(spoilt)
    sys.stdout.write(f"{equal} of {len(done)} cells: tables rebuilt from the predictions are the recorded ones\n")
    chosen = choose_cell(found, seed=arguments.seed)
    return int(_compare_again(chosen, arguments) or bool(wrong or damaged))


def name_damaged(damaged: Sequence[DamagedFileError]) -> None:
    """Name the files of a results folder that were left out."""
    for one in damaged:
        sys.stderr.write(f"left out: {one}\n")


def _compare_again(chosen: CellResult, arguments: argparse.Namespace) -> bool:
    """Run a cell again and return whether its record differs by more than is allowed."""
    from ldstyle.benchmark.results.verify import changed_versions, compare, find_recorded_place, run_again

    say, trust = sys.stdout.write, arguments.trust_record
    place = find_recorded_place(
        chosen, arguments.data, cache_dir=arguments.cache, mapping=arguments.mapping, trust=trust
    )
    say(f"running {chosen.cell} again\n")
    again = run_again(chosen, place, trust=trust)
    differences = compare(chosen.record, again)
    for one in changed_versions(chosen.record, again):
        say(f"note: {one.name} was {one.recorded!r}, is {one.found!r}\n")
    beyond = [one for one in differences if not one.size <= arguments.tolerance]
    for one in beyond:
        say(f"{one.name}: recorded {one.recorded!r}, found {one.found!r}\n")
    largest = max((one.size for one in differences), default=0.0)
    say(f"{chosen.cell}: {'equal' if not differences else f'largest difference {largest:g}'}\n")
    return bool(beyond)


def _parser() -> argparse.ArgumentParser:
    from ldstyle.cli.bench.options import add_grid_options
    from ldstyle.runs.config import default_cache_dir

    parser = argparse.ArgumentParser(
        prog="ldstyle bench",
        description="Run the grid of methods, splits and seeds, see how far it is, and verify it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        first = summary.splitlines()[0]
        return commands.add_parser(name, help=first, description=first)

    command = add("run", run.__doc__ or "")
    command.set_defaults(run=run)
    command.add_argument(
        "--methods",
        nargs="+",
        default=["all"],
        metavar="METHOD",
        help="names, groups (all, ld, beyond), NAME+swad, or YAML files of own methods (default: all)",
    )
    add_grid_options(command)
    command = add("status", status.__doc__ or "")
    command.set_defaults(run=status)
    _add_results(command)
    command.add_argument("--watch", action="store_true", help="keep showing it until nothing is left to do")
    command.add_argument("--every", type=float, default=2.0, help="seconds between looks (default: %(default)s)")
    command = add("verify", verify.__doc__ or "")
    command.set_defaults(run=verify)
    _add_results(command)
    command.add_argument("--seed", type=int, default=0, help="decides which cell is run again (default: %(default)s)")
    command.add_argument(
        "--tolerance", type=float, default=0.0, help="largest difference to allow, e.g. between machines (%(default)s)"
    )
    command.add_argument(
        "--data", help="data folder, CSV of a custom data set, or 'synthetic' (default: $LDSTYLE_DATA)"
    )
    command.add_argument("--mapping", type=Path, help="label map, a YAML file")
    cache = Path(default_cache_dir())
    command.add_argument("--cache", type=Path, default=cache, help="folder of decoded images (%(default)s)")
    command.add_argument(
        "--trust-record",
        action="store_true",
        help="use the data folder, label map and weights that the record names; for results of your own only",
    )
    for name, module in SUBCOMMANDS.items():
        if find_spec(module) is not None:
            further = importlib.import_module(module)
            command = add(name, further.run.__doc__ or "")
            command.set_defaults(run=further.run)
            further.add(command)
    return parser


def _add_results(command: argparse.ArgumentParser) -> None:
    command.add_argument("--results", type=Path, default=Path("results"), help="folder of results (%(default)s)")
