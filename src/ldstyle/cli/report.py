"""``ldstyle report``: tables, figures and one page of grids."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ldstyle.cli.options import add_shared
from ldstyle.cli.outputs import guarded

if TYPE_CHECKING:
    from ldstyle.report.model import Absent

EPILOG = """
examples:
  ldstyle report results --out report
  ldstyle report results --out report --data data
  ldstyle report results --out report --only differences label-ap
  ldstyle report results --update README.md
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="results folders of `ldstyle bench`")
    text = "folder of the report (default: %(default)s)"
    add_shared(parser, "--out", default=Path("report"), metavar="DIR", help=text)
    text = "make only these items, without the page (default: all)"
    parser.add_argument("--only", nargs="+", default=[], metavar="SLUG", help=text)
    text = (
        "Markdown pages whose parts between `<!-- ldstyle: SLUG -->` and `<!-- end -->` are made anew (default: none)"
    )
    parser.add_argument("--update", nargs="+", default=[], type=Path, metavar="PAGE", help=text)
    add_shared(parser, "--data", help="data folder (default: none, so no figures of images)")
    add_shared(parser, "--mapping", "--trust-record", "--force")


def run(arguments: argparse.Namespace) -> int:
    """Make tables, figures and one page of the results of grids.

    Tables are Markdown, LaTeX and CSV, figures PNG and SVG with their data; the page needs no network and no server.
    Cells that are not done are named, never averaged over. Figures of images need the data and the models of the
    runs; without them the rest is made. With --update the marked parts of pages are updated instead.
    Nothing outside the results folders is read without --data or --trust-record. A damaged file is named and left
    out, and the exit code is 1.
    """
    from ldstyle.benchmark.results.data import DataAccess
    from ldstyle.report.build import build_report
    from ldstyle.report.pages import update_pages
    from ldstyle.report.tables.formats import to_markdown

    console = Console(stderr=True, markup=False, emoji=False)
    out, force = arguments.out, arguments.force
    access = DataAccess(arguments.data, arguments.mapping, arguments.trust_record)
    if arguments.update and arguments.only:
        raise ValueError("--update and --only exclude each other: the marks of a page name its items.")
    with console.status("reading results") as status:

        def progress(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                sys.stderr.write(f"{text}\n")

        if arguments.update:
            pages = arguments.update
            files, absent, damaged = update_pages(arguments.results, pages, access=access, progress=progress)
            _warn(absent, damaged)
            sys.stdout.writelines(f"{path}\n" for path in files)
            return 1 if damaged else 0
        with guarded(out, inputs=arguments.results, force=force):
            report = build_report(arguments.results, out, only=arguments.only, access=access, progress=progress)
    _warn(report.absent, report.damaged)
    if report.page is None:
        sys.stdout.writelines(f"{path}\n" for path in report.files)
    else:
        for summary in report.summaries:
            sys.stdout.write(f"\n{to_markdown(summary)}")
        sys.stdout.write(f"\n{len(report.files)} files. Open {report.page.resolve().as_uri()}\n")
    return 1 if report.damaged else 0


def _warn(absent: Iterable[Absent], damaged: Iterable[str]) -> None:
    sys.stderr.writelines(f"not made: {item.slug}: {item.reason}\n" for item in absent)
    sys.stderr.writelines(f"left out: {line}\n" for line in damaged)
