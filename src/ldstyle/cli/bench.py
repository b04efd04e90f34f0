"""``ldstyle bench``: run the grid of methods, splits and seeds, watch it, verify it, and measure costs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ldstyle.cli.grid import add_grid_options, run_grid
from ldstyle.cli.options import SYNTHETIC, add_shared, choose_device, make_table, positive, split_names, subcommands

if TYPE_CHECKING:
    from ldstyle.benchmark.grid.methods import Method
    from ldstyle.benchmark.results.cell import CellResult
    from ldstyle.benchmark.results.reading import DamagedFileError
    from ldstyle.benchmark.results.view import Results
    from ldstyle.benchmark.studies import Sweep
    from ldstyle.report.tables.cost import Conditions

EPILOG = """
examples:
  ldstyle bench run --data synthetic --methods all --splits all --seeds 2 --preset smoke
  ldstyle bench run --methods erm ld-efdmix-gc my-method.yaml --splits s1 --shard 3/16
  ldstyle bench run --executor ray --address 10.0.0.1:6379
  ldstyle bench status --watch
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the commands and their options."""
    from ldstyle.benchmark.studies import SENSITIVITY_SEED

    add = subcommands(parser)
    command = add(run_cells)
    text = "names, groups (all, ld, beyond), NAME+swad, or YAML files of custom methods (default: all)"
    command.add_argument("--methods", nargs="+", default=["all"], metavar="METHOD", help=text)
    add_grid_options(command)
    command = add(status)
    add_shared(command, "--results")
    command.add_argument("--watch", action="store_true", help="keep showing it until nothing is left to do")
    text = "seconds between updates (default: %(default)s)"
    command.add_argument("--every", type=float, default=2.0, metavar="S", help=text)
    command = add(verify)
    add_shared(command, "--results", "--seed", "--mapping", "--cache", "--trust-record")
    add_shared(command, "--data", type=str, help=SYNTHETIC)
    text = "largest difference to allow, e.g. between machines (default: %(default)s)"
    command.add_argument("--tolerance", type=float, default=0.0, metavar="SIZE", help=text)
    add_grid_options(add(ablations), splits="s1")
    command = add(sensitivity)
    command.add_argument("--sweeps", nargs="+", metavar="SWEEP", help="some of the sweeps (default: all)")
    add_grid_options(command, splits="s1", seeds=f"{SENSITIVITY_SEED},")
    _add_measuring(add(complexity))


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    from ldstyle.benchmark.grid.presets import PRESETS

    add = parser.add_argument
    add("--preset", choices=tuple(PRESETS), default="paper", help="whose network is measured (default: %(default)s)")
    add("--backbone", metavar="NAME", help="timm model (default: that of the preset)")
    text = "pixels per location of the last map (default: that of the preset, or with --backbone the network's own)"
    add("--output-stride", type=positive, metavar="PX", help=text)
    add("--num-labels", type=positive, default=6, metavar="N", help="number of labels (default: %(default)s)")
    add_shared(parser, "--size", help="image side in pixels (default: that of the preset)")
    add_shared(parser, "--batch-size", "--device")
    add("--repeats", type=int, default=10, metavar="N", help="batches timed; 0 times none (default: %(default)s)")
    text = "folder of results whose report gets these figures (default: none)"
    add_shared(parser, "--results", default=None, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Run the grid of methods, splits and seeds, see how far it is, and verify it."""
    return int(arguments.subcommand(arguments))


def run_cells(arguments: argparse.Namespace) -> int:
    """Run the cells that are not done yet: methods by splits by seeds."""
    from ldstyle.benchmark.grid.methods import load_methods

    return run_grid(arguments, load_methods(split_names(arguments.methods)))


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
    checked = check_predictions(results, damaged=damaged)
    wrong = {name: differences for name, differences in checked.items() if differences}
    for name, differences in wrong.items():
        sys.stdout.write(f"{name}: the predictions do not give the recorded {differences[0].name}\n")
    name_damaged(damaged)
    done = sum(cell.status == "done" for cell in found)
    equal = len(checked) - len(wrong)
    sys.stdout.write(f"{equal} of {done} cells: tables rebuilt from the predictions are the recorded ones\n")
    # A record that could not be checked lacks what it would be compared by.
    chosen = choose_cell([cell for cell in found if cell.cell in checked] or found, seed=arguments.seed)
    return int(_compare_again(chosen, arguments) or bool(wrong or damaged))


def name_damaged(damaged: Sequence[DamagedFileError]) -> None:
    """Name the files of a results folder that were left out."""
    for one in damaged:
        sys.stderr.write(f"left out: {one}\n")


def _compare_again(chosen: CellResult, arguments: argparse.Namespace) -> bool:
    """Run a cell again and return whether its record differs by more than is allowed."""
    from ldstyle.benchmark.results.verify import changed_versions, compare, find_recorded_location, run_again

    say, trust = sys.stdout.write, arguments.trust_record
    location = find_recorded_location(
        chosen, arguments.data, cache_dir=arguments.cache, mapping=arguments.mapping, trust=trust
    )
    say(f"running {chosen.cell} again\n")
    again = run_again(chosen, location, trust=trust)
    differences = compare(chosen.record, again)
    for one in changed_versions(chosen.record, again):
        say(f"note: {one.name} was {one.recorded!r}, is {one.found!r}\n")
    beyond = [one for one in differences if not one.size <= arguments.tolerance]
    for one in beyond:
        say(f"{one.name}: recorded {one.recorded!r}, found {one.found!r}\n")
    largest = max((one.size for one in differences), default=0.0)
    say(f"{chosen.cell}: {'equal' if not differences else f'largest difference {largest:g}'}\n")
    return bool(beyond)


