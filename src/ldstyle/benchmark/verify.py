"""Are the records true? Tables rebuilt from the kept predictions, and a cell run again and compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ldstyle.benchmark.cells import Cell
from ldstyle.benchmark.places import Place
from ldstyle.benchmark.records import CellResult, read_results
from ldstyle.benchmark.work import PARTS, run_cell
from ldstyle.seeding import Streams
from ldstyle.training.scoring import score_table

AGAIN = "verify"
"""Folder in the results folder where a cell is run again."""

COMPARED = ("scores", "validation_map", "thresholds", "selected_epoch", "epochs_run", "splits", "vocabulary")


@dataclass(frozen=True)
class Difference:
    """A value that should be equal and is not; ``size`` is infinite where it is not a matter of degree."""

    name: str
    recorded: Any
    found: Any
    size: float


def rebuild_scores(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the tables of a finished cell from its predictions alone, without images, model or training.

    Args:
        folder: The cell's folder.
        record: Its record, for the thresholds.
    """
    target = record["split"]["target"]
    with safe_open(folder / f"predictions-{target}.safetensors", framework="pt") as file:
        scores, labels = (file.get_tensor(f"all/{target}/{name}") for name in ("scores", "labels"))
        keys = json.loads(file.metadata()["keys"])[f"all/{target}"]
    test = set(json.loads((folder / PARTS).read_text(encoding="utf-8"))["test"])
    chosen = torch.tensor([key in test for key in keys])
    names = record["vocabulary"]
    limits = [record["thresholds"][name] for name in names]
    whole = None if record["oracle"] else score_table(scores, labels, limits, names)
    return {"test": score_table(scores[chosen], labels[chosen], limits, names), "all": whole}


def check_predictions(results: Path) -> dict[str, list[Difference]]:
    """Rebuild the tables of all finished cells and return, by cell, what differs from the records."""
    found = {}
    for cell in read_results(results):
        if cell.status == "done":
            rebuilt = rebuild_scores(results / cell.cell, cell.record)
            found[cell.cell] = compare({"scores": cell.scores}, {"scores": rebuilt}, names=("scores",))
    return {name: differences for name, differences in found.items() if differences}


def choose_cell(results: Sequence[CellResult], *, seed: int) -> CellResult:
    """Choose one finished cell at random; the seed decides which."""
    done = sorted((cell for cell in results if cell.status == "done"), key=lambda cell: cell.cell)
    if not done:
        raise ValueError("No cell is done yet, so there is nothing to verify. Start with `ldstyle bench run`.")
    return done[int(Streams(seed)["verify"].integers(len(done)))]


def run_again(results: Path, cell: CellResult) -> dict[str, Any]:
    """Run a finished cell from the start, with the threads it was run with, and return its new record.

    Its files are in the folder ``verify`` of the results folder; the grid does not count them.
    """
    record = cell.record
    settings = {key: value for key, value in record["config"].items() if key != "out"}
    names = ("method", "title", "split", "seed", "preset", "oracle")
    again = Cell.from_description({**{name: record[name] for name in names}, "settings": settings})
    folder = results / AGAIN / cell.cell
    if folder.exists():
        shutil.rmtree(folder)
    torch.set_num_threads(record["machine"]["threads"])
    return run_cell(again, place=Place(**record["place"]), folder=folder)


def compare(
    recorded: Mapping[str, Any], found: Mapping[str, Any], *, names: Sequence[str] = COMPARED
) -> list[Difference]:
    """Return the values of two records that differ at all."""
    one, other = ({name: record[name] for name in names} for record in (recorded, found))
    first, second = dict(_leaves(one)), dict(_leaves(other))
    pairs = {name: (first.get(name), second.get(name)) for name in dict.fromkeys([*first, *second])}
    return [Difference(name, old, new, _size(old, new)) for name, (old, new) in pairs.items() if old != new]


def changed_versions(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    """Return the versions, commit and machine that differ, which may explain other differences."""
    names = [name for name in ("versions", "git_commit", "machine") if name in recorded and name in found]
    return [one for one in compare(recorded, found, names=names) if one.name != "machine.process"]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, list(value) if isinstance(value, tuple) else value


def _size(one: Any, other: Any) -> float:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return abs(one - other) if numbers else float("inf")
