"""The options that all grids of ``ldstyle bench`` share, and how a grid is run with them."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path

import yaml
from rich.console import Console, RenderableType
from rich.live import Live

from ldstyle.benchmark.execution.local import LocalExecutor, default_workers
from ldstyle.benchmark.execution.runner import (
    Event,
    Executor,
    Report,
    Summary,
    check_grid_data,
    check_settings,
    run_cells,
)
from ldstyle.benchmark.grid.cells import Cell, Split, make_cells, make_splits, take_shard
from ldstyle.benchmark.grid.commands import seeds_text
from ldstyle.benchmark.grid.imagery import (
    SYNTHETIC_DATA,
    DataLocation,
    Domains,
    choose_grid_domains,
    find_location,
    named_path,
    prepare_location,
    search_folder,
)
from ldstyle.benchmark.grid.methods import Method
from ldstyle.benchmark.grid.presets import PRESETS, Preset, load_preset
from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.records import planned_result, read_records, read_results, write_plan
from ldstyle.benchmark.results.status import describe_counts, duration, estimate_seconds, status_view
from ldstyle.cli import INTERRUPTED
from ldstyle.cli.options import LABELS, SYNTHETIC, add_shared, positive, split_names
from ldstyle.runs.processes import check_devices
from ldstyle.runs.settings import Settings, config_from, merge, nested, read_settings, split_ending


def add_grid_options(parser: argparse.ArgumentParser, *, splits: str = "all", seeds: str = "5") -> None:
    """Add the options of a grid: data, splits, seeds, preset, results, and who runs it."""
    add = parser.add_argument
    add_shared(parser, "--data", type=str, help=SYNTHETIC)
    text = "domains to read (default: UCM, AID and DFC15 as downloaded, or else all)"
    add_shared(parser, "--domains", help=text)
    add_shared(parser, *LABELS, "--results", "--cache", "--set", "--dry-run")
    text = f"s1, s2, ..., targets, or all (default: {splits})"
    add("--splits", nargs="+", default=[splits], metavar="SPLIT", help=text)
    text = "number of seeds, or a list such as 0,2,4 (default: %(default)s)"
    add("--seeds", type=parse_seeds, default=seeds, metavar="N", help=text)
    add("--preset", choices=tuple(PRESETS), default="paper", help="size of a run (default: %(default)s)")
    text = "folder of METHOD-SPLIT.yaml or of searches; 'paper' for Table 3 (default: the methods' own settings)"
    add("--selected", metavar="DIR", help=text)
    add_shared(parser, "--workers", default=None, help="processes (default: one per GPU, or one per core)")
    add("--threads", type=positive, metavar="N", help="threads per process (default: the cores divided by --workers)")
    add("--executor", choices=("local", "ray"), default="local", help="executor of the cells (default: %(default)s)")
    add("--address", default="auto", help="address of the Ray cluster (default: %(default)s)")
    text = "seconds to wait for the Ray cluster (default: %(default)s)"
    add("--connect-seconds", type=float, default=15.0, metavar="S", help=text)
    text = "cores per cell on the Ray cluster (default: %(default)s)"
    add("--cpus", type=positive, default=1, metavar="N", help=text)
    add("--gpus", type=float, metavar="N", help="GPUs per cell on the Ray cluster (default: 1 if it has any)")
    add("--shard", type=parse_shard, default=(1, 1), metavar="I/N", help="run the I-th of N parts (default: 1/1)")


def data_location(arguments: argparse.Namespace, preset: Preset) -> DataLocation:
    """Return the data that the options of a command name."""
    return find_location(
        arguments.data,
        preset=preset,
        cache_dir=arguments.cache,
        sea=arguments.sea,
        mapping=arguments.mapping,
        labels=arguments.labels,
        ignore=arguments.ignore,
    )


def run_grid(arguments: argparse.Namespace, methods: Sequence[Method]) -> int:
    """Run methods on a grid with the given options; return 0, 1 if a cell failed, or 130 if it was stopped."""
    preset = load_preset(arguments.preset)
    location = data_location(arguments, preset)
    domains = choose_grid_domains(arguments.data, location, arguments.domains)
    splits = make_splits(domains.names, split_names(arguments.splits))
    cells = make_cells(
        methods,
        splits,
        arguments.seeds,
        preset=preset,
        data=location.settings(),
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
    prepare_location(location, workers=arguments.workers or default_workers())
    check_grid_data(mine, results, location)
    write_plan(results, cells, _kept_options(arguments))
    try:
        with _display(results, mine) as report:
            summary = run_cells(mine, results=results, location=location, executor=_executor(arguments), report=report)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped at once. The same command resumes from the last checkpoints.\n")
        return INTERRUPTED
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


def _kept_options(arguments: argparse.Namespace) -> dict[str, str | list[str]]:
    """Return the options that determine the grid, with absolute paths."""
    given, data = vars(arguments), arguments.data
    path = None if data == SYNTHETIC_DATA else named_path(data)
    paths = {name: given[name] for name in ("mapping", "selected") if given[name] not in (None, "paper")}
    options: dict[str, str | list[str] | None] = {
        "data": data if path is None else str(path),
        "domains": arguments.domains,
        "labels": arguments.labels,
        "ignore": arguments.ignore,
        "sea": arguments.sea if arguments.sea != "drop" else None,
        "splits": split_names(arguments.splits),
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
        edits = merge(edits, nested({name: edit}))
    return edits


def read_selected(
    folder: str | None, methods: Sequence[Method], splits: Sequence[Split], *, preset: str
) -> dict[tuple[str, str], Settings]:
    """Read the settings that were selected for each method and split, where there are any.

    A file ``METHOD-SPLIT.yaml`` of the folder counts, or else what ``ldstyle search`` has left for the split's sources.
    A method with additions, such as ``ld-efdmix+swad``, has those of the method without them unless it has its own.
    """
    if folder is None:
        return {}
    root = Path(str(resources.files("ldstyle") / "configs" / "selected")) if folder == "paper" else Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder '{root}' of selected settings, METHOD-SPLIT.yaml each.")
    chosen: dict[tuple[str, str], Settings] = {}
    expected: list[tuple[Path, Path]] = []
    for named, split in [(method.base or method.name, split) for method in methods for split in splits]:
        for name in _without_additions(named):
            direct = root / f"{name}-{split.name}.yaml"
            searched = search_folder(root, preset, split.sources) / f"{name}.yaml"
            expected.append((direct, searched))
            if found := next((path for path in (direct, searched) if path.is_file()), None):
                chosen[named, split.name] = read_settings(found)
                break
    if not chosen:
        direct, searched = expected[0]
        raise FileNotFoundError(
            f"'{root}' has no settings for this grid; expected e.g. '{direct.name}', or '{searched.relative_to(root)}' "
            "as `ldstyle search` writes it."
        )
    return chosen


def _without_additions(name: str) -> Iterator[str]:
    """Yield a method's name, then without its last addition, and so on."""
    ending: str | None = ""
    while ending is not None:
        yield name
        name, ending = split_ending(name)