def ablations(arguments: argparse.Namespace) -> int:
    """Run the ablations of Table 8 and print it next to the paper's; the paper preset takes the values of Table 3."""
    from ldstyle.benchmark.studies import ablation_methods

    code, results = _run_study(arguments, ablation_methods())
    for split in results.select(lambda cell: cell.method.startswith("ld-efdmix-gc.")).splits:
        Console(markup=False, emoji=False).print(ablation_table(results, split=split))
    return code


def _run_study(arguments: argparse.Namespace, methods: Sequence[Method]) -> tuple[int, Results]:
    """Run the methods of a study and return the exit code and the results, none of a dry run."""
    from ldstyle.benchmark.results.records import read_results
    from ldstyle.benchmark.results.view import Results

    if arguments.selected is None and arguments.preset == "paper":
        arguments.selected = "paper"
    code = run_grid(arguments, methods)
    found = () if arguments.dry_run else read_results(arguments.results)
    return code, Results(one for one in found if one.preset == arguments.preset)


def ablation_table(results: Results, *, split: str) -> Table:
    """Draw Table 8 as measured on a split, with the paper's change of mAP next to it."""
    from ldstyle.benchmark.paper import TABLE_8
    from ldstyle.benchmark.studies import ablation_table as measured_rows

    rows = []
    for row in measured_rows(results, split=split):
        change = interval = ""
        if row.change is not None and row.change.mean is not None:
            change = f"{100 * row.change.mean:+.1f}"
        if row.change is not None and row.change.low is not None and row.change.high is not None:
            interval = f"{100 * row.change.low:+.1f} … {100 * row.change.high:+.1f}"
        printed = TABLE_8[row.ablation.name].change
        paper = "" if printed is None else f"{printed:+.1f}"
        rows.append([row.ablation.title, str(row.map), str(row.cf1), str(row.of1), change, interval, paper])
    header = ("variant", "mAP", "CF1", "OF1", "ΔmAP", "95 %", "ΔmAP (paper)")
    return make_table(header, rows, title=f"Ablations on {split}, target test part (%)")


def sensitivity(arguments: argparse.Namespace) -> int:
    """Run the sweeps of the sensitivity figure and print their points; the paper preset takes the values of Table 3."""
    from ldstyle.benchmark.studies import check_seeds, choose_sweeps, sensitivity_methods

    check_seeds(arguments.seeds)
    sweeps = choose_sweeps(arguments.sweeps)
    code, results = _run_study(arguments, sensitivity_methods(arguments.sweeps))
    for split in results.select(lambda cell: "~" in cell.method).splits:
        for sweep in sweeps:
            Console(markup=False, emoji=False).print(sweep_table(results, sweep, split=split))
    return code


def sweep_table(results: Results, sweep: Sweep, *, split: str) -> Table:
    """Draw the points of a sweep."""
    from ldstyle.benchmark.studies import sweep_points, value_text

    points = sweep_points(results, sweep, split=split)
    values = [value_text(value) for value, _ in points]
    title = f"{sweep.base}, {sweep.title}, on {split} (mAP, %)"
    return make_table(values, [[str(entry) for _, entry in points]], title=title, left=0)


def complexity(arguments: argparse.Namespace) -> int:
    """Measure parameters, operations and throughput of the deployed network, next to Table 9."""
    from ldstyle.benchmark.complexity import TITLES, measure_families
    from ldstyle.benchmark.paper import TABLE_9
    from ldstyle.report.tables.cost import FILE, write_complexity

    device = str(choose_device(arguments))
    wanted = _conditions(arguments, device)
    measured = measure_families(
        wanted.backbone,
        num_labels=wanted.labels,
        size=wanted.size,
        output_stride=wanted.output_stride,
        batch_size=arguments.batch_size,
        repeats=arguments.repeats,
        device=device,
    )
    if arguments.results is not None:
        arguments.results.mkdir(parents=True, exist_ok=True)
        write_complexity(arguments.results / FILE, wanted, measured)
    stride = "" if wanted.output_stride is None else f" at output stride {wanted.output_stride}"
    title = f"{wanted.backbone}{stride}, {wanted.size} px, batch {arguments.batch_size} on {device}"
    rows = []
    for family, row in measured.items():
        paper = TABLE_9[family]
        low, middle, high = row.throughput or (0.0, 0.0, 0.0)
        speed = f"{middle:.0f} ({low:.0f}–{high:.0f})" if row.throughput else ""
        found = [
            f"{row.parameters / 1e6:.2f}",
            f"{100 * row.added:+.2f}" if row.added else "–",
            f"{row.macs / 1e9:.3f}",
        ]
        printed = [f"{paper.parameters:.2f}", f"{paper.added:+.2f}" if paper.added else "–", f"{paper.macs:.3f}"]
        rows.append([TITLES[family], *found, speed, *printed])
    header = ("method", "M", "Δ %", "GMACs", "images/s", "paper: M", "Δ %", "GMACs")
    Console(markup=False, emoji=False).print(make_table(header, rows, title=title))
    return 0


def _conditions(arguments: argparse.Namespace, device: str) -> Conditions:
    """Return the network and the image size of the preset, with the options in their place."""
    from ldstyle.benchmark.grid.presets import load_preset
    from ldstyle.report.tables.cost import Conditions
    from ldstyle.runs.settings import complete

    settings = complete(load_preset(arguments.preset).settings)
    backbone, stride = settings["backbone"], arguments.output_stride
    if stride is None and arguments.backbone is None:
        stride = backbone["output_stride"]
    return Conditions(
        arguments.backbone or backbone["name"],
        arguments.num_labels,
        arguments.size or settings["data"]["size"],
        output_stride=stride,
        batch_size=arguments.batch_size if arguments.repeats else 0,
        device=device if arguments.repeats else "",
    )
