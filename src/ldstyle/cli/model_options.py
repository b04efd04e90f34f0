"""Options that the commands using a trained model share."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ldstyle.deploy.classifier import Classifier, load
from ldstyle.runs.model_file import DESCRIPTION, WEIGHTS


def add_images(parser: argparse.ArgumentParser) -> None:
    """Add the model and the images."""
    parser.add_argument("model", help="run folder, or its model.json or model.safetensors")
    parser.add_argument(
        "images", nargs="+", help="files, folders, patterns such as 'tiles/**/*.png', '-' for a list on standard input"
    )


def add_computing(parser: argparse.ArgumentParser, *, batch_size: int = 32, workers: bool = True) -> None:
    """Add how to compute."""
    parser.add_argument("--batch-size", type=positive, default=batch_size, help="images at once (default: %(default)s)")
    if workers:
        parser.add_argument("--workers", type=positive, help="threads that read images (default: one per core)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps, ... (default: cuda if there is one)")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def device_of(arguments: argparse.Namespace) -> torch.device:
    """Return the device that was asked for."""
    if arguments.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(arguments.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device must be a device that is there; got {arguments.device!r} ({error}).") from error
    return device


def load_for(arguments: argparse.Namespace) -> Classifier:
    """Load the model for many images: with channels last, convolutions on a CPU are up to 1.4 times as fast."""
    return load(arguments.model).to(device_of(arguments)).to(memory_format=torch.channels_last)


def model_files(model: str) -> list[Path]:
    """Return the files of a model, which are inputs of the command."""
    folder = Path(model) if Path(model).is_dir() else Path(model).parent
    return [folder / DESCRIPTION, folder / WEIGHTS]


def positive(text: str) -> int:
    """Read a whole number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number
