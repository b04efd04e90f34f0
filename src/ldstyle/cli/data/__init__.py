"""``ldstyle data``: check, describe, cache, draw, show, unpack and cut data sets."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from ldstyle.cli.data import importing, tiling
from ldstyle.cli.outputs import add_force, guarded
from ldstyle.data.domains.scene_table import Progress, SceneTable

if TYPE_CHECKING:
    from ldstyle.data.domains.checks import Inspection
    from ldstyle.data.domains.csv import LabelColumns

LAYOUTS = r"""
A data folder (--root, by default $LDSTYLE_DATA) holds any of

  ucm/      UCMerced_LandUse/Images/<class>/<class>NN.tif and LandUse_Multilabeled.txt
  aid/      images_tr/<Class>/, images_test/<Class>/ and multilabel.csv
  dfc15/    images_tr/, images_test/ and multilabel.csv
  <name>/   a domain of your own: labels.csv with the columns path and one per label
  *.csv     several domains of your own: columns path, domain and one per label

Labels are 1, 0, or blank where unknown; own tables may have the columns mask and scene. A label map
(--mapping, YAML) brings the label names of each domain to one vocabulary. --domains picks domains;
--labels or --ignore says which columns of own tables are labels.
"""


def main(argv: Sequence[str]) -> int:
    """Run one ``ldstyle data`` command and return its exit code."""
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def check(arguments: argparse.Namespace) -> int:
    """Check layout, counts and files; list labels by domain, what is wrong and what differs from Table 1."""
    from ldstyle.data.domains.checks import inspect_domain, unknown_labels
    from ldstyle.data.domains.csv_text import read_header
    from ldstyle.data.domains.discovery import choose_domains, find_domains, shared_label_map

    root, columns = _root(arguments), _columns(arguments)
    sources = choose_domains(find_domains(root, arguments.domains, columns=columns), arguments.domains)
    columns.require(read_header(source.path) for source in sources.values() if source.archive is None)
    label_map = shared_label_map(sources, mapping=arguments.mapping)
    with _bars() as progress:
        found = [
            inspect_domain(name, source, label_map=label_map, sea=arguments.sea, columns=columns, progress=progress)
            for name, source in sources.items()
        ]
    header = ("domain", "rows", "readable", "most frequent size", "other sizes", "problems")
    rows = []
    for one in found:
        size, number = next(iter(one.sizes.most_common(1)), ("", 0))
        others = one.readable - number
        rows.append([one.domain, str(one.rows), str(one.readable), size, str(others), str(len(one.problems))])
    console = Console(markup=False)
    console.print(_table(header, rows))
    labels = [[label, *(_count(one, label) for one in found)] for label in label_map.vocabulary]
    console.print(_table(("label: images with it", *sources), labels))
    notes = [note for one in found for note in one.notes] + unknown_labels(found)
    problems = [problem for one in found for problem in one.problems]
    for kind, sentences in (("note", notes), ("warning" if arguments.skip_bad else "error", problems)):
        for sentence in sentences:
            console.print(f"{kind}: {sentence}", highlight=False, soft_wrap=True)
    return 1 if problems and not arguments.skip_bad else 0


def _count(inspection: Inspection, label: str) -> str:
    """Return in how many images of a domain a label is present, of those in which it is known."""
    if not inspection.counts:
        return "-"
    present, known = inspection.counts[label]
    return f"{present} of {known}" if known else "unknown"


def stats(arguments: argparse.Namespace) -> int:
    """Print Table 1 for what is there, beside the paper's."""
    from ldstyle.data.domains.table1 import tabulate

    tables = _read(arguments, require_images=False)
    header, rows = tabulate(tables, marked=arguments.csv is None)
    if arguments.csv is None:
        Console(markup=False).print(_table(header, rows))
    elif arguments.csv == Path("-"):
        csv.writer(sys.stdout).writerows([header, *rows])
    else:
        partial = arguments.csv.with_name(f"{arguments.csv.name}.tmp")
        with guarded(arguments.csv, force=arguments.force):
            with partial.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([header, *rows])
            partial.replace(arguments.csv)
    return 0


