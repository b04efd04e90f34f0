"""The work on one cell: train on the sources, evaluate on the target, and record both."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock

from ldstyle.benchmark.grid.cells import Cell
from ldstyle.benchmark.grid.imagery import DataLocation, prepare_location
from ldstyle.benchmark.results.data import KnownData, check_data
from ldstyle.benchmark.results.reading import DamagedFileError
from ldstyle.benchmark.results.records import CLAIM, RESULT, SCHEMA, read_result
from ldstyle.runs.checkpoint import LAST, PREVIOUS, SPARE

if TYPE_CHECKING:
    from ldstyle.runs.config import DataConfig, RunConfig
    from ldstyle.runs.record import RunRecord

STORE = ".store"
"""File in a results folder by which a worker recognizes that it sees the same folder as the process that sent it."""

PARTS = "parts.json"
TAKEOVER_SECONDS = 60.0
"""Time that a worker lost with its machine is given to be gone before another takes up its run."""

_CHECKPOINTS = (LAST, PREVIOUS, SPARE)
_LEFT_BEHIND = {CLAIM, *_CHECKPOINTS, ".lock", "work.lock"}


@dataclass(frozen=True)
class Job:
    """A cell with all that a worker needs to run it.

    Attributes:
        cell: The cell.
        location: Where the data are.
        results: The results folder.
        store: Content of the results folder's ``.store``.
        scratch: Folder to work in on a machine that does not see the results folder.
        known: What finished cells of the grid were trained and scored on; a cell of other data is refused.
    """

    cell: Cell
    location: DataLocation
    results: str
    store: str = ""
    scratch: str = ""
    known: KnownData = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a cell ended.

    Attributes:
        cell: Name of the cell.
        kind: ``done``; ``failed`` by an error of its own; ``lost`` with its worker; ``stopped`` on request.
        record: The record, if done.
        error: What went wrong, in one line.
        trace: Traceback of the error.
        files: The cell's files by relative path, if it was run where the results folder cannot be seen.
    """

    cell: str
    kind: Literal["done", "failed", "lost", "stopped"]
    record: dict[str, Any] | None = None
    error: str = ""
    trace: str = ""
    files: dict[str, bytes] = field(default_factory=dict, repr=False)


def attempt(job: Job) -> Outcome:
    """Run a cell and return its outcome; an error is an outcome, so that the other cells continue."""
    from ldstyle.runs.interruption import Interrupted

    shared = sees_store(job)
    folder = Path(job.results if shared else job.scratch) / job.cell.slug
    try:
        record = run_cell(job.cell, location=job.location, folder=folder, known=job.known)
    except Interrupted as stop:
        return Outcome(job.cell.slug, "stopped", error=str(stop))
    except Exception as error:  # noqa: BLE001 - whatever a method's run raises must not end the other cells
        text = f"{type(error).__name__}: {error}"
        return Outcome(job.cell.slug, "failed", error=text, trace=traceback.format_exc())
    return Outcome(job.cell.slug, "done", record, files={} if shared else pack(folder))


def sees_store(job: Job) -> bool:
    """Whether this machine sees the results folder of the process that sent the job."""
    path = Path(job.results, STORE)
    return not job.store or (path.is_file() and path.read_text(encoding="utf-8") == job.store)


