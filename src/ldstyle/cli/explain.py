"""``ldstyle explain``: where in an image a model sees each label."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ldstyle.cli.deploying import add_computing, add_images, device_of
from ldstyle.data.decode import decode
from ldstyle.data.figures import save_figure
from ldstyle.deploy.classifier import load
from ldstyle.deploy.listing import list_images, sheet_names
from ldstyle.deploy.overlay import Explainer, explanation_sheet
from ldstyle.training.progress import open_display


def main(argv: Sequence[str]) -> int:
    """Draw, for each image, a sheet that shows the evidence for each label; predicted labels stand in bold."""
    arguments = _parser().parse_args(argv)
    classifier = load(arguments.model).to(device_of(arguments))
    unknown = [name for name in arguments.labels or () if name not in classifier.vocabulary]
    if unknown:
        known = ", ".join(classifier.vocabulary)
        raise ValueError(f"--labels must be labels of the model; got {unknown[0]!r}. Choose from: {known}.")
    paths = list_images(arguments.images, standard_input=sys.stdin.buffer)
    explain = Explainer(classifier)
    names = sheet_names(paths)
    with open_display(quiet=arguments.quiet) as display:
        for start in range(0, len(paths), arguments.batch_size):
            batch = paths[start : start + arguments.batch_size]
            images = torch.from_numpy(np.stack([decode(path, classifier.size) for path in batch]))
            explanation = explain(images)
            for row, path in enumerate(batch):
                sheet = explanation_sheet(path, explanation, row, labels=arguments.labels, size=arguments.size)
                save_figure(sheet, arguments.out / names[start + row])
                display.work(start + row + 1, len(paths), "sheets")
        display.say(f"{len(paths)} sheets: {arguments.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ldstyle explain", description=main.__doc__)
    add_images(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("explanations"), help="folder of sheets (default: %(default)s)"
    )
    parser.add_argument("--labels", nargs="+", metavar="LABEL", help="labels to show (default: all)")
    parser.add_argument("--size", type=int, default=320, help="width of a panel in pixels (default: %(default)s)")
    add_computing(parser, batch_size=8, workers=False)
    return parser
