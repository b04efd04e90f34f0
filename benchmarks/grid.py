"""Throughput of the benchmark's runner: two workers on two cores against one worker that owns one core.

    python benchmarks/grid.py [--quick] [--rounds N]

Prints cells per hour of both, their ratio (target: at least 1.7), and what the runner costs per cell beyond training
(target: under 2 s). Rounds of the two alternate, so that a change in the machine's speed hits both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from ldstyle.benchmark.execution.local import LocalExecutor
from ldstyle.benchmark.execution.runner import run_cells
from ldstyle.benchmark.grid.cells import Cell, make_cells, make_splits
from ldstyle.benchmark.grid.imagery import DataLocation, find_location, prepare_location
from ldstyle.benchmark.grid.methods import load_methods
from ldstyle.benchmark.grid.presets import load_preset
from ldstyle.benchmark.results.records import read_results
from ldstyle.data.synthetic import DOMAINS

METHODS = ("erm", "ld-efdmix-gc")
RATIO, OVERHEAD = 1.7, 2.0


class Measurement(NamedTuple):
    """One pass over a grid.

    Attributes:
        per_hour: Cells per hour.
        beyond_training: Seconds of a worker per cell that were not spent training.
        beyond_work: Seconds of a worker per cell that were spent neither training nor evaluating.
    """

    per_hour: float
    beyond_training: float
    beyond_work: float


def measure(folder: Path, *, workers: int, cells: int, steps: int) -> Measurement:
    """Run cells with workers of one thread each, after one cell per worker that is not timed."""
    location = find_location("synthetic", preset=load_preset("smoke"), cache_dir=folder / "cache")
    prepare_location(location)
    grid = _cells(location, seeds=range(cells), steps=steps)
    results = Path(tempfile.mkdtemp(dir=folder))
    with _Lasting(workers=workers, threads=1) as executor:
        run_cells(
            _cells(location, seeds=range(100, 100 + workers), steps=2),
            results=results,
            location=location,
            executor=executor,
        )
        began = time.perf_counter()
        summary = run_cells(grid[:cells], results=results, location=location, executor=executor)
        seconds = time.perf_counter() - began
        executor.close()
    if len(summary.done) != cells:
        raise RuntimeError(f"{cells} cells should have been run; {len(summary.done)} were: {summary.failed}")
    records = [cell.record for cell in read_results(results) if cell.cell in summary.done]
    training = statistics.fmean(record["wall_seconds"] for record in records)
    evaluation = statistics.fmean(record["evaluation_seconds"] for record in records)
    busy = seconds * workers / cells
    return Measurement(3600 * cells / seconds, busy - training, busy - training - evaluation)


class _Lasting(LocalExecutor):
    """An executor whose workers live on between runs, so that imports are not timed."""

    def __exit__(self, *_: object) -> None:
        """Keep the workers."""

    def close(self) -> None:
        """End the workers."""
        super().__exit__()


def _cells(location: DataLocation, *, seeds: range, steps: int) -> list[Cell]:
    schedule = {"optimizer": {"epochs": 3, "steps_per_epoch": steps}}
    methods, splits = load_methods(METHODS), make_splits(DOMAINS, ["s1"])
    return make_cells(
        methods, splits, list(seeds), preset=load_preset("smoke"), data=location.settings(), edits=schedule
    )


def measure_apart(folder: Path, *, workers: int, cells: int, steps: int) -> Measurement:
    """Measure in a process of its own that may use as many cores as there are workers."""
    command = [sys.executable, __file__, "--measure", str(workers), "--cells", str(cells), "--steps", str(steps)]
    done = subprocess.run([*command, "--folder", str(folder)], stdout=subprocess.PIPE, check=True, text=True)
    return Measurement(*json.loads(done.stdout))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=12, help="cells per round")
    parser.add_argument("--steps", type=int, default=40, help="steps per epoch, of three epochs")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.measure])
        found = measure(options.folder, workers=options.measure, cells=options.cells, steps=options.steps)
        print(json.dumps(found))
        return
    rounds, cells, steps = (1, 4, 15) if options.quick else (options.rounds, options.cells, options.steps)
    with tempfile.TemporaryDirectory() as folder:
        pairs = [
            [measure_apart(Path(folder), workers=workers, cells=cells, steps=steps) for workers in (1, 2)]
            for _ in range(rounds)
        ]
    ratio = statistics.median(two.per_hour / one.per_hour for one, two in pairs)
    for name, column in (("1 worker, 1 core", 0), ("2 workers, 2 cores", 1)):
        per_hour, training, work = (statistics.median(pair[column][i] for pair in pairs) for i in range(3))
        print(f"{name:<20}{per_hour:8.0f} cells/h   beyond training {training:5.2f} s, and evaluation {work:5.2f} s")
    worst = max(statistics.median(pair[column].beyond_training for pair in pairs) for column in (0, 1))
    print(f"ratio {ratio:.2f} (target {RATIO}), overhead per cell {worst:.2f} s (target below {OVERHEAD} s)")


if __name__ == "__main__":
    main()
