"""``ldstyle data``: check, describe, cache, generate, show, unpack, tile and import data sets."""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ldstyle.cli import INTERRUPTED
from ldstyle.cli.data import importing, tiling
from ldstyle.cli.options import IMAGES, LABELS, add_shared, make_table, positive, subcommands
from ldstyle.cli.outputs import guarded
from ldstyle.data.domains.scene_table import Progress, SceneTable
from ldstyle.files import replace_text

if TYPE_CHECKING:
    from ldstyle.data.domains.checks import Inspection
    from ldstyle.data.domains.csv import LabelColumns

EPILOG = r"""
A data folder holds any of

  UCM       UCMerced_LandUse/Images/<class>/<class>NN.tif and LandUse_Multilabeled.txt
  AID       images_tr/<Class>/, images_test/<Class>/ and multilabel.csv
  DFC15     images_tr/, images_test/ and multilabel.csv
            each in a folder of any name; they are recognised by this layout and called ucm, aid, dfc15
  <name>/   a custom domain: labels.csv with the columns path and one per label
  *.csv     several custom domains: columns path, domain and one per label

Labels are 1, 0, or blank where unknown; custom CSV files may have the columns mask, scene and gsd. A label
map (--mapping, YAML) brings the label names of each domain to one vocabulary. --domains picks domains;
--labels or --ignore choose the label columns of custom CSV files.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the commands and their options."""
    add, reading = subcommands(parser), ("--data", "--domains", *LABELS)
    add_shared(add(check), *reading, "--skip-bad", *IMAGES)
    command = add(stats)
    add_shared(command, *reading, "--force")
    text = "CSV file to write, '-' for standard output (default: print a table)"
    add_shared(command, "--out", metavar="FILE", help=text)
    command = add(prepare)
    add_shared(command, *reading, "--cache", *IMAGES)
    add_shared(command, "--size", default=224)
    command = add(synth)
    add_shared(command, "--out", required=True, metavar="DIR", help="folder to write to")
    text = "scenes per domain (default: %(default)s)"
    command.add_argument("--per-domain", type=positive, default=600, metavar="N", help=text)
    add_shared(command, "--size", default=128)
    add_shared(command, "--seed")
    add_shared(command, "--workers", default=2)
    command = add(show)
    add_shared(command, *reading, "--force", "--seed", *IMAGES)
    text = "PNG file to write (default: %(default)s)"
    add_shared(command, "--out", default=Path("class_samples.png"), metavar="FILE", help=text)
    text = "images per label and domain (default: %(default)s)"
    command.add_argument("--per-cell", type=positive, default=3, metavar="N", help=text)
    add_shared(command, "--size", default=128)
    tiling.add_options(add(tile))
    importing.add_options(add(import_))
    command = add(unpack)
    command.add_argument("archive", type=Path, help="zip or tar file")
    add_shared(command, "--out", required=True, metavar="DIR", help="folder to unpack into, e.g. data/ucm")


def run(arguments: argparse.Namespace) -> int:
    """Check, describe, cache, generate, show, unpack, tile and import data sets."""
    return int(arguments.subcommand(arguments))


def check(arguments: argparse.Namespace) -> int:
    """Check layout, counts and files; list labels by domain, problems and differences from Table 1."""
    from ldstyle.data.domains.checks import inspect_domain, unknown_labels
    from ldstyle.data.domains.csv_text import read_header
    from ldstyle.data.domains.discovery import choose_domains, find_domains, shared_label_map, unlabelled_downloads

    root, columns = _root(arguments), _columns(arguments)
    sources = choose_domains(find_domains(root, arguments.domains, columns=columns), arguments.domains)
    columns.require(read_header(source.path) for source in sources.values() if source.archive is None)
    label_map = shared_label_map(sources, mapping=arguments.mapping)
    with _bars() as progress:
        found = [
            inspect_domain(
                name,
                source,
                label_map=label_map,
                sea=arguments.sea,
                columns=columns,
                bands=tuple(arguments.bands),
                value_range=tuple(arguments.range),
                progress=progress,
            )
            for name, source in sources.items()
        ]
    header = ("domain", "rows", "readable", "most frequent size", "other sizes", "problems")
    rows = []
    for one in found:
        size, number = next(iter(one.sizes.most_common(1)), ("", 0))
        others = one.readable - number
        rows.append([one.domain, str(one.rows), str(one.readable), size, str(others), str(len(one.problems))])
    console = Console(markup=False, emoji=False)
    console.print(make_table(header, rows))
    labels = [[label, *(_count(one, label) for one in found)] for label in label_map.vocabulary]
    console.print(make_table(("label: images with it", *sources), labels))
    notes = [note for one in found for note in one.notes] + unknown_labels(found)
    notes += [] if arguments.domains else unlabelled_downloads(root, sources)
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
    """Print Table 1 for the domains found, next to the paper's."""
    from ldstyle.data.domains.table1 import tabulate

    tables = _read(arguments, require_images=False)
    header, rows = tabulate(tables, marked=arguments.out is None)
    if arguments.out is None:
        Console(markup=False, emoji=False).print(make_table(header, rows))
    elif arguments.out == Path("-"):
        csv.writer(sys.stdout).writerows([header, *rows])
    else:
        text = io.StringIO(newline="")
        csv.writer(text).writerows([header, *rows])
        with guarded(arguments.out, force=arguments.force):
            replace_text(arguments.out, text.getvalue())
    return 0


