"""``ldstyle evaluate``: score a finished run on a domain it never saw."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ldstyle.cli.options import TRAINED, add_shared


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--domain", required=True, metavar="NAME", help="domain to score on")
    add_shared(parser, "--data", help=TRAINED)
    add_shared(parser, "--quiet")


def run(arguments: argparse.Namespace) -> int:
    """Score a finished run on a domain."""
    from ldstyle.evaluation.evaluate import evaluate
    from ldstyle.progress import open_display

    with open_display(quiet=arguments.quiet) as display:
        result = evaluate(arguments.run, domain=arguments.domain, root=arguments.data, progress=display.work)
    if not arguments.quiet:
        sys.stdout.write(_table(result))
    return 0


def _table(result: dict[str, Any]) -> str:
    """Return a line per part: the means, then the AP of each label."""
    scores = {part: table for part, table in result["scores"].items() if table is not None}
    names = ("mAP", "CF1", "OF1", *result["vocabulary"])
    lines = [f"{result['domain']:<10} {'images':>6} " + " ".join(f"{name:>8}" for name in names)]
    for part, table in scores.items():
        values = [table["map"], table["cf1"], table["of1"], *table["ap"].values()]
        shown = " ".join(f"{'-' if value is None else f'{100 * value:.1f}':>{max(8, len(name))}}"
                         for name, value in zip(names, values, strict=True))  # fmt: skip
        lines.append(f"{part:<10} {table['n']:>6} {shown}")
    return "\n".join(lines) + "\n"
