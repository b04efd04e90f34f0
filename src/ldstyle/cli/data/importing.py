"""``ldstyle data import``: data sets of other libraries as custom data sets."""

from __future__ import annotations

import argparse
from pathlib import Path

from ldstyle.data.domains.scene_table import Progress


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``data import``."""
    add = command.add_argument
    add("--torchgeo", required=True, metavar="NAME", help="class in torchgeo.datasets, e.g. BigEarthNetV2")
    add("--data", type=Path, required=True, help="folder of the data set; nothing is downloaded")
    add("--out", type=Path, required=True, help="folder to write, new or of the same command")
    text = "domain of an image: a column of the data set's metadata table (e.g. country), season, or split"
    add("--domain-by", required=True, metavar="NAME", help=text)
    text = "splits of the data set (default: those of train, val and test that it has)"
    add("--splits", nargs="+", default=[], metavar="NAME", help=text)
    add("--bands", type=int, nargs="+", default=[], metavar="BAND", help="bands to write, from 1 (default: all)")
    text = "values that become 0 and 255 in 8-bit images (default: values are kept)"
    add("--range", type=float, nargs=2, metavar=("LOW", "HIGH"), help=text)
    text = "type of the values written: uint8, uint16, int16 or float32 (default: by the first image)"
    add("--dtype", metavar="TYPE", help=text)
    text = "further arguments of the data set, e.g. sensors=s2 (default: none)"
    add("--option", type=_option, nargs="+", default=[], metavar="KEY=VALUE", help=text)


def run(arguments: argparse.Namespace, progress: Progress) -> list[str]:
    """Import the data set and return the lines to print."""
    from ldstyle.data.torchgeo import ImportOptions, import_torchgeo

    options = ImportOptions(
        domain_by=arguments.domain_by,
        splits=tuple(arguments.splits),
        bands=tuple(arguments.bands),
        limits=None if arguments.range is None else (arguments.range[0], arguments.range[1]),
        dtype=arguments.dtype,
        arguments=tuple(arguments.option),
    )
    table, counts = import_torchgeo(
        arguments.torchgeo, arguments.data, arguments.out, options=options, progress=progress
    )
    lines = [f"{domain}: {number} images" for domain, number in sorted(counts.items())]
    return [*lines, f"{sum(counts.values())} images: {table}"]


def _option(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE; got {text!r}")
    return key, value
