"""Cost of training each method relative to ERM, measured side by side: ``costs.json`` of a results folder.

The times in records include whatever else the machine did; ``benchmarks/methods.py`` measures steps that alternate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from ldstyle.benchmark.results.reading import DamagedFileError, as_entries, left_out, read_json, reading, typed
from ldstyle.files import replace_text

FILE = "costs.json"
SCHEMA = 1


def write_costs(path: Path, relative: Mapping[str, float]) -> None:
    """Write the cost of each method relative to ERM; :func:`read_costs` returns it."""
    replace_text(path, json.dumps({"schema": SCHEMA, "relative": dict(relative)}, indent=1) + "\n")


def read_costs(folder: Path | None, *, damaged: list[DamagedFileError] | None = None) -> dict[str, float]:
    """Return the cost of each method relative to ERM; empty if it was not measured.

    Args:
        folder: The results folder.
        damaged: Collects the file if it cannot be used.
    """
    if folder is None or not (path := folder / FILE).exists():
        return {}
    costs: dict[str, float] = {}
    with left_out(damaged), reading(path, within=folder):
        content = read_json(path, within=folder)
        if content["schema"] != SCHEMA:
            raise ValueError(f"its schema must be {SCHEMA}; got {content['schema']!r:.60}")
        costs.update({method: _positive(method, value) for method, value in as_entries(content["relative"]).items()})
    return costs


def _positive(method: str, value: object) -> float:
    number = float(typed(method, value, int, float))
    if not 0 < number < math.inf:
        raise ValueError(f"the cost of {method} must be positive; got {number}")
    return number
