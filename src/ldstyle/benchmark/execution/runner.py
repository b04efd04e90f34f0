"""Runs the missing cells of a grid: claims them, hands them to an executor, and records the outcomes."""

from __future__ import annotations

import getpass
import secrets
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from filelock import FileLock

from ldstyle.benchmark.execution.cell_run import STORE, Job, Outcome, cell_config
from ldstyle.benchmark.grid.cells import Cell
from ldstyle.benchmark.grid.imagery import DataLocation
from ldstyle.benchmark.results.cell import CellResult
from ldstyle.benchmark.results.data import check_data, known_data
from ldstyle.benchmark.results.reading import DamagedFileError
from ldstyle.benchmark.results.records import (
    FAILURE,
    RECORDS,
    RESULT,
    append_record,
    cell_result,
    claim,
    collect_strays,
    is_claimed,
    read_plans,
    read_records,
    read_results,
    write_failure,
)
from ldstyle.files import replace_file, replace_text
from ldstyle.runs.folder import has_trained
from ldstyle.runs.interruption import Interruption
from ldstyle.runs.settings import list_differences

ATTEMPTS = 3
"""Workers that a cell may lose before it counts as failed: one that exhausts the memory would take all of them."""

POLL_SECONDS = 0.5


class Executor(Protocol):
    """Who runs cells. Leaving its context ends all of its workers."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def free(self) -> int:
        """Return how many more cells can be taken now."""

    def submit(self, job: Job) -> None:
        """Begin a cell."""

    def wait(self, seconds: float) -> list[Outcome]:
        """Return what has ended, waiting at most so long for something to end."""

    def interrupt(self) -> None:
        """Ask all workers to save their state and stop; may be called again."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a cell.

    Attributes:
        kind: ``started``; ``done``; ``failed``; ``lost`` and to be taken up again; ``stopped`` on request; ``taken`` by
            another process.
        cell: The cell.
        text: More about it.
    """

    kind: Literal["started", "done", "failed", "lost", "stopped", "taken"]
    cell: Cell
    text: str = ""


Report: TypeAlias = Callable[[Event], None]


@dataclass
class Summary:
    """How a run of a grid ended, in names of cells.

    Attributes:
        skipped: Done before.
        done: Done now.
        failed: Why each failed.
        elsewhere: In the hands of another process.
        left: Not done because of a request to stop.
        damaged: Files that cannot be read and were left out, each with the reason.
    """

    skipped: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    damaged: list[DamagedFileError] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 if nothing failed, 1 if something did or a file is damaged, 130 after a request to stop."""
        return 130 if self.left else int(bool(self.failed or self.damaged))


def run_cells(
    cells: Sequence[Cell], *, results: Path, location: DataLocation, executor: Executor, report: Report | None = None
) -> Summary:
    """Run the cells that are not done yet, whatever was begun of them before.

    A cell that fails is noted and the others continue; one whose worker is lost starts again. Ctrl-C and SIGTERM let
    the workers save their state.

    Args:
        cells: The cells.
        results: Folder of results, shared by all processes that work on the grid.
        location: Where the data are.
        executor: Who runs them.
        report: Called with each event.
    """
    return _Run(cells, results.absolute(), location, executor, report or (lambda event: None)).run()


def check_settings(cells: Sequence[Cell], results: Path) -> None:
    """Refuse cells that the results folder has with other settings, so that a table never mixes the two.

    A cell of which nothing was trained, such as one that failed at its start, takes on the new settings.
    """
    known = {cell.slug: cell for cell in read_plans(results)}
    done = read_records(results)
    for cell in cells:
        found = known[cell.slug].differences(cell) if cell.slug in known else {}
        folder = results / cell.slug
        begun = cell.slug in done or is_claimed(results, cell.slug) or has_trained(folder) or (folder / RESULT).exists()
        if not found or not begun:
            continue
        again = "" if cell.slug in done else f", or delete '{folder}' to begin it again"
        raise ValueError(
            f"'{results}' holds {cell.slug} with other settings; choose another --results{again}:\n"
            f"{list_differences(found)}"
        )


def check_grid_data(cells: Sequence[Cell], results: Path, location: DataLocation) -> None:
    """Refuse cells that are not done if their data are not those of the finished ones, before anything is trained."""
    done = read_records(results)
    checked = set()
    for cell in [cell for cell in cells if done and cell.slug not in done]:
        data = cell_config(cell, location, results / cell.slug).data
        if (key := (cell.preset, cell.split.target, data)) not in checked:
            check_data(cell, data, known_data(map(cell_result, done.values()), preset=cell.preset))
            checked.add(key)


