"""Commands that extend a grid, written out so that they run as printed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ldstyle.benchmark.grid.cells import Cell, make_cells, order_domains
from ldstyle.benchmark.grid.methods import TITLES, load_method
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.results.records import read_options, read_plans

LISTS = ("domains", "labels", "ignore", "splits", "set")
"""Options of a grid that take several values."""

_DATA = ("data.root", "data.sea", "data.mapping", "data.labels", "data.ignore")
"""Settings that have options of their own."""


def run_command(
    results: Path,
    methods: Sequence[str],
    *,
    preset: str | None = None,
    command: Literal["run", "ablations", "sensitivity"] = "run",
) -> str:
    """Return the ``ldstyle bench`` command that adds methods to a grid, on its data, splits and seeds.

    Args:
        results: The results folder.
        methods: Names of methods, groups of them, or YAML files; ``()`` for commands that take none.
        preset: The grid's preset, where the folder holds several; by default that of its newest plan.
        command: Which command of ``ldstyle bench``.
    """
    options = grid_options(results, preset=preset)
    if command == "sensitivity":  # sweeps have a seed of their own
        options.pop("seeds", None)
    words = ["ldstyle", "bench", command, *(["--methods", *methods] if methods else [])]
    for name, value in options.items():
        words += [f"--{name}", *(value if name in LISTS else [value])]
    return shlex.join([*words, "--results", str(Path(results).absolute())])


def grid_options(results: Path, *, preset: str | None = None) -> dict[str, Any]:
    """Return the options a grid was run with: those of its newest plan, or those that follow from its cells."""
    plans = [cell for cell in read_plans(results) if preset in (None, cell.preset)]
    if not plans:
        return {"preset": preset} if preset else {}
    wanted = preset or plans[-1].preset
    found = read_options(results, preset=wanted)
    return found or _derived([cell for cell in plans if cell.preset == wanted])


def _derived(cells: Sequence[Cell]) -> dict[str, Any]:
    cell = cells[0]
    data = cell.settings["data"]
    domains = order_domains(cell.split.name, cell.split.sources, cell.split.target)
    options: dict[str, Any] = {"data": str(data["root"]), "domains": list(domains)}
    options |= {key: str(data[key]) for key in ("mapping", "sea") if data.get(key) not in (None, "drop")}
    options |= {key: list(data[key]) for key in ("labels", "ignore") if data.get(key)}
    options["splits"] = list(dict.fromkeys(one.split.target for one in cells))
    options["seeds"] = seeds_text(list(dict.fromkeys(one.seed for one in cells)))
    options["preset"] = cell.preset
    return options | ({"set": edits} if (edits := _edits(cells)) else {})


def _edits(cells: Sequence[Cell]) -> list[str]:
    """Return the changes by ``--set``, read from a cell of one of the benchmark's methods."""
    for cell in cells:
        if cell.method in TITLES and cell.preset in PRESETS:
            data: Mapping[str, Any] = cell.settings["data"]
            location = {key: data[key] for key in ("root", "sea", "mapping", "labels", "ignore") if key in data}
            method, preset = load_method(cell.method), PRESETS[cell.preset]
            (usual,) = make_cells([method], [cell.split], [cell.seed], preset=preset, data=location)
            edits = {name: new for name, (_, new) in usual.differences(cell).items() if name not in _DATA}
            return [f"{name}={json.dumps(new)}" for name, new in edits.items()]
    return []


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds as ``--seeds`` takes them; the comma keeps a single one from being a number of seeds."""
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")
