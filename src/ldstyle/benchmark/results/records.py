"""A grid on disk: plans, one record per finished cell in an append-only file, and a folder per cell.

A results folder holds ``records.jsonl``, ``plans/`` and a folder per cell: the run's own files, ``result.json`` once it
is done, ``failure.json`` if the last attempt failed, and ``claim.lock``, held by the process that runs it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ldstyle.benchmark.grid.cells import Cell, digest_of
from ldstyle.benchmark.results.cell import CellResult, ScoreTable, Status
from ldstyle.benchmark.results.reading import (
    DamagedFileError,
    as_entries,
    cell_folder,
    left_out,
    read_json,
    reading,
    reading_line,
    require_plain,
    texts,
    typed,
)
from ldstyle.files import replace_text

SCHEMA = 1
RECORDS = "records.jsonl"
PLANS = "plans"
RESULT = "result.json"
FAILURE = "failure.json"
CLAIM = "claim.lock"
CLAIM_SECONDS = 1.0
"""Time to wait for a claim: looking whether a cell is claimed takes the lock for an instant."""

OPTIONS = frozenset(
    {"data", "domains", "sea", "mapping", "labels", "ignore", "splits", "seeds", "preset", "selected", "set"}
)
"""Options of a grid that its plan keeps."""


def write_plan(results: Path, cells: Sequence[Cell], options: Mapping[str, Any] | None = None) -> Path:
    """Store the requested cells, so that missing ones can be listed; a whole plan is kept.

    Args:
        results: The results folder.
        cells: The cells.
        options: Options of ``ldstyle bench run`` by name, from which advice on the grid is made.
    """
    path = results / PLANS / f"{digest_of(cells)}.json"
    content = {"schema": SCHEMA, "options": dict(options or {}), "cells": [cell.describe() for cell in cells]}
    with suppress(DamagedFileError):
        if not options or read_json(path, within=results).get("options") == content["options"]:
            read_json(path, within=results)
            os.utime(path, ns=(time.time_ns(), time.time_ns()))  # the newest description of a cell counts
            return path
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(content, indent=1) + "\n", shared=True)
    return path


def read_options(results: Path, *, preset: str) -> dict[str, Any]:
    """Return the options by which the newest plan of a preset was made; empty if no plan has any."""
    options: dict[str, Any] = {}
    for path in _plans(results):
        with left_out(None), reading(path, within=results):
            found = as_entries(read_json(path, within=results).get("options", {}))
            for name, value in found.items():
                texts(name, value) if isinstance(value, list) else typed(name, value, str)
            options = found if found.get("preset") == preset and found.keys() <= OPTIONS else options
    return options


def _plans(results: Path) -> list[Path]:
    return sorted(results.glob(f"{PLANS}/*.json"), key=lambda path: path.lstat().st_mtime_ns)


def read_plans(results: Path, *, damaged: list[DamagedFileError] | None = None) -> list[Cell]:
    """Return the cells of all plans, each once, in the order of the plans' age; the newest description counts.

    Args:
        results: The results folder.
        damaged: Plans that cannot be read are added to it; they are left out either way.
    """
    cells: dict[str, Cell] = {}
    for path in _plans(results):
        with left_out(damaged), reading(path, within=results):
            content = read_json(path, within=results)
            found = [_planned(described) for described in content["cells"]]
            cells |= {cell.slug: cell for cell in found}
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


def read_records(results: Path, *, damaged: list[DamagedFileError] | None = None) -> dict[str, dict[str, Any]]:
    """Return the records by cell; of several for one cell the first counts.

    Args:
        results: The results folder.
        damaged: Lines that are no records are added to it, except those that a crash has torn and a later line has
            made up for; they are left out either way.
    """
    records: dict[str, dict[str, Any]] = {}
    path, lines, bad = results / RECORDS, [b""], []
    if path.exists():
        with left_out(damaged), reading(path, within=results):
            lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            with reading_line(path, number, within=results):
                record = as_entries(json.loads(line))
                cell_result(record)
                records.setdefault(record["cell"], record)
        except DamagedFileError as error:
            bad.append((_named_in(line), error))
    for name, problem in bad:
        with left_out(damaged):
            if name not in records:
                raise problem
    return records


def collect_strays(results: Path, *, damaged: list[DamagedFileError] | None = None) -> list[str]:
    """Append the records of cells whose process died between finishing them and appending; return their names.

    Args:
        results: The results folder.
        damaged: Records that cannot be read are added to it; their cells are still to be done.
    """
    known = read_records(results)
    found = []
    for path in sorted(results.glob(f"*/{RESULT}")):
        if path.parent.name not in known:
            with left_out(damaged):
                record = read_result(results, path.parent.name)
                found += [path.parent.name] if append_record(results, record) else []
    return found


def read_result(results: Path, cell: str) -> dict[str, Any]:
    """Read the ``result.json`` of a finished cell.

    Raises:
        DamagedFileError: It is missing, damaged, or of another cell.
    """
    path = results / cell / RESULT
    with reading(path, within=results):
        record = read_json(path, within=results)
        cell_result(record)
        if record["cell"] != cell:
            raise ValueError(f"it must be the record of {cell}; got {record['cell']!r}")
    return record


def write_failure(results: Path, cell: Cell, *, error: str, trace: str = "") -> None:
    """Note why a cell failed; the next run tries it again."""
    folder = cell_folder(results, cell.slug)
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / FAILURE, json.dumps({"schema": SCHEMA, "error": error, "traceback": trace}, indent=1) + "\n")


def claim(results: Path, slug: str) -> FileLock | None:
    """Hold a cell for this process until the claim is released or the process ends; ``None`` if another holds it."""
    folder = cell_folder(results, slug)
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
    # Opening a lock empties the file, so one that a link leads to is left alone.
    if not path.is_file() or not path.resolve().is_relative_to(results.resolve()):
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def read_results(results: Path, *, damaged: list[DamagedFileError] | None = None) -> list[CellResult]:
    """Return the state of every cell that was planned or is done, each once.

    Args:
        results: The results folder.
        damaged: Files that cannot be read are added to it. They are left out either way, and so are files that a link
            outside the folder leads to.

    Raises:
        FileNotFoundError: There is nothing of a grid in the folder.
    """
    results = Path(results)
    if not (results / RECORDS).exists() and not (results / PLANS).exists():
        single = " It is a single run, which `ldstyle evaluate` scores." if (results / "config.yaml").exists() else ""
        raise FileNotFoundError(
            f"There are no results in '{results}'.{single} Start with `ldstyle bench run --results DIR`."
        )
    records = read_records(results, damaged=damaged)
    planned = {cell.slug: cell for cell in read_plans(results, damaged=damaged)}
    found = [
        cell_result(records[slug]) if slug in records else _unfinished(results, cell, damaged)
        for slug, cell in planned.items()
    ]
    return found + [cell_result(record) for slug, record in records.items() if slug not in planned]


def _planned(described: Mapping[str, Any]) -> Cell:
    """Return a cell of a plan, whose description may be anything."""
    described = as_entries(described)
    _check_names(described)
    as_entries(described["settings"])
    return Cell.from_description(described)


def cell_result(record: Mapping[str, Any]) -> CellResult:
    """Return a finished cell.

    Raises:
        KeyError: An entry is missing.
        ValueError: The record is of another schema, or an entry is not what it must be; so does TypeError.
    """
    if record.get("schema") != SCHEMA:
        raise ValueError(f"it must be a record of schema {SCHEMA}; got {record.get('schema')!r}")
    _check_names(record)
    scores = as_entries(record["scores"])
    names = ("cell", "method", "title", "seed", "preset", "oracle", "validation_map", "selected_epoch")
    return CellResult(
        **{name: record[name] for name in names},
        scores={
            "test": ScoreTable.from_entries("scores.test", scores["test"]),
            "all": None if scores["all"] is None else ScoreTable.from_entries("scores.all", scores["all"]),
        },
        split=record["split"]["name"],
        sources=tuple(record["split"]["sources"]),
        target=record["split"]["target"],
        status="done",
        epochs=typed("epochs_run", record["epochs_run"], int),
        wall_seconds=typed("wall_seconds", record["wall_seconds"], int, float),
        splits=as_entries(record["splits"]),
        vocabulary=texts("vocabulary", record["vocabulary"]),
        record=record,
    )


def _check_names(described: Mapping[str, Any]) -> None:
    """Check what names a cell: names become folders, so each must stay in the results folder."""
    split = as_entries(described["split"])
    for name in (described["cell"], described["method"], described["preset"], split["name"]):
        require_plain(name)
    texts("split.sources", split["sources"])
    typed("split.target", split["target"], str)
    typed("title", described["title"], str)
    typed("seed", described["seed"], int)
    typed("oracle", described.get("oracle", False), bool)


def _named_in(line: bytes) -> str | None:
    """Return the cell that a damaged line of the records is about, if its beginning is whole."""
    found = re.search(rb'"cell": "([^"\\]+)"', line)
    return found[1].decode(errors="replace") if found else None


def _unfinished(results: Path, cell: Cell, damaged: list[DamagedFileError] | None) -> CellResult:
    folder = results / cell.slug
    status: Status = "missing"
    error = None
    if is_claimed(results, cell.slug):
        status = "running"
    elif (folder / FAILURE).exists():
        status, error = "failed", f"'{folder / FAILURE}' is damaged"
        with left_out(damaged), reading(folder / FAILURE, within=results):
            error = typed("error", read_json(folder / FAILURE, within=results)["error"], str)
    return replace(planned_result(cell), status=status, epochs=_epochs(folder), error=error)


def planned_result(cell: Cell) -> CellResult:
    """Return the state of a cell that was never begun."""
    split = cell.split
    names = (cell.slug, cell.method, cell.title, split.name, split.sources, split.target)
    return CellResult(*names, cell.seed, cell.preset, cell.oracle, record=cell.describe())


def _epochs(folder: Path) -> int:
    """Count the epochs of a run in progress by the lines of its metrics."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0
