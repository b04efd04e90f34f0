"""``ldstyle map``: the labels of a whole georeferenced scene."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ldstyle.cli import INTERRUPTED
from ldstyle.cli.options import add_shared, load_classifier, model_files, positive
from ldstyle.cli.outputs import guarded
from ldstyle.data.scenes.raster import is_address
from ldstyle.deploy.scene.mapping import MapOptions, map_scene, outputs_of
from ldstyle.progress import open_display


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add_shared(parser, "model")
    add("scene", type=_scene, help="GeoTIFF, PNG, JPEG or JPEG 2000 file, or an address, see --allow-remote")
    add_shared(parser, "--force", "--batch-size", "--device", "--quiet")
    text = "GeoTIFF to write (default: SCENE-labels.tif in this folder)"
    add_shared(parser, "--out", metavar="FILE", help=text)
    add("--tile", type=positive, metavar="PX", help="side of a tile in pixels of the scene (default: the model's)")
    add("--match-gsd", action="store_true", help="choose tiles that show as much ground as the training images")
    text = "metres per pixel of the training images at the model's size, for all sources or one value for each"
    add("--trained-gsd", type=float, nargs="+", default=(), metavar="M", help=f"{text} (default: as recorded)")
    text = "cells of the map along a tile's side: 1 no overlap, 2 half, 4 three quarters (default: %(default)s)"
    add("--overlap", type=positive, default=2, metavar="N", help=text)
    text = "band numbers (default: those of the training images; for RGB 1 2 3, or 1 1 1 for grey)"
    add("--bands", type=int, nargs="+", metavar="BAND", help=text)
    text = "values that become 0 and 1 (default: those of the training images; required for another type of values)"
    add("--range", type=float, nargs=2, metavar=("LOW", "HIGH"), help=text)
    text = "fraction of a tile that must have data (default: %(default)s)"
    add("--min-valid", type=float, default=0.5, metavar="FRACTION", help=text)
    text = "open any format of GDAL; virtual rasters such as VRT read every file and address that they contain"
    add("--allow-virtual", action="store_true", help=text)
    text = "open a scene by an address of GDAL, such as https://... or /vsis3/..."
    add("--allow-remote", action="store_true", help=text)
    add("--preview", action="store_true", help="also write an interactive HTML page that needs no network")


def run(arguments: argparse.Namespace) -> int:
    """Map the probability of each label over a raster of any size; an interrupted run resumes."""
    options = MapOptions(
        tile=arguments.tile,
        match_gsd=arguments.match_gsd,
        overlap=arguments.overlap,
        bands=arguments.bands,
        limits=None if arguments.range is None else (arguments.range[0], arguments.range[1]),
        min_valid=arguments.min_valid,
        batch_size=arguments.batch_size,
        allow_virtual=arguments.allow_virtual,
        allow_remote=arguments.allow_remote,
        preview=arguments.preview,
        trained_gsd=tuple(arguments.trained_gsd),
    )
    out = arguments.out or Path(f"{Path(arguments.scene).stem}-labels.tif")
    inputs = [arguments.scene, *model_files(arguments.model)]
    files = outputs_of(out, preview=arguments.preview)
    with guarded(out, *files.values(), inputs=inputs, force=arguments.force):
        try:
            _map(arguments, out, options)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted; the same command resumes\n")
            return INTERRUPTED
    return 0


def _map(arguments: argparse.Namespace, out: Path, options: MapOptions) -> None:
    classifier = load_classifier(arguments)
    with open_display(quiet=arguments.quiet) as display:
        made = map_scene(classifier, arguments.scene, out, options=options, progress=display.work)
        if made.resumed:
            display.say(f"{made.resumed} rows of tiles of an interrupted run were kept")
        if made.dropped:
            display.say(f"{made.dropped} damaged rows of the interrupted run were computed again")
        for sentence in made.sentences:
            display.say(sentence)
        display.say(f"probabilities: {made.raster}")
        display.say(f"{made.regions} footprints: {made.footprints}")
        for name, path in made.others.items():
            display.say(f"{name}: {path}")


def _scene(text: str) -> Path | str:
    return text if is_address(text) else Path(text)