def _executor(arguments: argparse.Namespace) -> Executor:
    if arguments.executor == "ray":
        from ldstyle.benchmark.execution.ray import RayExecutor

        wait, cpus, gpus = arguments.connect_seconds, arguments.cpus, arguments.gpus
        return RayExecutor(arguments.address, cpus=cpus, gpus=gpus, connect_seconds=wait)
    return LocalExecutor(workers=arguments.workers or default_workers(), threads=arguments.threads)


def _dry_run(cells: Sequence[Cell], results: Path, *, workers: int) -> int:
    known: dict[str, CellResult] = {}
    with suppress(FileNotFoundError):  # the folder may be new, or hold no grid yet
        known = {cell.cell: cell for cell in read_results(results)}
    wanted = [known.get(cell.slug) or planned_result(cell) for cell in cells]
    todo = [cell for cell in wanted if cell.status != "done"]
    for cell in wanted:
        sys.stdout.write(f"{cell.status:<8} {cell.cell}\n")
    seconds = estimate_seconds(todo, list(known.values()), workers=workers)
    estimate = "no estimate before a cell of the preset is done" if seconds is None else f"about {duration(seconds)}"
    sys.stdout.write(f"{len(todo)} of {len(cells)} cells to run with {workers} at a time: {estimate}\n")
    return 0


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
        write("The same command runs the missing cells.\n")
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
