"""Workers on this machine: long-lived processes that share its cores, and its GPUs if there are any."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Self

import torch

from ldstyle.benchmark.execution.cell_run import Job, Outcome, attempt
from ldstyle.workers import end_with_parent

PRELOADED = ["ldstyle.training.loop", "ldstyle.evaluation.evaluate", "timm"]
"""What workers need and takes long to import; it is imported once, before they are forked."""

START_ATTEMPTS = 3

_SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers() -> int:
    """Return one worker per GPU, or without one a worker per core."""
    return torch.cuda.device_count() or available_cores()


def default_threads(workers: int) -> int:
    """Return the number of cores per worker, or ``$OMP_NUM_THREADS`` if that is less."""
    threads = max(1, available_cores() // workers)
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads, int(limit)) if limit.isdecimal() and int(limit) else threads


def worker_context() -> BaseContext:
    """Choose how processes start: forked from a server that holds the imports, where there is such a thing.

    Forking this process itself could hang the child, since torch runs threads; the server runs a single one.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # or the server's start would start it, and unblock signals on the way
    with _environment(_SINGLE_THREADED):
        # Schedulers send SIGTERM to all processes of a job. A server that ends takes no worker along, but nobody could
        # tell any more whether they live; it inherits that the signal is blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def start_process(
    context: Callable[[], BaseContext], target: Callable[..., object], arguments: tuple[object, ...]
) -> BaseProcess:
    """Start a process that ends with this one; if the server that forks them was killed meanwhile, start that again.

    Raises:
        ChildProcessError: The server was killed again and again.
    """
    for _ in range(START_ATTEMPTS):
        process: BaseProcess = context().Process(target=target, args=arguments, daemon=True)  # type: ignore[attr-defined]
        try:
            process.start()
        except (EOFError, ConnectionError) as error:
            problem = error
        else:
            return process
    raise ChildProcessError(
        f"No worker could be started: the server that forks them ended {START_ATTEMPTS} times ({problem!r}). Is there "
        "enough memory? The same command runs what is missing."
    )


class _Worker:
    """A process and the connection to it; ``cell`` is the cell it works on."""

    def __init__(self, work: Callable[[Job], Outcome], *, threads: int, device: int | None) -> None:
        self.line, far = multiprocessing.Pipe()
        self.process = start_process(worker_context, _serve, (far, work, threads, device))
        far.close()
        self.cell: str | None = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal if the worker lives.

        The line tells, since it ends with the worker; the process object asks the server that forked it, and would
        call a worker dead whose server was killed.
        """
        if not self.line.poll():
            with suppress(ProcessLookupError):
                os.kill(self.process.pid or 0, number)

    def stop(self) -> None:
        if self.process.pid:
            self.send(getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has the latter only, which kills
        self.process.kill()
        self.process.join()
        self.line.close()


class LocalExecutor:
    """Runs cells in processes on this machine.

    A worker lives as long as the executor, so what it imports is paid for once. One that dies is replaced.

    Args:
        workers: Number of processes.
        threads: Threads of each; by default the cores divided by the workers.
        work: What a worker does; a function that a fresh process can import.
    """

    def __init__(self, *, workers: int, threads: int | None = None, work: Callable[[Job], Outcome] = attempt) -> None:
        if workers < 1:
            raise ValueError(f"`workers` must be at least 1; got {workers}.")
        self.threads = threads or default_threads(workers)
        self._work = work
        # Whoever narrowed down the devices has decided for all workers.
        self._devices = 0 if "CUDA_VISIBLE_DEVICES" in os.environ else torch.cuda.device_count()
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
        if worker is not None and worker.line.poll():  # it sends nothing unasked, so it has ended
            worker.stop()
            worker = None
        if worker is None:
            device = slot % self._devices if self._devices else None
            worker = self._workers[slot] = _Worker(self._work, threads=self.threads, device=device)
        worker.cell = job.cell.slug
        worker.line.send(job)

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcomes that have come in, waiting at most so long for the first."""
        busy = {slot: worker for slot, worker in enumerate(self._workers) if worker is not None and worker.cell}
        wait([worker.line for worker in busy.values()], seconds)  # ready also when the worker has ended
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
            if worker is not None and worker.cell is not None:
                worker.send(signal.SIGTERM)


def _received(worker: _Worker) -> Outcome | None:
    """Return the outcome that a worker sent, a lost outcome, or ``None`` while it is at work."""
    assert worker.cell is not None
    try:
        if not worker.line.poll():
            return None
        outcome: Outcome = worker.line.recv()
        return outcome
    except (EOFError, ConnectionResetError):
        worker.process.join()
    return Outcome(worker.cell, "lost", error=f"its worker ended with exit code {worker.process.exitcode}")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for processes that are started inside: numerical libraries read them when they are imported."""
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


def _serve(line: Connection, work: Callable[[Job], Outcome], threads: int, device: int | None) -> None:
    """Run the cells that come in, until the line or the parent is gone."""
    # A run that trains notes these signals itself and saves its state; at all other times there is nothing to save,
    # and Ctrl-C reaches this process as well as its parent, who decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    end_with_parent()
    torch.set_num_threads(threads)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    while True:
        try:
            job = line.recv()
        except EOFError:
            return
        line.send(work(job))
