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
    parser.add_argument("--format", choices=TARGETS, required=True, help="format to write; 'timm', 'hub': a folder")
    parser.add_argument("--license", metavar="ID", help="licence in the model card of 'hub', e.g. apache-2.0")
    parser.add_argument("--push", metavar="OWNER/NAME", help="upload the folder of 'hub' (default: no upload)")
    names = ", ".join(dict.fromkeys(NAMES.values()))
    add_shared(parser, "--out", metavar="PATH", help=f"file or folder to write (default: {names})")


def run(arguments: argparse.Namespace) -> int:
    """Write a model for use without this project, checked against the original before it appears."""
    out = arguments.out or Path(NAMES[arguments.format])
    outputs = () if arguments.format in ("timm", "hub") else (out,)  # a folder must not exist
    if arguments.push and arguments.format != "hub":
        raise ValueError(f"--push uploads a folder of --format hub; got --format {arguments.format}.")
    with guarded(*outputs, inputs=model_files(arguments.model), force=arguments.force):
        model = load_model(arguments.model)
        folder = Path(arguments.model) if Path(arguments.model).is_dir() else Path(arguments.model).parent
        export_model(model, arguments.format, out, run=folder, license_id=arguments.license)
    sys.stdout.write(f"{arguments.format}: {out}\n")
    if arguments.push:
        from ldstyle.deploy.hub import push_folder

        sys.stdout.write(f"uploaded: {push_folder(out, arguments.push)}\n")
    return 0
