"""``ldstyle search``: search hyperparameters on source domains, or resume a search."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ldstyle.cli import INTERRUPTED
from ldstyle.cli.options import LABELS, SYNTHETIC, add_shared

if TYPE_CHECKING:
    from ldstyle.benchmark.search.study import SearchConfig


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    from ldstyle.benchmark.grid.presets import PRESETS

    add = parser.add_argument
    add("--method", required=True, metavar="NAME", help="method of the benchmark, or a YAML file")
    add("--sources", required=True, nargs="+", metavar="NAME", help="source domains, at least two")
    add_shared(parser, "--data", type=str, help=SYNTHETIC)
    add_shared(parser, *LABELS, "--cache", "--set", "--workers", "--seed", "--dry-run")
    add("--preset", default="paper", metavar="NAME", help=f"size of a run: {', '.join(PRESETS)} (default: %(default)s)")
    add_shared(parser, "--out", metavar="DIR", help="folder of the search (default: runs/search/PRESET-SOURCES)")
    text = "database of the studies, e.g. postgresql://… (default: a journal file in --out)"
    add("--storage", metavar="URL", help=text)
    text = "trials for the optimizer; 0 keeps the preset's settings (default: %(default)s)"
    add("--shared-trials", type=int, default=40, metavar="N", help=text)
    add("--trials", type=int, default=20, metavar="N", help="trials for the method's parameters (default: %(default)s)")
    text = "parameters of the method to search, e.g. style.gate_prob (default: all it has)"
    add("--parameters", nargs="+", default=(), metavar="KEY", help=text)
    add("--keep-runs", action="store_true", help="keep the runs of all folds")


def run(arguments: argparse.Namespace) -> int:
    """Search hyperparameters on source domains alone.

    Each source is left out in turn, and a trial's score is the mean mAP on the validation parts of those left out.
    With two sources the remaining one is paired with a photometric copy of itself. The optimizer's parameters are
    searched once with plain training, then the method's own. The same command resumes a search that was stopped;
    elsewhere, with the same --out or --storage, it joins in. The exit code is 130 if it was stopped on request.
    """
    config = read_config(arguments)
    from ldstyle.benchmark.grid.imagery import prepare_location
    from ldstyle.benchmark.search.objective import fold_config
    from ldstyle.benchmark.search.running import estimate_cost, run_search
    from ldstyle.benchmark.search.study import phases
    from ldstyle.runs.processes import check_devices

    check_devices(fold_config(phases(config)[0].settings, config.folds[0], config.out))
    prepare_location(config.location, workers=arguments.workers)
    sys.stderr.write(estimate_cost(config).describe(workers=arguments.workers) + "\n")
    if arguments.dry_run:
        return 0
    try:
        selected = run_search(config, workers=arguments.workers)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped. Finished trials are kept, and the same command resumes.\n")
        return INTERRUPTED
    for path in (selected, *draw(config)):
        sys.stdout.write(f"{path}\n")
    return 0


def draw(config: SearchConfig) -> list[Path]:
    """Write the plots of a search's studies and return their paths."""
    import optuna

    from ldstyle.benchmark.search.storage import open_storage
    from ldstyle.benchmark.search.study import SHARED, study_name, write_plots

    storage = open_storage(config.out, config.storage)
    known = {summary.study_name for summary in optuna.get_all_study_summaries(storage)}
    written: list[Path] = []
    for phase in (SHARED, config.method.name):
        name = study_name(config, phase)
        if name in known:
            study = optuna.load_study(study_name=name, storage=storage)
            written += write_plots(study, config.out, name=phase)
    return written


def read_config(arguments: argparse.Namespace) -> SearchConfig:
    """Build the search from the options."""
    from ldstyle.benchmark.grid.imagery import search_folder
    from ldstyle.benchmark.grid.methods import load_method
    from ldstyle.benchmark.grid.presets import load_preset
    from ldstyle.benchmark.search.study import SearchConfig
    from ldstyle.cli.grid import data_location, parse_edits

    preset = load_preset(arguments.preset)
    sources = tuple(arguments.sources)
    return SearchConfig(
        method=load_method(arguments.method),
        sources=sources,
        location=data_location(arguments, preset),
        preset=preset,
        out=arguments.out or search_folder(Path("runs", "search"), preset.name, sources),
        storage=arguments.storage,
        shared_trials=arguments.shared_trials,
        trials=arguments.trials,
        parameters=tuple(arguments.parameters),
        seed=arguments.seed,
        edits=parse_edits(arguments.set),
        keep_runs=arguments.keep_runs,
    )
