"""``ldstyle export``: a model in the formats of others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ldstyle.cli.model_options import model_files
from ldstyle.cli.outputs import add_force, guarded
from ldstyle.deploy.export import NAMES, TARGETS, export_model
from ldstyle.runs.model_file import load_model


def main(argv: Sequence[str]) -> int:
    """Write a model for use without this project, checked against the original before it appears."""
    arguments = _parser().parse_args(argv)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ldstyle export", description=main.__doc__)
    parser.add_argument("model", help="run folder, or its model.json or model.safetensors")
    parser.add_argument(
        "--format", choices=TARGETS, required=True, help="what to write; 'timm' and 'hub' write a folder"
    )
    names = ", ".join(NAMES.values())
    parser.add_argument("--out", type=Path, help=f"file or folder to write (default: {names})")
    parser.add_argument("--license", metavar="ID", help="licence in the model card of 'hub', e.g. apache-2.0")
    parser.add_argument("--push", metavar="OWNER/NAME", help="upload the folder of 'hub' by the hub's own client")
    add_force(parser)
    return parser
