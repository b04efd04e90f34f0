"""Workers on this machine: long-lived processes that share its cores, and its GPUs if there are any."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Self

from ldstyle.benchmark.work import Job, Outcome, attempt

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers() -> int:
    """Return one worker per GPU, or without one a worker per core."""
    import torch

    return torch.cuda.device_count() or available_cores()


class _Worker:
    """A process and the line to it; ``cell`` is what it is at work on."""

    def __init__(self, work: Callable[[Job], Outcome], *, threads: int) -> None:
        # Forking a process that runs threads, as torch does, can hang the child.
        context = multiprocessing.get_context("spawn")
        self.line, far = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(far, work, threads), daemon=True)
        self.process.start()
        far.close()
        self.cell: str | None = None

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.line.close()


class LocalExecutor:
    """Runs cells in processes on this machine.

    A worker lives as long as the executor, so what it imports is paid for once. One that dies is replaced.

    Args:
        workers: Number of processes.
        threads: Threads of each; by default its share of the cores.
        work: What a worker does; a function that a fresh process can import.
    """

    def __init__(self, *, workers: int, threads: int | None = None, work: Callable[[Job], Outcome] = attempt) -> None:
        if workers < 1:
            raise ValueError(f"`workers` must be at least 1; got {workers}.")
        self.threads = threads or max(1, available_cores() // workers)
        self._work = work
        self._workers: list[_Worker | None] = [None] * workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.stop()
        self._workers = [None] * len(self._workers)

    def free(self) -> int:
        """Return how many workers are idle, or not yet started."""
        return sum(worker is None or worker.cell is None for worker in self._workers)

    def submit(self, job: Job) -> None:
        """Give a cell to an idle worker, and start one if none is."""
        slot = min(
            (slot for slot, worker in enumerate(self._workers) if worker is None or worker.cell is None),
            key=lambda slot: self._workers[slot] is None,
        )
        worker = self._workers[slot]
        if worker is not None and not worker.process.is_alive():
            worker.stop()
            worker = None
        if worker is None:
            with _environment(self._variables(slot)):
                worker = self._workers[slot] = _Worker(self._work, threads=self.threads)
        worker.cell = job.cell.slug
        worker.line.send(job)

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcomes that have come in, waiting at most so long for the first."""
        busy = {slot: worker for slot, worker in enumerate(self._workers) if worker is not None and worker.cell}
        wait([thing for worker in busy.values() for thing in (worker.line, worker.process.sentinel)], seconds)
        outcomes = []
        for slot, worker in busy.items():
            outcome = _received(worker)
            if outcome is not None:
                outcomes.append(outcome)
                worker.cell = None
                if outcome.kind == "lost":
                    worker.stop()
                    self._workers[slot] = None
        return outcomes

    def interrupt(self) -> None:
        """Ask the workers at work to save their state and stop."""
        for worker in self._workers:
            if worker is not None and worker.cell is not None and worker.process.is_alive():
                worker.process.terminate()

    def _variables(self, slot: int) -> dict[str, str]:
        import torch

        variables = dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        devices = torch.cuda.device_count()
        if devices and "CUDA_VISIBLE_DEVICES" not in os.environ:
            variables["CUDA_VISIBLE_DEVICES"] = str(slot % devices)
        return variables


def _received(worker: _Worker) -> Outcome | None:
    """Return what a worker sent, that it was lost, or ``None`` while it is at work."""
    assert worker.cell is not None
    try:
        if worker.line.poll():
            outcome: Outcome = worker.line.recv()
            return outcome
    except (EOFError, ConnectionResetError):
        pass
    else:
        if worker.process.is_alive():
            return None
    worker.process.join()
    return Outcome(worker.cell, "lost", error=f"its worker ended with exit code {worker.process.exitcode}")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a process that is started inside: torch reads them when it is imported."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(line: Connection, work: Callable[[Job], Outcome], threads: int) -> None:
    """Run the cells that come in, until the line or the parent is gone."""
    # A run that trains notes these signals itself and saves its state; at all other times there is nothing to save,
    # and Ctrl-C reaches this process as well as its parent, who decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    while True:
        try:
            job = line.recv()
        except EOFError:
            return
        line.send(work(job))


def _end_with_parent() -> None:
    """End this process with its parent, lest it trains on unseen when the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
