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
    outputs = () if arguments.format == "timm" else (out,)  # a folder of timm must not exist
    with guarded(*outputs, inputs=model_files(arguments.model), force=arguments.force):
        export_model(load_model(arguments.model), arguments.format, out)
    sys.stdout.write(f"{arguments.format}: {out}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ldstyle export", description=main.__doc__)
    parser.add_argument("model", help="run folder, or its model.json or model.safetensors")
    parser.add_argument("--format", choices=TARGETS, required=True, help="what to write; 'timm' writes a folder")
    names = ", ".join(NAMES.values())
    parser.add_argument("--out", type=Path, help=f"file or folder to write (default: {names})")
    add_force(parser)
    return parser