def prepare(arguments: argparse.Namespace) -> int:
    """Decode and resize every image once into the cache that training reads."""
    from ldstyle.data.loading.bands import find_format
    from ldstyle.data.loading.cache import open_cache
    from ldstyle.data.loading.image_format import parse_range

    bands, value_range = tuple(arguments.bands), tuple(arguments.range)
    if value_range and parse_range(value_range)[1]:
        raise ValueError(
            f"--range must be numbers to prepare images; got {' '.join(value_range)}. Percentiles depend on the split "
            "of a run, which prepares its images itself."
        )
    tables = _read(arguments)
    rows = []
    with _bars() as progress:
        found = find_format(bands, value_range, tables, [range(len(table)) for table in tables], progress=progress)
        for table in tables:
            cache = open_cache(
                table, size=arguments.size, cache_dir=arguments.cache, progress=progress, image_format=found
            )
            rows.append([table.domain, str(len(table)), f"{cache.images.nbytes / 1e6:.1f} MB", cache.digest[:12]])
    Console(markup=False, emoji=False).print(
        make_table(("domain", "images", "size", "digest"), rows, title=f"caches in {arguments.cache}")
    )
    return 0


def synth(arguments: argparse.Namespace) -> int:
    """Generate scenes of the built-in domains, with labels and masks, as a data folder."""
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
    sys.stdout.write(f"synthetic scenes: {out}\n")
    return 0


def tile(arguments: argparse.Namespace) -> int:
    """Cut whole scenes and their labels into tiles, masks and a table; an interrupted run resumes."""
    return _resumable(tiling.run, arguments)


def import_(arguments: argparse.Namespace) -> int:
    """Convert a multi-label data set of torchgeo to images and a table; an interrupted run resumes."""
    return _resumable(importing.run, arguments)


def _resumable(run: Callable[[argparse.Namespace, Progress], list[str]], arguments: argparse.Namespace) -> int:
    try:
        with _bars() as progress:
            lines = run(arguments, progress)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command resumes\n")
        return INTERRUPTED
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Draw how each label looks in each domain."""
    from ldstyle.data.domains.samples import class_samples, save_figure
    from ldstyle.data.loading.image_format import settings_shown

    tables = _read(arguments, require_images=bool(arguments.domains))
    found = [table.select([i for i in range(len(table)) if table.path(i).is_file()]) for table in tables]
    shown = [table for table in found if len(table)]
    for name in [table.domain for table in found if not len(table)]:
        sys.stderr.write(f"note: {name} is left out, its images were not found\n")
    if not shown:
        raise FileNotFoundError(f"No images found in '{_root(arguments)}'. See `ldstyle data --help`.")
    bands = settings_shown(tuple(arguments.bands), tuple(arguments.range))
    figure = class_samples(shown, per_cell=arguments.per_cell, size=arguments.size, seed=arguments.seed, shown=bands)
    with guarded(arguments.out, force=arguments.force):
        save_figure(figure, arguments.out)
    sys.stdout.write(f"class samples: {arguments.out}\n")
    return 0


def unpack(arguments: argparse.Namespace) -> int:
    """Unpack an official download into a folder, refusing members that would leave it."""
    from ldstyle.data.domains.unpack import unpack as unpack_archive

    for path in unpack_archive(arguments.archive, arguments.out):
        sys.stdout.write(f"{path}\n")
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


def _columns(arguments: argparse.Namespace) -> LabelColumns:
    from ldstyle.data.domains.csv import LabelColumns

    return LabelColumns(tuple(arguments.labels), tuple(arguments.ignore))


def _root(arguments: argparse.Namespace) -> Path:
    root: Path | None = arguments.data
    if root is None and not os.environ.get("LDSTYLE_DATA"):
        raise ValueError("A data folder is needed: set --data DIR or $LDSTYLE_DATA. See `ldstyle data --help`.")
    return root or Path(os.environ["LDSTYLE_DATA"])


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
