"""Worker processes end with the process that started them; threads read ahead in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ldstyle.workers import read_ahead

PARENT = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from ldstyle.workers import end_with_parent

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=end_with_parent) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_worker_ends_with_the_process_that_was_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    for _ in range(600):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        if _state(worker) == "Z":  # ended, and nobody collects it in a container without an init process
            return
        time.sleep(0.1)
    pytest.fail(f"worker {worker} still runs without its parent")


def _state(process: int) -> str:
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_results_come_in_order_whatever_finishes_first():
    def work(number):
        time.sleep(0.01 * (number % 3 == 0))
        return number**2

    assert list(read_ahead(work, range(20), workers=4, ahead=5)) == [number**2 for number in range(20)]


def test_work_goes_on_while_a_result_is_used_but_not_without_bound():
    started = []
    results = read_ahead(lambda number: started.append(number), range(100), workers=1, ahead=3)
    next(results)
    deadline = time.monotonic() + 5
    while len(started) < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert started == [0, 1, 2, 3]


def test_work_runs_in_other_threads():
    names = set(read_ahead(lambda _: threading.current_thread().name, range(4), workers=2, ahead=2))
    assert threading.current_thread().name not in names


def test_an_error_reaches_the_caller_and_the_rest_is_dropped():
    done = []

    def work(number):
        if number == 2:
            raise OSError("broken")
        done.append(number)
        return number

    with pytest.raises(OSError, match="broken"):
        list(read_ahead(work, range(1000), workers=1, ahead=2))
    assert len(done) < 10