def prepare(arguments: argparse.Namespace) -> int:
    """Decode and resize every image once into the cache that training reads."""
    from ldstyle.data.loading.cache import open_cache

    tables = _read(arguments)
    rows = []
    with _bars() as progress:
        for table in tables:
            cache = open_cache(table, size=arguments.size, cache_dir=arguments.cache, progress=progress)
            rows.append([table.domain, str(len(table)), f"{cache.images.nbytes / 1e6:.1f} MB", cache.digest[:12]])
    Console(markup=False).print(
        _table(("domain", "images", "size", "digest"), rows, title=f"caches in {arguments.cache}")
    )
    return 0


def synth(arguments: argparse.Namespace) -> int:
    """Draw scenes of the built-in domains, with labels and masks, as a data folder."""
    from ldstyle.data.synthetic import write_scenes

    with _bars() as progress:
        out = write_scenes(
            arguments.out,
            per_domain=arguments.per_domain,
            size=arguments.size,
            seed=arguments.seed,
            workers=arguments.workers,
            progress=progress,
        )
    Console(markup=False).print(f"drawn scenes: {out}", highlight=False, soft_wrap=True)
    return 0


def tile(arguments: argparse.Namespace) -> int:
    """Cut whole scenes and their labels into tiles, masks and a table; an interrupted run resumes."""
    console = Console(markup=False)
    return tiling.run(arguments, _bars, lambda text: console.print(text, highlight=False, soft_wrap=True))


def import_(arguments: argparse.Namespace) -> int:
    """Turn a multi-label data set of torchgeo into images and a table; an interrupted run resumes."""
    console = Console(markup=False)
    return importing.run(arguments, _bars, lambda text: console.print(text, highlight=False, soft_wrap=True))


def show(arguments: argparse.Namespace) -> int:
    """Draw how each label looks in each domain."""
    from ldstyle.data.domains.samples import class_samples, save_figure

    tables = _read(arguments, require_images=bool(arguments.domains))
    found = [table.select([i for i in range(len(table)) if table.path(i).is_file()]) for table in tables]
    shown = [table for table in found if len(table)]
    for name in [table.domain for table in found if not len(table)]:
        Console(stderr=True, markup=False).print(
            f"note: {name} is left out, its images are not there", highlight=False, soft_wrap=True
        )
    if not shown:
        raise FileNotFoundError(f"No images found in '{_root(arguments)}'. See `ldstyle data --help`.")
    figure = class_samples(shown, per_cell=arguments.per_cell, size=arguments.size, seed=arguments.seed)
    with guarded(arguments.out, force=arguments.force):
        save_figure(figure, arguments.out)
    Console(markup=False).print(f"class samples: {arguments.out}", highlight=False, soft_wrap=True)
    return 0


def unpack(arguments: argparse.Namespace) -> int:
    """Unpack an official download into a folder, refusing members that would leave it."""
    from ldstyle.data.domains.unpack import unpack as unpack_archive

    for path in unpack_archive(arguments.archive, _root(arguments)):
        Console(markup=False).print(str(path), highlight=False, soft_wrap=True)
    return 0


