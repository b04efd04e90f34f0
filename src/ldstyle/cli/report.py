"""``ldstyle report``: tables, figures and one page of grids."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ldstyle.cli.outputs import add_force, guarded

DESCRIPTION = """Make tables (Markdown, LaTeX, CSV), figures (PNG, SVG and their data) and one page that needs no
network and no server from results folders of `ldstyle bench`. What is not done is named, never averaged over. Figures
of images need the data and the models of the runs; without them the rest is made. Nothing outside the results folders
is read without --data or --trust-record. A damaged file is named and left out, and the exit code is 1."""
EXAMPLES = """
examples:
  ldstyle report results --out report
  ldstyle report results --out report --data data
  ldstyle report results --out report --only differences label-ap
"""


def main(argv: Sequence[str]) -> int:
    """Run ``ldstyle report`` and return its exit code."""
    arguments = _parser().parse_args(argv)
    from ldstyle.benchmark.results.data_access import DataAccess
    from ldstyle.report.build import build_report
    from ldstyle.report.tables.formats import to_markdown

    console = Console(stderr=True, markup=False, emoji=False)
    out, force = arguments.out, arguments.force
    with console.status("reading results") as status, guarded(out, inputs=arguments.results, force=force):

        def progress(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                sys.stderr.write(f"{text}\n")

        access = DataAccess(arguments.data, arguments.mapping, arguments.trust_record)
        report = build_report(arguments.results, out, only=arguments.only, access=access, progress=progress)
    for item in report.absent:
        sys.stderr.write(f"not made: {item.slug}: {item.reason}\n")
    for line in report.damaged:
        sys.stderr.write(f"left out: {line}\n")
    if report.page is None:
        sys.stdout.writelines(f"{path}\n" for path in report.files)
    else:
        for summary in report.summaries:
            sys.stdout.write(f"\n{to_markdown(summary)}")
        sys.stdout.write(f"\n{len(report.files)} files. Open {report.page.resolve().as_uri()}\n")
    return 1 if report.damaged else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ldstyle report",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("results", nargs="+", type=Path, metavar="RESULTS", help="results folders of `ldstyle bench`")
    add("--out", type=Path, default=Path("report"), metavar="DIR", help="folder of the report (default: %(default)s)")
    add_force(parser)
    add("--only", nargs="+", default=[], metavar="SLUG", help="make these items again, without the page")
    add("--data", type=Path, metavar="DIR", help="data folder, for the figures of images")
    add("--mapping", type=Path, metavar="FILE", help="label map, a YAML file, if the runs used one")
    trust = "read the data folder and label map that the records name; only for results of your own"
    add("--trust-record", action="store_true", help=trust)
    return parser
