"""Advice that runs as printed: short commands in the reasons of absent items become those of the grid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

from ldstyle.benchmark.grid.commands import run_command
from ldstyle.benchmark.grid.methods import METHODS, plain_name
from ldstyle.benchmark.results.records import CellResult
from ldstyle.report.model import Absent
from ldstyle.report.order import ORACLE, method_rank

_SHORT = re.compile(r"`ldstyle bench (run|ablations|sensitivity|status)((?: --methods)(?: [^`\s-][^`\s]*)+)?`")


def with_commands(item: Absent, folder: Path, cells: Sequence[CellResult]) -> Absent:
    """Return an absent item whose commands name the data, splits, seeds, preset and results folder of its grid.

    Args:
        item: The item; its reason holds commands as ``ldstyle bench run --methods erm``, in backticks.
        folder: The results folder.
        cells: Cells of the grid, all of one preset.
    """
    return replace(item, reason=_SHORT.sub(lambda short: _full(short, folder, cells), item.reason))


def _full(short: re.Match[str], folder: Path, cells: Sequence[CellResult]) -> str:
    command, methods = short[1], (short[2] or "").split()[1:]
    if command == "status":
        return f"`{shlex.join(['ldstyle', 'bench', 'status', '--results', str(folder.absolute())])}`"
    if command == "run" and not methods:
        methods = _known(cells)
    kind = cast('Literal["run", "ablations", "sensitivity"]', command)
    try:
        return f"`{run_command(folder, methods, preset=cells[0].preset if cells else None, command=kind)}`"
    except (ValueError, TypeError, LookupError, OSError):  # the plans are not those of a grid that could be run
        return short[0]


def _known(cells: Sequence[CellResult]) -> list[str]:
    """Return the methods of a grid that go by their names; a method of the user's goes by its file."""
    named = {cell.method for cell in cells}
    known = [name for name in named if plain_name(name) in (*METHODS, ORACLE)]
    return sorted(known, key=method_rank)
