"""``ldstyle explain``: where in an image a model sees each label."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from ldstyle.cli.options import add_shared, choose_device, model_files
from ldstyle.cli.outputs import check_outputs, guarded
from ldstyle.data.domains.samples import save_figure
from ldstyle.deploy.classifier import load
from ldstyle.deploy.explain import Explainer, explanation_sheet
from ldstyle.deploy.files import list_images, read_images, refuse_all, refuse_bad, sheet_names
from ldstyle.messages import choose_from
from ldstyle.progress import Display, open_display


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_shared(parser, "model", "images", "--force", "--skip-bad", "--device", "--quiet")
    text = "folder of sheets (default: %(default)s)"
    add_shared(parser, "--out", default=Path("explanations"), metavar="DIR", help=text)
    add_shared(parser, "--labels", default=None, help="labels to show (default: all)")
    add_shared(parser, "--size", default=320, help="width of a panel in pixels (default: %(default)s)")
    add_shared(parser, "--batch-size", default=8)


def run(arguments: argparse.Namespace) -> int:
    """Draw, for each image, a sheet that shows the evidence for each label; predicted labels are bold."""
    classifier = load(arguments.model).to(choose_device(arguments))
    for name in arguments.labels or ():
        if name not in classifier.vocabulary:
            hint = choose_from(name, classifier.vocabulary)
            raise ValueError(f"--labels must be labels of the model; got {name!r}.{hint}")
    paths = list_images(arguments.images, standard_input=sys.stdin.buffer)
    sheets = {path: arguments.out / name for path, name in zip(paths, sheet_names(paths), strict=True)}
    inputs = [*model_files(arguments.model), *paths]
    check_outputs(*sheets.values(), inputs=inputs, force=arguments.force)
    with open_display(quiet=arguments.quiet) as display:
        problems = _draw(Explainer(classifier), sheets, arguments, display)
        for problem in problems:
            sys.stderr.write(f"warning: left out: {problem}\n")
        display.say(f"{len(sheets) - len(problems)} sheets: {arguments.out}")
    return 0


def _draw(
    explain: Explainer, sheets: Mapping[Path, Path], arguments: argparse.Namespace, display: Display
) -> list[str]:
    """Draw the sheets of the images that can be read, and return why the others cannot."""
    problems: list[str] = []
    done = 0
    for batch, pixels, wrong in read_images(list(sheets), explain.classifier.model, arguments.batch_size, 1):
        problems += wrong
        if problems and not arguments.skip_bad:
            refuse_bad(problems)
        if pixels is None:
            continue
        explanation = explain(torch.from_numpy(pixels))
        with guarded(*(sheets[path] for path in batch), force=True):
            for row, path in enumerate(batch):
                sheet = explanation_sheet(
                    path,
                    explanation,
                    row,
                    labels=arguments.labels,
                    size=arguments.size,
                    shown=explain.classifier.model.shown,
                )
                save_figure(sheet, sheets[path])
                done += 1
                display.work(done + len(problems), len(sheets), "sheets")
    if not done:
        refuse_all(problems)
    return problems
