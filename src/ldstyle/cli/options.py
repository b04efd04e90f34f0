"""Options shared by several commands, with one name and one help text each."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from ldstyle.runs.config import default_cache_dir

if TYPE_CHECKING:
    import torch

    from ldstyle.deploy.classifier import Classifier

LABELS = ("--mapping", "--labels", "--ignore", "--sea")
"""How the labels of the domains are read."""

IMAGES = ("--bands", "--range")
"""Bands and range of images that are not 8-bit RGB."""

SYNTHETIC = "data folder, CSV file of a custom data set, or 'synthetic' for generated scenes (default: $LDSTYLE_DATA)"
TRAINED = "data folder (default: the one that the run was trained from)"


def positive(text: str) -> int:
    """Read a whole number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number


@cache
def _texts() -> dict[str, dict[str, Any]]:
    number = {"type": positive, "metavar": "N"}
    names: dict[str, Any] = {"nargs": "+", "default": [], "metavar": "NAME"}
    folder = {"type": Path, "metavar": "DIR"}
    switch = {"action": "store_true"}
    images = "files, folders, patterns such as 'tiles/**/*.png', '-' for a list on standard input"
    trust = "read the data folder, label map and weights that the records name; only for results of your own"
    columns = "label columns of custom CSV files (default: all but path, domain, mask, scene, gsd)"
    bands = "bands of the images, numbers or NAME=NUMBER (default: 8-bit RGB, or all bands with --range)"
    values = "darkest and brightest value, of all bands or each; or percentiles, 1%% 99%% (default: that of 8 bits)"
    return {
        "model": {"help": "run folder, or its model.json or model.safetensors"},
        "images": {"nargs": "+", "help": images},
        "--batch-size": number | {"default": 32, "help": "images per batch (default: %(default)s)"},
        "--bands": {"nargs": "+", "default": [], "metavar": "BAND", "help": bands},
        "--cache": folder | {"help": "folder of decoded images (default: %(default)s)"},
        "--data": folder | {"help": "data folder (default: $LDSTYLE_DATA)"},
        "--device": {"default": "auto", "help": "cpu, cuda, mps, ... (default: cuda if available, else cpu)"},
        "--domains": names | {"default": None, "help": "domains to read (default: all)"},
        "--dry-run": switch | {"help": "print the work and its estimated time, and do nothing"},
        "--force": switch | {"help": "overwrite inputs and files that ldstyle did not write, too"},
        "--ignore": names | {"help": "columns of custom CSV files that are not labels (default: none)"},
        "--labels": names | {"help": columns},
        "--mapping": {"type": Path, "metavar": "FILE", "help": "label map, a YAML file (default: none)"},
        "--out": {"type": Path},
        "--quiet": switch | {"help": "show neither progress nor results"},
        "--range": {"nargs": "+", "default": [], "metavar": "VALUE", "help": values},
        "--results": folder | {"default": Path("results"), "help": "folder of results (default: %(default)s)"},
        "--sea": {
            "choices": ("drop", "water+sea"),
            "default": "drop",
            "help": "treatment of the label sea of UCM and AID: dropped, or merged with water (default: %(default)s)",
        },
        "--seed": {"type": int, "default": 0, "metavar": "N", "help": "seed of all draws (default: %(default)s)"},
        "--set": names | {"metavar": "KEY=VALUE", "help": "settings of all runs, e.g. optimizer.epochs=20"},
        "--size": {"type": positive, "metavar": "PX", "help": "image side in pixels (default: %(default)s)"},
        "--skip-bad": switch | {"help": "warn of files that cannot be read, instead of failing"},
        "--trust-record": switch | {"help": trust},
        "--workers": number | {"default": 1, "help": "processes (default: %(default)s)"},
    }


def add_shared(parser: Any, *names: str, **changes: Any) -> None:
    """Add shared options by name to a parser or a group of one; ``changes`` apply to all of them."""
    for name in names:
        default = {"default": Path(default_cache_dir())} if name == "--cache" else {}
        parser.add_argument(name, **(_texts()[name] | default | changes))


Run = Callable[[argparse.Namespace], int]


def subcommands(parser: argparse.ArgumentParser) -> Callable[[Run], argparse.ArgumentParser]:
    """Return a function that adds a command below a command: the function whose name begins with the command's."""
    below = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(run: Run) -> argparse.ArgumentParser:
        text = inspect.getdoc(run) or ""
        command = below.add_parser(run.__name__.partition("_")[0], help=text.splitlines()[0], description=text)
        command.set_defaults(subcommand=run)
        return command

    return add


def choose_device(arguments: argparse.Namespace) -> torch.device:
    """Return the requested device."""
    import torch

    if arguments.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(arguments.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device must be a device that is available; got {arguments.device!r} ({error}).") from error
    return device


def load_classifier(arguments: argparse.Namespace) -> Classifier:
    """Load the model for many images: with channels last, convolutions on a CPU are up to 1.4 times as fast."""
    import torch

    from ldstyle.deploy.classifier import load

    return load(arguments.model).to(choose_device(arguments)).to(memory_format=torch.channels_last)


def model_files(model: str) -> list[Path]:
    """Return the files of a model, which are inputs of the command."""
    from ldstyle.runs.model_file import DESCRIPTION, WEIGHTS

    folder = Path(model) if Path(model).is_dir() else Path(model).parent
    return [folder / DESCRIPTION, folder / WEIGHTS]


def split_names(texts: Iterable[str]) -> list[str]:
    """Return names that are separated by spaces or commas."""
    return [part for text in texts for part in text.split(",") if part]


def make_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, left: int = 1
) -> Table:
    """Return a table for the terminal that shows names as they are; the first ``left`` columns are text."""
    heading = None if title is None else Text(title)
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i, name in enumerate(header):
        table.add_column(Text(name), justify="left" if i < left else "right", no_wrap=i < left)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