class _Run:
    def __init__(
        self, cells: Sequence[Cell], results: Path, location: DataLocation, executor: Executor, report: Report
    ) -> None:
        self._results, self._location, self._executor, self._report = results, location, executor, report
        results.mkdir(parents=True, exist_ok=True)
        self._store = _store_token(results)
        damaged: list[DamagedFileError] = []
        collect_strays(results, damaged=damaged)
        done = read_records(results)
        self._todo = deque(cell for cell in cells if cell.slug not in done)
        self._summary = Summary(skipped=[cell.slug for cell in cells if cell.slug in done], damaged=damaged)
        self._flying: dict[str, tuple[Cell, FileLock]] = {}
        self._lost: Counter[str] = Counter()
        self._taken: list[Cell] = []

    def run(self) -> Summary:
        with self._executor, Interruption() as interruption:
            try:
                while (self._todo or self._flying) and not interruption.requested:
                    self._start()
                    self._settle()
                    if not self._todo and not self._flying:
                        self._retake()
                while self._flying:
                    self._executor.interrupt()
                    self._settle()
            finally:
                for _, held in self._flying.values():
                    held.release()
        self._summary.left += [cell.slug for cell in self._todo]
        self._summary.elsewhere += [cell.slug for cell in self._taken]
        repaired = {self._results / cell / RESULT for cell in self._summary.done}
        self._summary.damaged = [one for one in self._summary.damaged if one.path not in repaired]
        if (self._results / RECORDS).exists():
            read_results(self._results, damaged=self._summary.damaged)
        return self._summary

    def _start(self) -> None:
        room = self._executor.free()
        if not room and not self._flying:  # e.g. before a cluster's first node is up
            time.sleep(POLL_SECONDS)
        for _ in range(min(room, len(self._todo))):
            cell = self._todo.popleft()
            held = claim(self._results, cell.slug)
            if held is None:
                self._taken.append(cell)
                self._report(Event("taken", cell, "another process runs it"))
            elif cell.slug in read_records(self._results):
                self._summary.skipped.append(cell.slug)
                held.release()
            else:
                self._flying[cell.slug] = cell, held
                known = known_data(map(cell_result, read_records(self._results).values()), preset=cell.preset)
                self._executor.submit(
                    Job(cell, self._location, str(self._results), self._store, self._scratch(), known)
                )
                self._report(Event("started", cell))

    def _settle(self) -> None:
        for outcome in self._executor.wait(POLL_SECONDS) if self._flying else ():
            cell, held = self._flying.pop(outcome.cell)
            try:
                self._conclude(cell, outcome)
            finally:
                held.release()

    def _conclude(self, cell: Cell, outcome: Outcome) -> None:
        match outcome.kind:
            case "done":
                assert outcome.record is not None
                _unpack(self._results / cell.slug, outcome.files)
                append_record(self._results, outcome.record)
                (self._results / cell.slug / FAILURE).unlink(missing_ok=True)
                self._summary.done.append(cell.slug)
                self._report(Event("done", cell, _score(cell_result(outcome.record))))
            case "stopped":
                self._summary.left.append(cell.slug)
                self._report(Event("stopped", cell, outcome.error))
            case "lost" if self._lost[cell.slug] + 1 < ATTEMPTS:
                self._lost[cell.slug] += 1
                self._todo.appendleft(cell)
                self._report(Event("lost", cell, outcome.error))
            case "failed" | "lost":
                write_failure(self._results, cell, error=outcome.error, trace=outcome.trace)
                self._summary.failed[cell.slug] = outcome.error
                self._report(Event("failed", cell, outcome.error))

    def _retake(self) -> None:
        """Look after the cells that other processes had taken: some are done by now, some given up."""
        done = read_records(self._results)
        self._summary.skipped += [cell.slug for cell in self._taken if cell.slug in done]
        waiting = [cell for cell in self._taken if cell.slug not in done]
        self._taken = []
        for cell in waiting:
            held = claim(self._results, cell.slug)
            if held is None:
                self._taken.append(cell)
            else:
                held.release()
                self._todo.append(cell)

    def _scratch(self) -> str:
        return str(Path(tempfile.gettempdir(), f"ldstyle-{getpass.getuser()}", self._store))


def _score(result: CellResult) -> str:
    """Return the score that tables compare: of the whole target, or of its test part if the rest was trained on."""
    for part, what in {"all": "", "test": " of the test part"}.items():
        if (found := result.score("map", part)) is not None:
            return f"mAP {100 * found:.1f}{what}, {result.wall_seconds or 0:.0f} s"
    return f"no mAP, {result.wall_seconds or 0:.0f} s"


def _unpack(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files that a worker sent, ``result.json`` included; each appears whole or not at all."""
    for name, content in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"A worker may send files of its cell only; got {name!r}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda file, content=content: file.write(content))  # type: ignore[misc]


def _store_token(results: Path) -> str:
    path = results / STORE
    with FileLock(results / f"{STORE}.lock"):
        if not path.exists():
            replace_text(path, secrets.token_hex(8))
        return path.read_text(encoding="utf-8")
