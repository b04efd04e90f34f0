"""``ldstyle completion``: commands and options by the tab key."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import shtab

from ldstyle.cli import COMMANDS

EPILOG = """
to use it from the next shell on:
  ldstyle completion bash > ~/.local/share/bash-completion/completions/ldstyle
  ldstyle completion zsh > "${fpath[1]}/_ldstyle"
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose paths complete to files."""

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        if options.get("type") is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        return action


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS, help="shell to complete in")


def run(arguments: argparse.Namespace) -> int:
    """Print a script that completes commands and options of ldstyle in a shell."""
    parser = _Parser(prog="ldstyle")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, summary in COMMANDS.items():
        importlib.import_module(f"ldstyle.cli.{name}").add_options(commands.add_parser(name, help=summary))
    sys.stdout.write(shtab.complete(parser, arguments.shell))
    return 0
