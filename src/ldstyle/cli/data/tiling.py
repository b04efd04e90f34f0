"""``ldstyle data tile``: whole scenes and their labels as a data set."""

from __future__ import annotations

import argparse
from pathlib import Path

from ldstyle.data.domains.scene_table import Progress


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``data tile``."""
    add = command.add_argument
    add("scenes", type=Path, nargs="+", metavar="SCENE", help="GeoTIFF, PNG, JPEG or JPEG 2000 file")
    text = "polygons (.geojson, .json, .gpkg), or a raster of classes for each scene"
    add("--labels", type=Path, nargs="+", required=True, metavar="FILE", help=text)
    add("--out", type=Path, required=True, help="folder to write, new or of the same command")
    add("--size", type=int, default=256, help="side of a tile in pixels (default: %(default)s)")
    add("--stride", type=int, help="pixels from a tile to the next (default: the size)")
    text = "tiles along the side of a spatial block, which no split separates (default: %(default)s)"
    add("--block", type=int, default=8, help=text)
    add("--gap", type=int, help="width in pixels of the strip without tiles between blocks (default: the size)")
    text = "domain of all scenes, or of each (default: the folder of --out)"
    add("--domain", nargs="+", default=[], metavar="NAME", help=text)
    text = "attribute that holds the class of a polygon (default: label)"
    add("--label-column", default="label", metavar="NAME", help=text)
    text = "label of each class; other classes are omitted (default: the polygons' classes; required for rasters)"
    add("--classes", type=_class, nargs="+", default=[], metavar="VALUE=LABEL", help=text)
    text = "label of all polygons, whatever their attributes (default: by attribute)"
    add("--one-label", metavar="NAME", help=text)
    text = "reference system of the polygons, e.g. EPSG:4326 (default: that of the file)"
    add("--labels-crs", metavar="CRS", help=text)
    add("--layer", metavar="NAME", help="layer of the polygons (default: the first)")
    text = "a label that covers at least this fraction of a tile is present (default: %(default)s)"
    add("--present", type=float, default=0.01, metavar="FRACTION", help=text)
    text = "a label that covers at most this fraction is absent; between the two it is unknown (default: %(default)s)"
    add("--absent", type=float, default=0.001, metavar="FRACTION", help=text)
    add("--min-valid", type=float, default=0.5, help="fraction of a tile that must have data (default: %(default)s)")
    add("--workers", type=int, default=1, help="processes, each with about 180 MB (default: %(default)s)")
    text = "open any format of GDAL; virtual rasters such as VRT read every file and address that they contain"
    add("--allow-virtual", action="store_true", help=text)


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
