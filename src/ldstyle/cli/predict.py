"""``ldstyle predict``: which labels images have."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ldstyle.cli.options import add_shared, load_classifier, make_table, model_files
from ldstyle.cli.outputs import guarded
from ldstyle.deploy.files import FilePredictions, list_images, predict_files
from ldstyle.deploy.prediction_table import FORMATS, Format, check_format, format_of, render, write_table
from ldstyle.deploy.shift import ShiftReport, check_shift, check_statistics
from ldstyle.evaluation.style_statistics import style_points
from ldstyle.nn import InsertionPoint
from ldstyle.progress import open_display

_STANDARD_OUTPUT = Path("-")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_shared(parser, "model", "images", "--force", "--skip-bad", "--batch-size", "--device", "--quiet")
    text = "table to write, '-' for standard output (default: %(default)s)"
    add_shared(parser, "--out", default=_STANDARD_OUTPUT, metavar="FILE", help=text)
    parser.add_argument("--format", choices=FORMATS, help="format of the table (default: by the suffix of --out)")
    text = "compare the images with the model's sources, without labels, and report whether to trust the predictions"
    parser.add_argument("--check-shift", action="store_true", help=text)
    add_shared(parser, "--workers", default=None, help="threads that read images (default: one per core)")


def run(arguments: argparse.Namespace) -> int:
    """Predict the labels of images and write a table of probabilities and labels."""
    form = _format(arguments)
    check_format(form)
    paths = list_images(arguments.images, standard_input=sys.stdin.buffer)
    outputs = () if arguments.out == _STANDARD_OUTPUT else (arguments.out,)
    with guarded(*outputs, inputs=[*model_files(arguments.model), *paths], force=arguments.force):
        _predict(arguments, paths, form)
    return 0


def _predict(arguments: argparse.Namespace, paths: Sequence[Path], form: Format) -> None:
    classifier = load_classifier(arguments)
    points: tuple[InsertionPoint, ...] = ()
    if arguments.check_shift:
        check_statistics(classifier.model)
        points = style_points(classifier.backbone, image_size=classifier.size)
    with open_display(quiet=arguments.quiet) as display:
        found = predict_files(
            classifier,
            paths,
            batch_size=arguments.batch_size,
            workers=arguments.workers,
            skip_bad=arguments.skip_bad,
            style_points=points,
            progress=display.work,
        )
    report = None if found.style is None else check_shift(classifier.model, found.style, found.prediction)
    content = render(found, form, shift=None if report is None else report.percentiles)
    if arguments.out == _STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        write_table(content, arguments.out)
    _say(found, report, arguments)


def _say(found: FilePredictions, report: ShiftReport | None, arguments: argparse.Namespace) -> None:
    # On standard error, since standard output may be the table.
    console = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)
    if found.prediction.unknown:
        names = ", ".join(found.prediction.unknown)
        console.print(f"note: without training data, so unknown: {names}", markup=False)
    for problem in found.problems:
        console.print(f"warning: left out: {problem}", markup=False)
    if report is not None:
        console.print(_label_table(report))
        for sentence in report.sentences:
            console.print(sentence, markup=False)
    if arguments.out != _STANDARD_OUTPUT and not arguments.quiet:
        console.print(f"{len(found.paths)} images: {arguments.out}", markup=False)


def _label_table(report: ShiftReport) -> Table:
    rows = []
    for label in report.labels:
        sources = "unknown" if label.sources is None else f"{label.sources:.0%}"
        rows.append([label.name, sources, f"{label.expected:.0%}", f"{label.predicted:.0%}"])
    return make_table(("label", "in the sources", "expected here", "predicted here"), rows)


def _format(arguments: argparse.Namespace) -> Format:
    chosen: Format | None = arguments.format
    if chosen is not None:
        return chosen
    return "csv" if arguments.out == _STANDARD_OUTPUT else format_of(arguments.out)
