"""``ldstyle predict``: which labels images have."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ldstyle.cli.model_options import add_computing, add_images, load_for, model_files
from ldstyle.cli.outputs import add_force, guarded
from ldstyle.deploy.files import FilePredictions, predict_files
from ldstyle.deploy.listing import list_images
from ldstyle.deploy.prediction_table import FORMATS, Format, check_format, format_of, render, write_table
from ldstyle.deploy.shift import ShiftReport, check_shift, check_statistics
from ldstyle.evaluation.style_statistics import style_points
from ldstyle.nn import InsertionPoint
from ldstyle.progress import open_display

_STANDARD_OUTPUT = Path("-")


def main(argv: Sequence[str]) -> int:
    """Predict the labels of images and write a table of probabilities and labels."""
    arguments = _parser().parse_args(argv)
    form = _format(arguments)
    check_format(form)
    paths = list_images(arguments.images, standard_input=sys.stdin.buffer)
    outputs = () if arguments.out == _STANDARD_OUTPUT else (arguments.out,)
    with guarded(*outputs, inputs=[*model_files(arguments.model), *paths], force=arguments.force):
        _predict(arguments, paths, form)
    return 0


def _predict(arguments: argparse.Namespace, paths: Sequence[Path], form: Format) -> None:
    classifier = load_for(arguments)
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
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, title in enumerate(("label", "in the sources", "expected here", "predicted here")):
        table.add_column(title, justify="right" if i else "left")
    for label in report.labels:
        sources = "unknown" if label.sources is None else f"{label.sources:.0%}"
        table.add_row(Text(label.name), sources, f"{label.expected:.0%}", f"{label.predicted:.0%}")
    return table


def _format(arguments: argparse.Namespace) -> Format:
    chosen: Format | None = arguments.format
    if chosen is not None:
        return chosen
    return "csv" if arguments.out == _STANDARD_OUTPUT else format_of(arguments.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ldstyle predict", description=main.__doc__)
    add_images(parser)
    parser.add_argument(
        "--out", type=Path, default=_STANDARD_OUTPUT, help="table to write; '-' for standard output (default)"
    )
    add_force(parser)
    parser.add_argument("--format", choices=FORMATS, help="format of the table (default: by the suffix of --out)")
    parser.add_argument("--skip-bad", action="store_true", help="list images that cannot be read and leave them out")
    parser.add_argument(
        "--check-shift",
        action="store_true",
        help="compare the images with the model's sources, without labels, and say whether to trust the predictions",
    )
    parser.add_argument("--calibrate", dest="check_shift", action="store_true", help=argparse.SUPPRESS)
    add_computing(parser)
    return parser
