"""Workers on a Ray cluster: every cell a task, on whichever node has room."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from ldstyle.benchmark.execution.cell_run import Job, Outcome, attempt
from ldstyle.messages import first_line

GIVE_UP = 4
"""How many times as long as a connection may take an answer is waited for."""

_JOIN = """
import sys
import ray
print(flush=True)
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
ray.shutdown()
"""


class RayExecutor:
    """Runs cells as tasks of an existing Ray cluster.

    Every node needs this package and sees the data under the same path; missing synthetic scenes are written.
    Nodes that see the results folder write into it, and a cell that was lost with its node resumes elsewhere from its
    checkpoint. The others work in a scratch folder and send the files back; a lost cell then starts again.

    Args:
        address: Address of the cluster's head, ``host:port``, or ``auto`` on a machine that belongs to it.
        cpus: Cores per cell.
        gpus: GPUs per cell; by default 1 if the cluster has any, else 0.
        connect_seconds: Time the head has to take a connection, and after which a note reports that it does not
            answer. A head that does not answer for four times as long is given up.
    """

    def __init__(
        self,
        address: str = "auto",
        *,
        cpus: int = 1,
        gpus: float | None = None,
        connect_seconds: float = 15.0,
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise ValueError("The executor 'ray' needs the extra `ray`: install 'ldstyle[ray]'.") from error
        self._ray, self._address, self._cpus, self._gpus = ray, address, cpus, gpus
        self._connect_seconds = connect_seconds
        self._flying: dict[Any, str] = {}
        self._asked: set[Any] = set()

    def __enter__(self) -> Self:
        check_address(self._address, seconds=self._connect_seconds)
        require_answer(self._address, seconds=self._connect_seconds)
        self._ray.init(address=self._address, log_to_driver=False)
        if self._gpus is None:
            self._gpus = float(bool(self._ray.cluster_resources().get("GPU", 0)))
        # A node that is lost takes its cells along: the runner gives them out again, with their checkpoints. Workers of
        # GPU tasks end after each by default, and would import everything again for every cell.
        self._task = self._ray.remote(
            num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0, max_calls=0, scheduling_strategy="SPREAD"
        )(_attempt)
        return self

    def __exit__(self, *_: object) -> None:
        for reference in self._flying:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()

    def free(self) -> int:
        """Return how many more cells the nodes that are alive have room for."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return max(0, sum(map(self._room, alive)) - len(self._flying))

    def submit(self, job: Job) -> None:
        """Send a cell to the cluster."""
        self._flying[self._task.remote(job, self._cpus)] = job.cell.slug

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcomes that have come in, waiting at most so long for the first."""
        ready, _ = self._ray.wait(list(self._flying), num_returns=1, timeout=seconds)
        return [self._collect(reference, self._flying.pop(reference)) for reference in ready]

    def interrupt(self) -> None:
        """Ask the tasks to save their state and stop; a task that has not begun does not begin."""
        # Once each: a run notes the first request, and a second one would cut it short while it saves.
        for reference in self._flying.keys() - self._asked:
            self._ray.cancel(reference, force=False)
        self._asked |= self._flying.keys()

    def _room(self, resources: dict[str, float]) -> int:
        room = resources.get("CPU", 0) // self._cpus
        return int(min(room, resources.get("GPU", 0) // self._gpus) if self._gpus else room)

    def _collect(self, reference: Any, cell: str) -> Outcome:
        errors = self._ray.exceptions
        lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.OutOfMemoryError)
        try:
            outcome: Outcome = self._ray.get(reference)
        except errors.TaskCancelledError as error:
            return Outcome(cell, "stopped", error=first_line(error))
        except lost as error:
            return Outcome(cell, "lost", error=first_line(error))
        except errors.RayError as error:
            return Outcome(cell, "failed", error=first_line(error), trace=str(error))
        return outcome


def check_address(address: str, *, seconds: float) -> None:
    """Refuse an address at which nothing takes a connection; Ray itself would retry for minutes without a message.

    Raises:
        ConnectionError: Nothing answers.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto` and the like
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"No Ray cluster answers at {address!r} within {seconds:g} s: {error}. Start it by `ray start --head`, or "
            "correct --address; --connect-seconds waits longer."
        ) from None


def require_answer(address: str, *, seconds: float) -> None:
    """Refuse a cluster that takes the connection and does not answer; a separate process can be ended while it waits.

    Args:
        address: Address of the cluster.
        seconds: Time after which a note reports that there is no answer; it is given up after `GIVE_UP` times as long.

    Raises:
        ConnectionError: There is no answer, or the cluster cannot be joined.
    """
    limit = GIVE_UP * seconds
    waiting = f"The Ray cluster at {address!r} has not answered for {seconds:g} s; given up after {limit:g} s.\n"
    way_out = "Start it by `ray start --head`, or correct --address; --connect-seconds waits longer."
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen([sys.executable, "-c", _JOIN, address], stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        try:
            process.stdout.readline()  # Ray is imported, which may take its time and is not the cluster's
            with _said_after(seconds, waiting):
                failed = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise ConnectionError(
                f"A Ray cluster must answer within {limit:g} s; {address!r} took the connection and does not answer. "
                f"{way_out}"
            ) from None
        finally:
            process.kill()
        if failed:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or [f"exit code {failed}"])[-1]
            raise ConnectionError(f"The Ray cluster at {address!r} cannot be joined: {last} {way_out}")


@contextmanager
def _said_after(seconds: float, text: str) -> Iterator[None]:
    """Write a message to standard error if the block takes longer."""
    timer = threading.Timer(seconds, lambda: sys.stderr.write(text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _attempt(job: Job, threads: int) -> Outcome:
    import torch

    torch.set_num_threads(threads)
    return attempt(job)
