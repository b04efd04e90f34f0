"""Verification of records: tables rebuilt from the kept predictions, and a cell run again and compared.

A results folder may be somebody else's. Nothing is written into it or deleted from it, its names must stay inside it,
and the paths and downloads that a record names are used only where the caller allows it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ldstyle.benchmark.execution.cell_run import PARTS, run_cell
from ldstyle.benchmark.grid.cells import Cell, Split
from ldstyle.benchmark.grid.imagery import SYNTHETIC_DATA, DataLocation, find_location
from ldstyle.benchmark.grid.presets import load_preset
from ldstyle.benchmark.results.cell import CellResult, RecordedData
from ldstyle.benchmark.results.reading import (
    DamagedFileError,
    as_entries,
    left_out,
    read_json,
    read_predictions,
    reading,
    require_plain,
)
from ldstyle.benchmark.results.records import RECORDS, read_results
from ldstyle.evaluation.scores import score_table
from ldstyle.runs.settings import merge
from ldstyle.seeding import Streams

OWN_WEIGHTS = ("none", "efficientnet_lite0")
"""Initial weights that need neither a file nor a download."""

MOST_THREADS = 256

COMPARED = ("scores", "validation_map", "thresholds", "selected_epoch", "epochs_run", "splits", "vocabulary")


@dataclass(frozen=True)
class Difference:
    """A value that should be equal and is not; ``size`` is infinite where it is not a matter of degree."""

    name: str
    recorded: Any
    found: Any
    size: float


def rebuild_scores(results: Path, cell: CellResult) -> dict[str, Any]:
    """Compute the tables of a finished cell from its predictions alone, without images, model or training.

    Args:
        results: The results folder.
        cell: The cell.

    Raises:
        DamagedFileError: The predictions or the keys of the test part cannot be read.
    """
    found = read_predictions(results, cell.cell, cell.target)
    scores, labels = torch.from_numpy(found.scores), torch.from_numpy(found.labels)
    path = results / cell.cell / PARTS
    with reading(path, within=results):
        test = set(read_json(path, within=results)["test"])
    chosen = torch.tensor([key in test for key in found.keys], dtype=torch.bool)
    names = cell.vocabulary
    with reading(results / RECORDS, within=results):
        if scores.shape[1] != len(names):
            raise ValueError(f"{cell.cell} must have {scores.shape[1]} labels, as its predictions; got {list(names)!r}")
        limits = cell.thresholds
        whole = None if cell.oracle else score_table(scores, labels, limits, names)
        return {"test": score_table(scores[chosen], labels[chosen], limits, names), "all": whole}


def check_predictions(results: Path, *, damaged: list[DamagedFileError] | None = None) -> dict[str, list[Difference]]:
    """Rebuild the tables of all finished cells and return, by cell, the differences from the records.

    Args:
        results: The results folder.
        damaged: Files that cannot be read are added to it; their cells are left out either way.

    Returns:
        The differences of every cell that could be checked, none where its tables are equal.
    """
    found = {}
    for cell in read_results(results, damaged=damaged):
        if cell.status == "done":
            with left_out(damaged):
                rebuilt = rebuild_scores(results, cell)
                found[cell.cell] = compare(cell.record, {"scores": rebuilt}, names=("scores",))
    return found


def choose_cell(results: Sequence[CellResult], *, seed: int) -> CellResult:
    """Choose one finished cell at random; the seed decides which."""
    done = sorted((cell for cell in results if cell.status == "done"), key=lambda cell: cell.cell)
    if not done:
        raise ValueError("No cell is done yet, so there is nothing to verify. Start with `ldstyle bench run`.")
    return done[int(Streams(seed)["verify"].integers(len(done)))]


def find_recorded_location(
    cell: CellResult, data: str | None = None, *, cache_dir: Path, mapping: Path | None = None, trust: bool = False
) -> DataLocation:
    """Return the data to run a finished cell again with.

    Args:
        cell: The cell.
        data: As for :func:`~ldstyle.benchmark.grid.imagery.find_location`. By default synthetic scenes for a cell that
            was run on them, or else ``$LDSTYLE_DATA``.
        cache_dir: Folder of decoded images; that of the record is never used.
        mapping: Label map, a YAML file.
        trust: Use the data folder and the label map that the record names, where none are given.

    Raises:
        ValueError: The record names data or a label map, and neither they nor ``trust`` are given.
    """
    recorded, preset = cell.data or RecordedData(None, None, "drop", (), ()), load_preset(cell.preset)
    sea: Literal["drop", "water+sea"] = "water+sea" if recorded.sea == "water+sea" else "drop"
    if data is None and recorded.synthetic:
        return find_location(SYNTHETIC_DATA, preset=preset, cache_dir=cache_dir, sea=sea)
    root, label_map = recorded.root, recorded.mapping
    if data is None and not os.environ.get("LDSTYLE_DATA"):
        data = str(root) if _allowed("data", root, "--data DIR", trust=trust) else None
    if mapping is None and label_map is not None and _allowed("mapping", label_map, "--mapping FILE", trust=trust):
        mapping = Path(label_map)
    return find_location(
        data,
        preset=preset,
        cache_dir=cache_dir,
        sea=sea,
        mapping=mapping,
        labels=list(recorded.labels),
        ignore=list(recorded.ignore),
    )


def run_again(cell: CellResult, location: DataLocation, *, trust: bool = False) -> dict[str, Any]:
    """Run a finished cell from the start, with the threads it was run with, and return its new record.

    It is run in a temporary folder, which is deleted afterwards.

    Args:
        cell: The cell.
        location: Where the data are; see :func:`find_recorded_location`.
        trust: Use the weights file, or download from the hub, that the record names.

    Raises:
        ValueError: The record names weights outside this package and ``trust`` is false, or its settings are invalid.
    """
    settings = {key: value for key, value in cell.settings.items() if key != "out"}
    _check_backbone(as_entries(settings["backbone"]), trust=trust)
    settings = merge(settings, {"data": location.settings()})
    split = Split(cell.split, cell.sources, cell.target)
    again = Cell(cell.method, cell.title, split, cell.seed, cell.preset, settings, cell.oracle)
    threads = cell.machine.threads
    if not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"machine.threads of {cell.cell} must be from 1 to {MOST_THREADS}; got {threads!r}.")
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="ldstyle-verify-") as folder:
        return run_cell(again, location=location, folder=Path(folder, require_plain(cell.cell)))


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


def _check_backbone(backbone: Mapping[str, Any], *, trust: bool) -> None:
    """Refuse a network or weights from a file or from the network, unless the record is trusted."""
    name, weights = backbone["name"], backbone["weights"]
    if not isinstance(name, str) or set(name) & set(":/\\"):  # timm takes hf-hub:NAME and local-dir:PATH
        _allowed("backbone.name", name, trust=trust)
    if weights not in OWN_WEIGHTS:
        _allowed("backbone.weights", weights, trust=trust)


def _allowed(name: str, value: object, option: str = "", *, trust: bool) -> bool:
    if trust:
        return True
    given = f"Give your own by {option}, or" if option else "To"
    raise ValueError(
        f"The record names {name} {value!r}, which a command must not use unasked. {given} allow it by --trust-record, "
        "for results of your own."
    )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, list(value) if isinstance(value, tuple) else value


def _size(one: Any, other: Any) -> float:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return abs(one - other) if numbers else float("inf")
