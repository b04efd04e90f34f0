"""``ldstyle data tile``: whole scenes and their labels as a data set."""

from __future__ import annotations

import argparse
from pathlib import Path

from ldstyle.data.domains.scene_table import Progress


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``data tile``."""
    command.add_argument("scenes", type=Path, nargs="+", metavar="SCENE", help="GeoTIFF, PNG, JPEG or JPEG 2000 file")
    command.add_argument(
        "--labels",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="polygons (.geojson, .json, .gpkg), or a raster of classes for each scene",
    )
    command.add_argument("--out", type=Path, required=True, help="folder to write, new or of the same command")
    command.add_argument("--size", type=int, default=256, help="side of a tile in pixels (default: %(default)s)")
    command.add_argument("--stride", type=int, help="pixels from a tile to the next (default: the size)")
    command.add_argument(
        "--block",
        type=int,
        default=8,
        help="tiles along the side of a spatial block, which no split separates (default: %(default)s)",
    )
    command.add_argument(
        "--gap", type=int, help="width in pixels of the strip without tiles between blocks (default: the size)"
    )
    command.add_argument(
        "--domain",
        nargs="+",
        default=[],
        metavar="NAME",
        help="domain of all scenes, or of each (default: the folder of --out)",
    )
    command.add_argument(
        "--label-column",
        default="label",
        metavar="NAME",
        help="attribute that holds the class of a polygon (default: label)",
    )
    command.add_argument(
        "--classes",
        type=_class,
        nargs="+",
        default=[],
        metavar="VALUE=LABEL",
        help="label of each class; other classes are omitted (default: the polygons' classes; required for rasters)",
    )
    command.add_argument(
        "--one-label", metavar="NAME", help="label of all polygons, whatever their attributes (default: by attribute)"
    )
    command.add_argument(
        "--labels-crs",
        metavar="CRS",
        help="reference system of the polygons, e.g. EPSG:4326 (default: that of the file)",
    )
    command.add_argument("--layer", metavar="NAME", help="layer of the polygons (default: the first)")
    command.add_argument(
        "--present",
        type=float,
        default=0.01,
        metavar="FRACTION",
        help="a label that covers at least this fraction of a tile is present (default: %(default)s)",
    )
    command.add_argument(
        "--absent",
        type=float,
        default=0.001,
        metavar="FRACTION",
        help="a label that covers at most this fraction is absent; between the two it is unknown (default: "
        "%(default)s)",
    )
    command.add_argument(
        "--min-valid", type=float, default=0.5, help="fraction of a tile that must have data (default: %(default)s)"
    )
    command.add_argument(
        "--workers", type=int, default=1, help="processes, each with about 180 MB (default: %(default)s)"
    )
    command.add_argument(
        "--allow-virtual",
        action="store_true",
        help="open any format of GDAL; virtual rasters such as VRT read every file and address that they contain",
    )


def run(arguments: argparse.Namespace, progress: Progress) -> list[str]:
    """Cut the scenes and return the lines to print."""
    from ldstyle.data.scenes.cutting import BlockGrid, TileRules
    from ldstyle.data.scenes.labels import LabelSource
    from ldstyle.data.scenes.tiling import tile_scenes

    if arguments.workers < 1:
        raise ValueError(f"--workers must be at least 1; got {arguments.workers}.")
    labels = LabelSource(
        tuple(arguments.labels),
        column=arguments.label_column,
        classes=dict(arguments.classes),
        one_label=arguments.one_label,
        crs=arguments.labels_crs,
        layer=arguments.layer,
    )
    grid = BlockGrid(
        size=arguments.size,
        stride=arguments.size if arguments.stride is None else arguments.stride,
        block=arguments.block,
        gap=arguments.size if arguments.gap is None else arguments.gap,
    )
    rules = TileRules(present=arguments.present, absent=arguments.absent, min_valid=arguments.min_valid)
    made = tile_scenes(
        arguments.scenes,
        arguments.out,
        labels=labels,
        grid=grid,
        rules=rules,
        domains=arguments.domain,
        workers=arguments.workers,
        allow_virtual=arguments.allow_virtual,
        progress=progress,
    )
    lines = [f"{made.resumed} tiles of an earlier run were kept"] if made.resumed else []
    lines += [
        f"{label}: present in {present} tiles, absent in {absent}, unknown in {unknown}"
        for label, (present, absent, unknown) in made.counts.items()
    ]
    return [*lines, *(f"note: {note}" for note in made.notes), f"{made.tiles} tiles: {made.table}"]


def _class(text: str) -> tuple[str, str]:
    value, sign, label = text.partition("=")
    if not sign or not value.strip() or not label.strip():
        raise argparse.ArgumentTypeError(f"must be VALUE=LABEL; got {text!r}")
    return value.strip(), label.strip()
