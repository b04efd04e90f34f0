"""The options that all grids share, and how a grid is run with them."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import yaml
from rich.console import Console, RenderableType
from rich.live import Live

from ldstyle.benchmark.execution.local import LocalExecutor, default_workers
from ldstyle.benchmark.execution.runner import Event, Executor, Report, Summary, check_settings, run_cells
from ldstyle.benchmark.grid.cells import Cell, Split, make_cells, make_splits, take_shard
from ldstyle.benchmark.grid.commands import seeds_text
from ldstyle.benchmark.grid.imagery import (
    DRAWN,
    Domains,
    Place,
    choose_grid_domains,
    find_place,
    prepare_place,
    search_folder,
)
from ldstyle.benchmark.grid.methods import Method
from ldstyle.benchmark.grid.presets import PRESETS, load_preset
from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.records import read_records, read_results, write_plan
from ldstyle.benchmark.results.status import describe_counts, duration, estimate_seconds, status_view
from ldstyle.runs.config import default_cache_dir
from ldstyle.runs.processes import check_devices
from ldstyle.runs.settings import Settings, config_from, merge, read_settings


def add_grid_options(parser: argparse.ArgumentParser, *, splits: str = "all", seeds: str = "5") -> None:
    """Add the options of a grid: data, splits, seeds, preset, results, and who runs it."""
    add = parser.add_argument
    add("--data", help="data folder, CSV of an own table, or 'synthetic' for drawn scenes (default: $LDSTYLE_DATA)")
    add("--domains", nargs="+", metavar="NAME", help="domains (default: the official UCM, AID, DFC15, or else all)")
    add("--sea", choices=("drop", "water+sea"), default="drop", help="the label sea of UCM and AID")
    add("--mapping", type=Path, help="label map, a YAML file")
    add("--labels", nargs="+", default=[], metavar="NAME", help="label columns of custom tables (default: all)")
    add("--ignore", nargs="+", default=[], metavar="NAME", help="columns of custom tables that are no labels")
    add("--splits", nargs="+", default=[splits], metavar="SPLIT", help="s1, s2, ..., targets, or all (%(default)s)")
    add("--seeds", type=parse_seeds, default=seeds, help="how many, or a list such as 0,2,4 (default: %(default)s)")
    add("--preset", choices=tuple(PRESETS), default="paper", help="size of the benchmark (default: %(default)s)")
    add("--selected", metavar="DIR", help="folder of METHOD-SPLIT.yaml or of searches; 'paper' for Table 3")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all runs, e.g. optimizer.epochs=20")
    add("--results", type=Path, default=Path("results"), help="folder of results (default: %(default)s)")
    add("--cache", type=Path, default=Path(default_cache_dir()), help="folder of decoded images (%(default)s)")
    add("--workers", type=_positive, help="processes (default: one per GPU, or one per core)")
    add("--threads", type=_positive, help="threads per process (default: its share of the cores)")
    add("--executor", choices=("local", "ray"), default="local", help="who runs the cells (default: %(default)s)")
    add("--address", default="auto", help="address of the Ray cluster (default: %(default)s)")
    add("--connect-seconds", type=float, default=15.0, help="time the Ray cluster has to answer (%(default)s)")
    add("--cpus", type=_positive, default=1, help="cores per cell on the Ray cluster (default: %(default)s)")
    add("--gpus", type=float, help="GPUs per cell on the Ray cluster (default: 1 if it has any)")
    add("--shard", type=parse_shard, default=(1, 1), metavar="I/N", help="run the I-th of N parts of the grid")
    add("--dry-run", action="store_true", help="print the cells and a time estimate, and run nothing")


def run_grid(arguments: argparse.Namespace, methods: Sequence[Method]) -> int:
    """Run methods on a grid with the given options; return 0, 1 if a cell failed, or 130 if it was stopped."""
    preset = load_preset(arguments.preset)
    place = find_place(
        arguments.data,
        preset=preset,
        cache_dir=arguments.cache,
        sea=arguments.sea,
        mapping=arguments.mapping,
        labels=arguments.labels,
        ignore=arguments.ignore,
    )
    domains = choose_grid_domains(arguments.data, place, arguments.domains)
    splits = make_splits(domains.names, _listed(arguments.splits))
    cells = make_cells(
        methods,
        splits,
        arguments.seeds,
        preset=preset,
        data=place.settings(),
        edits=parse_edits(arguments.set),
        selected=read_selected(arguments.selected, methods, splits, preset=preset.name),
    )
    results: Path = arguments.results
    check_settings(cells, results)
    mine = take_shard(cells, *arguments.shard)
    if arguments.dry_run:
        sys.stdout.write(describe_splits(splits, domains))
        return _dry_run(mine, results, workers=arguments.workers or default_workers())
    if arguments.executor == "local":  # the nodes of a cluster may have what this machine does not
        keys = ("accelerator", "devices", "precision")
        by_device = {tuple(cell.settings[key] for key in keys): cell for cell in mine}
        for cell in by_device.values():
            check_devices(config_from({**cell.settings, "out": str(results)}))
    sys.stderr.write(describe_splits(splits, domains))
    write_plan(results, cells, _kept_options(arguments, place))
    prepare_place(place, workers=arguments.workers or default_workers())
    try:
        with _display(results, mine) as report:
            summary = run_cells(mine, results=results, place=place, executor=_executor(arguments), report=report)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped at once. The same command goes on from the last checkpoints.\n")
        return 130
    _summarize(summary, results)
    return summary.exit_code


def describe_splits(splits: Sequence[Split], domains: Domains) -> str:
    """Return a line for each split, with its sources and target, and name the domains that no split uses."""
    lines = [f"{split.name}: {' + '.join(split.sources)} → {split.target}\n" for split in splits]
    used = {name for split in splits for name in (*split.sources, split.target)}
    unused = [*(name for name in domains.names if name not in used), *domains.left_out]
    if unused:
        lines.append(f"not used: {', '.join(unused)}; --domains names the domains to use\n")
    return "".join(lines)


def _kept_options(arguments: argparse.Namespace, place: Place) -> dict[str, str | list[str]]:
    """Return the options that make the grid what it is, with absolute paths."""
    given, data = vars(arguments), arguments.data
    paths = {name: given[name] for name in ("mapping", "selected") if given[name] not in (None, "paper")}
    options: dict[str, str | list[str] | None] = {
        "data": data if data == DRAWN else str(Path(data).expanduser().absolute()) if data else place.root,
        "domains": arguments.domains,
        "labels": arguments.labels,
        "ignore": arguments.ignore,
        "sea": arguments.sea if arguments.sea != "drop" else None,
        "splits": _listed(arguments.splits),
        "seeds": seeds_text(arguments.seeds),
        "preset": arguments.preset,
        "selected": arguments.selected,
        "set": list(arguments.set),
    }
    options |= {name: str(Path(path).expanduser().absolute()) for name, path in paths.items()}
    return {name: value for name, value in options.items() if value}


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read ``3`` as the seeds 0, 1, 2 and a list such as ``0,4`` as just these."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    seeds = tuple(dict.fromkeys(int(part) for part in parts if part.isdecimal()))
    if len(parts) == 1 and "," not in text:
        seeds = tuple(range(*seeds)) if seeds else ()
    if not seeds or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"must be a number of seeds or a list such as 0,2,4; got {text!r}")
    return seeds


def parse_shard(text: str) -> tuple[int, int]:
    """Read ``2/8`` as the second of eight parts."""
    shard, slash, shards = text.partition("/")
    if not slash or not shard.isdecimal() or not shards.isdecimal() or not 1 <= int(shard) <= int(shards):
        raise argparse.ArgumentTypeError(f"must be I/N with 1 <= I <= N, e.g. 2/8; got {text!r}")
    return int(shard), int(shards)


def parse_edits(texts: Sequence[str]) -> Settings:
    """Read ``optimizer.epochs=20`` as nested settings."""
    edits: Settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes KEY=VALUE, e.g. optimizer.epochs=20; got {text!r}.")
        try:
            edit = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"--set takes KEY=VALUE with a YAML value, quoted if in doubt; got {text!r}: {reason}"
            ) from None
        for key in reversed(name.split(".")):
            edit = {key: edit}
        edits = merge(edits, edit)
    return edits


def read_selected(
    folder: str | None, methods: Sequence[Method], splits: Sequence[Split], *, preset: str
) -> dict[tuple[str, str], Settings]:
    """Read the settings that were selected for each method and split, where there are any.

    A file ``METHOD-SPLIT.yaml`` of the folder counts, or else what ``ldstyle search`` has left for the split's sources.
    """
    if folder is None:
        return {}
    root = Path(str(resources.files("ldstyle") / "configs" / "selected")) if folder == "paper" else Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder '{root}' of selected settings, METHOD-SPLIT.yaml each.")
    chosen, places = {}, []
    for name, split in [(method.base or method.name, split) for method in methods for split in splits]:
        direct = root / f"{name}-{split.name}.yaml"
        searched = search_folder(root, preset, split.sources) / f"{name}.yaml"
        places.append((direct, searched))
        for path in (path for path in (searched, direct) if path.is_file()):
            chosen[name, split.name] = read_settings(path)
    if not chosen:
        direct, searched = places[0]
        raise FileNotFoundError(
            f"'{root}' has no settings for this grid; expected e.g. '{direct.name}', or '{searched.relative_to(root)}' "
            "as `ldstyle search` writes it."
        )
    return chosen


def _executor(arguments: argparse.Namespace) -> Executor:
    if arguments.executor == "ray":
        from ldstyle.benchmark.execution.ray import RayExecutor

        wait, cpus, gpus = arguments.connect_seconds, arguments.cpus, arguments.gpus
        return RayExecutor(arguments.address, cpus=cpus, gpus=gpus, connect_seconds=wait)
    return LocalExecutor(workers=arguments.workers or default_workers(), threads=arguments.threads)


def _dry_run(cells: Sequence[Cell], results: Path, *, workers: int) -> int:
    known = {cell.cell: cell for cell in read_results(results)} if results.exists() else {}
    missing = [known.get(cell.slug) or _unknown(cell) for cell in cells]
    todo = [cell for cell in missing if cell.status != "done"]
    for cell in missing:
        sys.stdout.write(f"{cell.status:<8} {cell.cell}\n")
    seconds = estimate_seconds(todo, list(known.values()), workers=workers)
    estimate = "no estimate before a cell of the preset is done" if seconds is None else f"about {duration(seconds)}"
    sys.stdout.write(f"{len(todo)} of {len(cells)} cells to run with {workers} at a time: {estimate}\n")
    return 0


def _unknown(cell: Cell) -> CellResult:
    split = cell.split
    return CellResult(
        cell.slug, cell.method, cell.title, split.name, split.sources, split.target, cell.seed, cell.preset
    )


def _summarize(summary: Summary, results: Path) -> None:
    counts = {
        "done now": len(summary.done),
        "done before": len(summary.skipped),
        "failed": len(summary.failed),
        "run by another process": len(summary.elsewhere),
        "left to do": len(summary.left),
    }
    write = sys.stderr.write
    write(", ".join(f"{number} {what}" for what, number in counts.items() if number) + f"; results in '{results}'\n")
    for one in summary.damaged:
        write(f"left out: {one}\n")
    for name, error in summary.failed.items():
        write(f"failed: {name}: {error.splitlines()[0]} (see '{results / name / 'failure.json'}')\n")
    if summary.failed or summary.left:
        write("The same command runs what is missing.\n")
    else:
        write(f"Tables and figures of them: {shlex.join(['ldstyle', 'report', str(results)])}\n")


@contextmanager
def _display(results: Path, cells: Sequence[Cell]) -> Iterator[Report]:
    """Show a live table on a terminal, and a line per event elsewhere."""
    console = Console(stderr=True, markup=False, emoji=False)

    def view() -> RenderableType:
        return status_view(read_results(results))

    if not console.is_terminal:
        done = read_records(results)
        yield _line_per_event(len(cells), ended=sum(cell.slug in done for cell in cells))
        return
    with Live(console=console, get_renderable=view, refresh_per_second=1, transient=True):
        yield lambda event: None
    console.print(describe_counts(read_results(results)), highlight=False)


def _line_per_event(cells: int, *, ended: int) -> Callable[[Event], None]:
    def report(event: Event) -> None:
        nonlocal ended
        ended += event.kind in ("done", "failed")
        sys.stderr.write(f"[{ended}/{cells}] {event.kind:<7} {event.cell.slug}  {event.text}".rstrip() + "\n")
        sys.stderr.flush()

    return report


def _listed(texts: Sequence[str]) -> list[str]:
    """Let names be separated by spaces or commas."""
    return [part for text in texts for part in text.split(",") if part]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number
