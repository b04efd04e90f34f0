"""Tiny grids for tests: cells without training, records made by hand, and workers that misbehave on request."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from ldstyle.benchmark.execution.cell_run import Job, Outcome
from ldstyle.benchmark.execution.local import LocalExecutor
from ldstyle.benchmark.execution.runner import run_cells
from ldstyle.benchmark.grid.cells import Cell, Split, take_shard
from ldstyle.benchmark.grid.imagery import DataLocation

SPLIT = Split("s1", ("meadow", "harbour"), "city")
LOCATION = DataLocation(root="/nowhere", cache_dir="/nowhere")


def cell(method: str = "erm", *, seed: int = 0, split: Split = SPLIT, epochs: int = 2, preset: str = "smoke") -> Cell:
    settings = {"data": {"root": "/nowhere", "sources": list(split.sources)}, "optimizer": {"epochs": epochs}}
    return Cell(method, method.upper(), split, seed, preset, settings)


def cells(count: int) -> list[Cell]:
    return [cell(seed=seed) for seed in range(count)]


def record(one: Cell, *, score: float = 0.5, seconds: float = 10.0) -> dict[str, Any]:
    table = {"map": score, "ap": {"tree": score}, "cf1": 0.4, "of1": 0.3}
    described = {key: value for key, value in one.describe().items() if key != "settings"}
    return {
        "schema": 1,
        **described,
        "scores": {"test": table, "all": table},
        "validation_map": 0.8,
        "selected_epoch": 2,
        "epochs_run": 2,
        "wall_seconds": seconds,
        "evaluation_seconds": 1.0,
        "splits": {"city": "abc"},
        "vocabulary": ["tree"],
        "thresholds": {"tree": 0.5},
    }


def succeed(job: Job) -> Outcome:
    """Note in the results folder that the cell was run, and be done."""
    with Path(job.results, "ran.txt").open("a") as file:
        file.write(f"{job.cell.slug}\n")
    return Outcome(job.cell.slug, "done", record(job.cell))


def misbehave(job: Job) -> Outcome:
    """Do what the cell's method says: be killed (always, or the first time), fail, dawdle, or succeed."""
    begun = Path(job.results, f"{job.cell.slug}.begun")
    first = not begun.exists()
    begun.write_text(str(os.getpid()))
    match job.cell.method:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "killed-once" if first:
            os.kill(os.getpid(), signal.SIGKILL)
        case "failing":
            return Outcome(job.cell.slug, "failed", error="ValueError: no\nluck", trace="Traceback ...")
        case "dawdling":
            return _dawdle(job)
    return succeed(job)


def _dawdle(job: Job) -> Outcome:
    from ldstyle.runs.interruption import Interruption

    with Interruption() as interruption:
        Path(job.results, f"{job.cell.slug}.ready").write_text(str(os.getppid()))
        for _ in range(1200):
            time.sleep(0.05)
            if interruption.requested:
                return Outcome(job.cell.slug, "stopped", error="saved")
    return succeed(job)


class InlineExecutor:
    """Runs each cell in this process when it is waited for."""

    def __init__(self, work: Any = succeed, *, slots: int = 2) -> None:
        self.work, self.slots = work, slots
        self.jobs: deque[Job] = deque()
        self.entered = self.interrupted = 0

    def __enter__(self) -> InlineExecutor:
        self.entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.entered -= 1

    def free(self) -> int:
        return self.slots - len(self.jobs)

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, seconds: float) -> list[Outcome]:
        return [self.work(self.jobs.popleft())]

    def interrupt(self) -> None:
        self.interrupted += 1


def run_shard(results: Path, shard: int, shards: int) -> None:
    """Run a shard of 24 cells, slowly enough for another process to be at work at the same time."""

    def slowly(job: Job) -> Outcome:
        time.sleep(0.02)
        return succeed(job)

    executor = InlineExecutor(slowly)
    run_cells(take_shard(cells(24), shard, shards), results=results, location=LOCATION, executor=executor)


def dawdle_in_a_worker(results: Path) -> None:
    """Run a cell that takes long in a worker of its own."""
    # Before there is anything to be imported beforehand, which would take long.
    forkserver.ensure_running()
    executor = LocalExecutor(workers=1, work=misbehave)
    run_cells([cell("dawdling")], results=results, location=LOCATION, executor=executor)
