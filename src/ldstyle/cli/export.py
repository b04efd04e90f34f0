"""``ldstyle export``: a model in the formats of others."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ldstyle.cli.options import add_shared, model_files
from ldstyle.cli.outputs import guarded
from ldstyle.deploy.export import NAMES, TARGETS, export_model
from ldstyle.runs.model_file import load_model


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_shared(parser, "model", "--force")
    parser.add_argument("--format", choices=TARGETS, required=True, help="format to write; 'timm' is a folder")
    names = ", ".join(NAMES.values())
    add_shared(parser, "--out", metavar="PATH", help=f"file or folder to write (default: {names})")


def run(arguments: argparse.Namespace) -> int:
    """Write a model for use without this project, checked against the original before it appears."""
    out = arguments.out or Path(NAMES[arguments.format])
    outputs = () if arguments.format == "timm" else (out,)  # a folder of timm must not exist
    with guarded(*outputs, inputs=model_files(arguments.model), force=arguments.force):
        export_model(load_model(arguments.model), arguments.format, out)
    sys.stdout.write(f"{arguments.format}: {out}\n")
    return 0
