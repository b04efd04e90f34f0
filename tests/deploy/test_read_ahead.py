from __future__ import annotations

import threading
import time

import pytest

from ldstyle.deploy.read_ahead import read_ahead


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