def pack(folder: Path) -> dict[str, bytes]:
    """Return the files of a cell that are worth sending: all but locks and checkpoints."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in _LEFT_BEHIND]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def run_cell(cell: Cell, *, location: DataLocation, folder: Path, known: KnownData | None = None) -> dict[str, Any]:
    """Train a cell's model, or resume its training, and report on the target.

    Args:
        cell: The cell.
        location: Where the data are.
        folder: The cell's folder.
        known: See :class:`Job`.

    Returns:
        The record, as in ``result.json`` of the folder.
    """
    from ldstyle.evaluation.evaluate import evaluate
    from ldstyle.runs.weights import EPOCHS
    from ldstyle.training.loop import fit

    prepare_location(location)
    folder.mkdir(parents=True, exist_ok=True)
    config = cell_config(cell, location, folder)
    with FileLock(folder / "work.lock", timeout=TAKEOVER_SECONDS):
        # A missing or damaged record is written again from the run, without training.
        with suppress(DamagedFileError):
            return read_result(folder.parent, folder.name)
        check_data(cell, config.data, known or {})
        run = fit(config)
        began = time.monotonic()
        report = evaluate(folder, domain=cell.split.target)
        _write_parts(folder, cell, config.data, run.vocabulary)
        record = _record(cell, location, run, report, evaluation_seconds=time.monotonic() - began)
        _write(folder / RESULT, record)
        # Nothing resumes from here, and the checkpoints of a grid would outweigh all the rest of it.
        for name in _CHECKPOINTS:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / EPOCHS, ignore_errors=True)
    return record


def cell_config(cell: Cell, location: DataLocation, folder: Path) -> RunConfig:
    """Return the settings of a cell's run."""
    from ldstyle.runs.settings import config_from, merge

    runtime = {"out": str(folder), "quiet": True, "logger": "none", "data": {"cache_dir": location.cache_dir}}
    return config_from(merge(cell.settings, runtime))


def _record(
    cell: Cell, location: DataLocation, run: RunRecord, report: dict[str, Any], *, evaluation_seconds: float
) -> dict[str, Any]:
    import torch

    described = {key: value for key, value in cell.describe().items() if key != "settings"}
    return {
        "schema": SCHEMA,
        **described,
        "scores": report["scores"],
        "validation_map": run.scores["validation"]["map"],
        "selected_epoch": run.selected_epoch,
        "selected_warmup_weight": run.selected_warmup_weight,
        "selection": run.selection,
        "valley": run.valley,
        "epochs_run": run.epochs_run,
        "thresholds": run.thresholds,
        "splits": {**run.splits, report["domain"]: report["split_digest"]},
        "data": {**run.data, report["domain"]: report["data_digest"]},
        "vocabulary": list(run.vocabulary),
        "localization": report["localization"],
        "attention": report["attention"],
        "attention_parts": _attention_parts(run, report),
        "calibration": report["calibration"],
        "epochs": report["epochs"],
        "config": run.config,
        "place": asdict(location),
        "versions": run.versions,
        "git_commit": run.git_commit,
        "wall_seconds": run.wall_seconds,
        "evaluation_seconds": evaluation_seconds,
        "peak_memory_mb": run.peak_memory_mb,
        "machine": {"host": platform.node(), "threads": torch.get_num_threads(), "process": os.getpid()},
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _attention_parts(run: RunRecord, report: dict[str, Any]) -> dict[str, Any]:
    """Return how well maps find the labels on training, held-out and unseen images; only the means over labels."""
    from ldstyle.evaluation.attention.maps import all_sources

    parts = dict(run.attention or {})
    if report["domain"] not in run.sources:  # an oracle's target is a source
        parts["unseen"] = all_sources(report["localization"], report["attention"])
    return {
        part: {source: table["mean"] for source, table in tables.items()} for part, tables in parts.items() if tables
    }


def _write_parts(folder: Path, cell: Cell, data: DataConfig, vocabulary: tuple[str, ...]) -> None:
    """Write the keys of the target's test part, so that its table can be rebuilt from the predictions alone."""
    from ldstyle.data.loading.splits import split_domain
    from ldstyle.runs.sources import read_tables

    (table,) = read_tables(data, [cell.split.target], vocabulary=vocabulary, require_images=False)
    split = split_domain(table, seed=cell.seed)
    content = {"domain": table.domain, "digest": split.digest, "test": [table.keys[row] for row in split.test]}
    _write(folder / PARTS, content)


def _write(path: Path, content: dict[str, Any]) -> None:
    from ldstyle.files import replace_text

    replace_text(path, json.dumps(content, indent=1) + "\n")