def _read(arguments: argparse.Namespace, *, require_images: bool = True) -> tuple[SceneTable, ...]:
    from ldstyle.data.domains.discovery import read_domains

    return read_domains(
        _root(arguments),
        arguments.domains,
        sea=arguments.sea,
        mapping=arguments.mapping,
        columns=_columns(arguments),
        require_images=require_images,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ldstyle data",
        description="Check, describe, cache, draw, show, unpack and cut data sets.",
        epilog=LAYOUTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(run: Callable[[argparse.Namespace], int], *, reads: bool = True) -> argparse.ArgumentParser:
        summary = (run.__doc__ or "").splitlines()[0]
        command = commands.add_parser(run.__name__.rstrip("_"), help=summary, description=summary)
        command.set_defaults(run=run)
        if reads:
            _add_reading(command)
        return command

    add(check).add_argument("--skip-bad", action="store_true", help="list problems as warnings instead of failing")
    command = add(stats)
    command.add_argument("--csv", type=Path, help="write the table as CSV to this file, '-' for standard output")
    add_force(command)
    command = add(prepare)
    command.add_argument("--size", type=_positive, default=224, help="pixels per image side (default: %(default)s)")
    command.add_argument("--cache", type=Path, default=_default_cache(), help="folder of caches (default: %(default)s)")
    command = add(synth, reads=False)
    command.add_argument("--out", type=Path, required=True, help="folder to write to")
    command.add_argument("--per-domain", type=_positive, default=600, help="scenes per domain (default: %(default)s)")
    command.add_argument("--size", type=_positive, default=128, help="pixels per scene side (default: %(default)s)")
    command.add_argument("--seed", type=int, default=0, help="what the scenes are drawn from (default: %(default)s)")
    command.add_argument("--workers", type=_positive, default=2, help="processes (default: %(default)s)")
    command = add(show)
    command.add_argument("--out", type=Path, default=Path("class_samples.png"), help="PNG (default: %(default)s)")
    add_force(command)
    command.add_argument(
        "--per-cell", type=_positive, default=3, help="images per label and domain (default: %(default)s)"
    )
    command.add_argument("--size", type=_positive, default=128, help="pixels per image side (default: %(default)s)")
    command.add_argument("--seed", type=int, default=0, help="which images are shown (default: %(default)s)")
    tiling.add_options(add(tile, reads=False))
    importing.add_options(add(import_, reads=False))
    command = add(unpack, reads=False)
    command.add_argument("archive", type=Path, help="zip or tar file")
    command.add_argument("--root", type=Path, required=True, help="folder to unpack into, e.g. data/ucm")
    return parser


def _add_reading(command: argparse.ArgumentParser) -> None:
    command.add_argument("--root", type=Path, help="data folder (default: $LDSTYLE_DATA)")
    command.add_argument("--domains", nargs="+", metavar="NAME", help="domains to read (default: all)")
    command.add_argument("--mapping", type=Path, help="label map, a YAML file")
    command.add_argument(
        "--labels",
        nargs="+",
        default=[],
        metavar="NAME",
        help="label columns of custom tables (default: all but path, domain, mask, scene)",
    )
    command.add_argument(
        "--ignore", nargs="+", default=[], metavar="NAME", help="columns of custom tables that are no labels"
    )
    command.add_argument("--sea", choices=("drop", "water+sea"), default="drop", help="the label sea of UCM and AID")


def _columns(arguments: argparse.Namespace) -> LabelColumns:
    from ldstyle.data.domains.csv import LabelColumns

    return LabelColumns(tuple(arguments.labels), tuple(arguments.ignore))


def _root(arguments: argparse.Namespace) -> Path:
    root: Path | None = arguments.root
    if root is None and not os.environ.get("LDSTYLE_DATA"):
        raise ValueError("A data folder is needed: set --root DIR or $LDSTYLE_DATA. See `ldstyle data --help`.")
    return root or Path(os.environ["LDSTYLE_DATA"])


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LDSTYLE_CACHE") or Path(base, "ldstyle"))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> Table:
    table = Table(
        title=None if title is None else Text(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for i, name in enumerate(header):
        table.add_column(Text(name), justify="right" if i else "left", no_wrap=not i)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


@contextmanager
def _bars() -> Iterator[Progress]:
    """Show a progress bar per kind of work on standard error."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True, markup=False), transient=True) as bars:
        tasks = {}

        def progress(done: int, total: int, what: str) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield progress
