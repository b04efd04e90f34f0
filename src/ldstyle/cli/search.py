"""``ldstyle search``: search hyperparameters on source domains, or go on with a search that was stopped."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ldstyle.benchmark.search.study import SearchConfig

DESCRIPTION = """Search hyperparameters on source domains alone: each source is left out in turn, and a trial's score is
the mean mAP on the validation parts of those left out. With two sources the remaining one is paired with a photometric
copy of itself. The optimizer's parameters are searched once with plain training, then the method's own.

The same command goes on with a search that was stopped; elsewhere, with the same --out or --storage, it joins in."""
INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Run ``ldstyle search`` and return its exit code: 0, or 130 if it was stopped on request."""
    arguments = _parser().parse_args(argv)
    if arguments.workers < 1:
        raise ValueError(f"A search needs at least one worker; got {arguments.workers}.")
    config = read_config(arguments)
    from ldstyle.benchmark.grid.imagery import prepare_place
    from ldstyle.benchmark.search.cost import estimate_cost
    from ldstyle.benchmark.search.objective import fold_config
    from ldstyle.benchmark.search.study import shared_phase
    from ldstyle.benchmark.search.workers import run_search
    from ldstyle.runs.processes import check_devices

    check_devices(fold_config(shared_phase(config).settings, config.folds[0], config.out))
    prepare_place(config.place, workers=arguments.workers)
    sys.stderr.write(estimate_cost(config).describe(workers=arguments.workers) + "\n")
    if arguments.dry_run:
        return 0
    try:
        selected = run_search(config, workers=arguments.workers)
    except KeyboardInterrupt:
        sys.stderr.write(f"Stopped; what is finished is kept. Go on with the same command:\n  {_command(argv)}\n")
        return INTERRUPTED
    for path in (selected, *draw(config)):
        sys.stdout.write(f"{path}\n")
    return 0


def draw(config: SearchConfig) -> list[Path]:
    """Write the plots of a search's studies and return their paths."""
    import optuna

    from ldstyle.benchmark.search.plots import write_plots
    from ldstyle.benchmark.search.storage import open_storage
    from ldstyle.benchmark.search.study import SHARED, study_name

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
    from ldstyle.benchmark.grid.imagery import find_place, search_folder
    from ldstyle.benchmark.grid.methods import load_method
    from ldstyle.benchmark.grid.presets import load_preset
    from ldstyle.benchmark.search.study import SearchConfig
    from ldstyle.cli.bench.options import parse_edits
    from ldstyle.runs.config import default_cache_dir

    preset = load_preset(arguments.preset)
    cache_dir = Path(arguments.cache or default_cache_dir())
    sources = tuple(arguments.sources)
    return SearchConfig(
        method=load_method(arguments.method),
        sources=sources,
        place=find_place(
            arguments.data,
            preset=preset,
            cache_dir=cache_dir,
            sea=arguments.sea,
            mapping=arguments.mapping,
            labels=arguments.labels,
            ignore=arguments.ignore,
        ),
        preset=preset,
        out=arguments.out or search_folder(Path("runs", "search"), preset.name, sources),
        storage=arguments.storage,
        shared_trials=arguments.shared_trials,
        trials=arguments.trials,
        seed=arguments.seed,
        edits=parse_edits(arguments.set),
        keep_runs=arguments.keep_runs,
    )


def _command(argv: Sequence[str]) -> str:
    import shlex

    return f"ldstyle search {shlex.join(argv)}"


def _parser() -> argparse.ArgumentParser:
    from ldstyle.benchmark.grid.presets import PRESETS

    parser = argparse.ArgumentParser(
        prog="ldstyle search", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--method", required=True, metavar="NAME", help="a method of the benchmark, or a YAML file")
    add("--sources", required=True, nargs="+", metavar="DOMAIN", help="source domains, at least two")
    add("--data", metavar="DIR", help="data folder, own CSV, or `synthetic` ($LDSTYLE_DATA by default)")
    add("--sea", choices=("drop", "water+sea"), default="drop", help="what becomes of the label sea of UCM and AID")
    add("--mapping", type=Path, metavar="FILE", help="label map, a YAML file")
    add("--labels", nargs="+", default=[], metavar="NAME", help="label columns of custom tables (default: all)")
    add("--ignore", nargs="+", default=[], metavar="NAME", help="columns of custom tables that are no labels")
    add("--cache", metavar="DIR", help="folder of decoded images ($LDSTYLE_CACHE by default)")
    add("--preset", default="paper", metavar="NAME", help=f"size of a run: {', '.join(PRESETS)} (default: %(default)s)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all runs, e.g. optimizer.epochs=20")
    add("--out", type=Path, metavar="DIR", help="folder of the search (default: runs/search/PRESET-SOURCES)")
    add("--storage", metavar="URL", help="database of an Optuna study, e.g. postgresql://…; a journal file by default")
    add("--shared-trials", type=int, default=40, metavar="N", help="trials for the optimizer (default: 40)")
    add("--trials", type=int, default=20, metavar="N", help="trials for the method's own parameters (default: 20)")
    add("--workers", type=int, default=1, metavar="N", help="processes on this machine (default: 1)")
    add("--seed", type=int, default=0, help="seed of runs and sampler (default: 0)")
    add("--keep-runs", action="store_true", help="keep the runs of all folds")
    add("--dry-run", action="store_true", help="print what it would cost, and do nothing else")
    return parser
