"""What a grid leaves on disk: plans, one record per finished cell in an append-only file, and a folder per cell.

A results folder holds ``records.jsonl``, ``plans/`` and a folder per cell: the run's own files, ``result.json`` once it
is done, ``failure.json`` if the last attempt failed, and ``claim.lock``, held by the process that runs it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from ldstyle.benchmark.cells import Cell, digest_of
from ldstyle.training.atomic import replace_text

SCHEMA = 1
RECORDS = "records.jsonl"
PLANS = "plans"
RESULT = "result.json"
FAILURE = "failure.json"
CLAIM = "claim.lock"
CLAIM_SECONDS = 1.0
"""Time to wait for a claim: looking whether a cell is claimed takes the lock for an instant."""

Status = Literal["done", "running", "failed", "missing"]


@dataclass(frozen=True)
class CellResult:
    """What is known of a cell.

    Attributes:
        cell: Name of the cell.
        method: Name of the method.
        title: The method's name in tables.
        split: Name of the split.
        sources: Domains of the split to train on; the oracle trains on ``target`` instead.
        target: Domain reported on.
        seed: Seed.
        preset: Name of the preset.
        oracle: Trained on the target's own training part.
        status: ``missing`` cells may have been begun; see ``epochs``.
        scores: Tables of the target's ``test`` part (the paper's number) and of ``all`` of it (``None`` for the oracle,
            which has seen the rest); empty unless done.
        validation_map: Mean source-validation mAP, by which the model was selected.
        selected_epoch: Epoch of the selected model.
        epochs: Epochs trained so far.
        wall_seconds: Time spent training.
        splits: Digest of each domain's 80/10/10 split, the target's included.
        vocabulary: Label names.
        error: Why the last attempt failed.
        record: The whole record: config, versions, selection rule, and all of the above.
    """

    cell: str
    method: str
    title: str
    split: str
    sources: tuple[str, ...]
    target: str
    seed: int
    preset: str
    oracle: bool = False
    status: Status = "missing"
    scores: Mapping[str, Any] = field(default_factory=dict)
    validation_map: float | None = None
    selected_epoch: int | None = None
    epochs: int = 0
    wall_seconds: float | None = None
    splits: Mapping[str, str] = field(default_factory=dict)
    vocabulary: tuple[str, ...] = ()
    error: str | None = None
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)


def write_plan(results: Path, cells: Sequence[Cell]) -> Path:
    """Write down which cells were asked for, so that others can tell what is missing; a plan is written once."""
    path = results / PLANS / f"{digest_of(cells)}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        described = [cell.describe() for cell in cells]
        replace_text(path, json.dumps({"schema": SCHEMA, "cells": described}, indent=1) + "\n")
    return path


def read_plans(results: Path) -> list[Cell]:
    """Return the cells of all plans, each once, in the order of the plans' age."""
    cells: dict[str, Cell] = {}
    for path in sorted(results.glob(f"{PLANS}/*.json"), key=lambda path: path.stat().st_mtime_ns):
        for described in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            cell = Cell.from_description(described)
            cells.setdefault(cell.slug, cell)
    return list(cells.values())


def append_record(results: Path, record: Mapping[str, Any]) -> bool:
    """Append the record of a finished cell, unless the cell has one; return whether it was appended.

    One process at a time appends; a line is written by one call and forced to disk, and a line that a crash has torn is
    closed first, so that it spoils itself only.
    """
    path = results / RECORDS
    with FileLock(results / f"{RECORDS}.lock"):
        if record["cell"] in read_records(results):
            return False
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        with path.open("ab") as file:
            file.write(b"\n" * torn + json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    return True


def read_records(results: Path) -> dict[str, dict[str, Any]]:
    """Return the records by cell; of several for one cell the first counts, and a torn line does not."""
    records: dict[str, dict[str, Any]] = {}
    path = results / RECORDS
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.exists() else (), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            raise ValueError(f"Line {number} of '{path}' must be a record of schema {SCHEMA}; got {line[:60]!r}.")
        records.setdefault(record["cell"], record)
    return records


def collect_strays(results: Path) -> list[str]:
    """Append the records of cells whose process died between finishing them and appending; return their names."""
    known = read_records(results)
    strays = [path for path in sorted(results.glob(f"*/{RESULT}")) if path.parent.name not in known]
    return [path.parent.name for path in strays if append_record(results, json.loads(path.read_text("utf-8")))]


def write_failure(results: Path, cell: Cell, *, error: str, trace: str = "") -> None:
    """Note why a cell failed; the next run tries it again."""
    folder = results / cell.slug
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / FAILURE, json.dumps({"schema": SCHEMA, "error": error, "traceback": trace}, indent=1) + "\n")


def claim(results: Path, slug: str) -> FileLock | None:
    """Hold a cell for this process until the claim is released or the process ends; ``None`` if another holds it."""
    folder = results / slug
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / CLAIM)
    try:
        lock.acquire(timeout=CLAIM_SECONDS, poll_interval=0.02)
    except Timeout:
        return None
    return lock


def is_claimed(results: Path, slug: str) -> bool:
    """Whether some process runs a cell now."""
    path = results / slug / CLAIM
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def read_results(results: Path) -> list[CellResult]:
    """Return what is known of every cell that was planned or is done, each once.

    Raises:
        FileNotFoundError: There is nothing of a grid in the folder.
    """
    results = Path(results)
    if not (results / RECORDS).exists() and not (results / PLANS).exists():
        single = " It is a single run, which `ldstyle evaluate` scores." if (results / "config.yaml").exists() else ""
        raise FileNotFoundError(
            f"There are no results in '{results}'.{single} Start with `ldstyle bench run --results DIR`."
        )
    records = read_records(results)
    planned = {cell.slug: cell for cell in read_plans(results)}
    found = [
        _from_record(records[slug]) if slug in records else _unfinished(results, cell) for slug, cell in planned.items()
    ]
    return found + [_from_record(record) for slug, record in records.items() if slug not in planned]


def _from_record(record: Mapping[str, Any]) -> CellResult:
    names = ("cell", "method", "title", "seed", "preset", "oracle", "scores", "validation_map", "selected_epoch")
    return CellResult(
        **{name: record[name] for name in names},
        split=record["split"]["name"],
        sources=tuple(record["split"]["sources"]),
        target=record["split"]["target"],
        status="done",
        epochs=record["epochs_run"],
        wall_seconds=record["wall_seconds"],
        splits=record["splits"],
        vocabulary=tuple(record["vocabulary"]),
        record=record,
    )


def _unfinished(results: Path, cell: Cell) -> CellResult:
    folder = results / cell.slug
    status: Status = "missing"
    error = None
    if is_claimed(results, cell.slug):
        status = "running"
    elif (folder / FAILURE).exists():
        status, error = "failed", json.loads((folder / FAILURE).read_text(encoding="utf-8"))["error"]
    split = cell.split
    return CellResult(
        cell.slug,
        cell.method,
        cell.title,
        split.name,
        split.sources,
        split.target,
        cell.seed,
        cell.preset,
        cell.oracle,
        status=status,
        epochs=_epochs(folder),
        error=error,
        record=cell.describe(),
    )


def _epochs(folder: Path) -> int:
    """Count the epochs of a run in progress by the lines of its metrics."""
    try:
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0
