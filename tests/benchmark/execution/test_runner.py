from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.benchmark.grids import (
    LOCATION,
    InlineExecutor,
    cell,
    cells,
    dawdle_in_a_worker,
    misbehave,
    record,
    run_shard,
    succeed,
)

from ldstyle.benchmark.execution.cell_run import STORE, Job, Outcome, attempt, pack, sees_store
from ldstyle.benchmark.execution.local import (
    START_ATTEMPTS,
    LocalExecutor,
    available_cores,
    start_process,
    worker_context,
)
from ldstyle.benchmark.execution.ray import RayExecutor
from ldstyle.benchmark.execution.runner import ATTEMPTS, POLL_SECONDS, check_settings, run_cells
from ldstyle.benchmark.grid.cells import Split
from ldstyle.benchmark.grid.imagery import DataLocation
from ldstyle.benchmark.results.records import (
    FAILURE,
    RECORDS,
    append_record,
    claim,
    read_plans,
    read_records,
    read_results,
    write_failure,
    write_plan,
)


def run(grid, results, executor, events=None):
    report = None if events is None else (lambda event: events.append((event.kind, event.cell.slug)))
    return run_cells(grid, results=results, location=LOCATION, executor=executor, report=report)


def ran(results):
    path = results / "ran.txt"
    return Counter(path.read_text().split()) if path.exists() else Counter()


def test_what_is_done_is_skipped_and_the_rest_is_run_once(tmp_path):
    grid = cells(5)
    append_record(tmp_path, record(grid[1]))
    executor = InlineExecutor()
    summary = run(grid, tmp_path, executor)
    assert summary.skipped == [grid[1].slug]
    assert sorted(summary.done) == sorted(one.slug for one in grid if one is not grid[1])
    assert set(ran(tmp_path).values()) == {1}
    assert summary.exit_code == executor.entered == 0
    assert run(grid, tmp_path, InlineExecutor()).done == []
    assert set(read_records(tmp_path)) == {one.slug for one in grid}


def test_a_failing_cell_is_reported_and_tried_again_next_time(tmp_path):
    grid = [cell("failing"), cell("fine")]
    write_plan(tmp_path, grid)
    summary = run(grid, tmp_path, InlineExecutor(misbehave))
    assert (summary.exit_code, summary.done) == (1, [grid[1].slug])
    assert summary.failed == {grid[0].slug: "ValueError: no\nluck"}
    assert json.loads((tmp_path / grid[0].slug / FAILURE).read_text())["traceback"] == "Traceback ..."
    assert [one.status for one in read_results(tmp_path)] == ["failed", "done"]
    again = run(grid, tmp_path, InlineExecutor(succeed))
    assert (again.exit_code, again.done, again.skipped) == (0, [grid[0].slug], [grid[1].slug])
    assert [one.status for one in read_results(tmp_path)] == ["done", "done"]
    assert not (tmp_path / grid[0].slug / FAILURE).exists()


def test_data_changed_while_a_grid_runs_end_the_next_cell_before_it_trains(scenes, tmp_path):
    domains = ("suburb", "harbour", "region")
    settings = {
        "data": {"root": str(scenes), "sources": list(domains[:2]), "size": 32},
        "backbone": {"name": "test_resnet", "weights": "none"},
        "optimizer": {"epochs": 1, "steps_per_epoch": 1, "batch_size": 8},
    }
    grid = [replace(one, split=Split("s1", domains[:2], domains[2]), settings=settings) for one in cells(2)]

    def work(job):
        if job.cell.seed == 0:
            return Outcome(job.cell.slug, "done", {**record(job.cell), "data": {"region": "as it was then"}})
        return attempt(job)

    location = DataLocation(root=str(scenes), cache_dir=str(tmp_path / "cache"))
    write_plan(tmp_path, grid)
    summary = run_cells(grid, results=tmp_path, location=location, executor=InlineExecutor(work, slots=1))
    assert summary.done == [grid[0].slug]
    error = summary.failed[grid[1].slug]
    assert f"labels of 'region' are not those of {grid[0].slug}" in error
    assert not {"config.yaml", "metrics.jsonl", "last.ckpt"} & {
        path.name for path in (tmp_path / grid[1].slug).iterdir()
    }


def test_a_cell_in_other_hands_is_left_alone_and_taken_up_when_given_up(tmp_path):
    grid = cells(3)
    held = claim(tmp_path, grid[0].slug)
    events = []

    def give_up_meanwhile(job: Job) -> Outcome:
        if job.cell.seed == 2:
            held.release()
        return succeed(job)

    summary = run(grid, tmp_path, InlineExecutor(give_up_meanwhile, slots=1), events)
    assert events[0] == ("taken", grid[0].slug)
    assert summary.done == [grid[1].slug, grid[2].slug, grid[0].slug]
    assert summary.elsewhere == []


def test_a_cell_that_stays_in_other_hands_is_named(tmp_path):
    one, two = cells(2)
    held = claim(tmp_path, one.slug)
    summary = run([one, two], tmp_path, InlineExecutor())
    assert (summary.done, summary.elsewhere, summary.exit_code) == ([two.slug], [one.slug], 0)
    held.release()


def test_a_cell_that_another_process_finished_just_before_is_not_run(tmp_path):
    one, two = cells(2)

    def finish_both(job: Job) -> Outcome:
        append_record(Path(job.results), record(two))
        return succeed(job)

    summary = run([one, two], tmp_path, InlineExecutor(finish_both, slots=1))
    assert (summary.done, summary.skipped) == ([one.slug], [two.slug])
    assert ran(tmp_path) == {one.slug: 1}


def test_lost_cells_are_taken_up_again_a_few_times(tmp_path):
    grid = [cell("doomed"), cell("fine")]
    attempts = Counter()

    def lose(job: Job) -> Outcome:
        attempts[job.cell.method] += 1
        return Outcome(job.cell.slug, "lost", error="gone") if job.cell.method == "doomed" else succeed(job)

    events = []
    summary = run(grid, tmp_path, InlineExecutor(lose), events)
    assert attempts == {"doomed": ATTEMPTS, "fine": 1}
    assert Counter(events)["lost", grid[0].slug] == ATTEMPTS - 1
    assert (summary.failed, summary.done) == ({grid[0].slug: "gone"}, [grid[1].slug])


def test_a_request_to_stop_leaves_the_rest(tmp_path):
    grid = cells(4)

    def stop(job: Job) -> Outcome:
        if job.cell is grid[0]:
            signal.raise_signal(signal.SIGTERM)
        return Outcome(job.cell.slug, "stopped", error="saved")

    executor = InlineExecutor(stop)
    summary = run(grid, tmp_path, executor)
    assert sorted(summary.left) == sorted(one.slug for one in grid)
    assert (summary.exit_code, summary.done, executor.interrupted, executor.entered) == (130, [], 1, 0)
    assert claim(tmp_path, grid[0].slug) is not None


def test_other_settings_are_refused_before_anything_runs(tmp_path):
    write_plan(tmp_path, [cell(epochs=2)])
    (tmp_path / cell().slug).mkdir()
    (tmp_path / cell().slug / "last.ckpt").touch()
    check_settings([cell(epochs=2), cell("other")], tmp_path)
    with pytest.raises(
        ValueError, match=r"holds smoke-erm-s1-seed0 with other settings; .*\n  optimizer.epochs: 2 there, 3"
    ):
        check_settings([cell(epochs=3)], tmp_path)


def test_a_cell_of_which_nothing_was_trained_takes_on_other_settings(tmp_path):
    write_plan(tmp_path, [cell(epochs=2)])
    write_failure(tmp_path, cell(), error="RuntimeError: no GPU")
    check_settings([cell(epochs=3)], tmp_path)
    write_plan(tmp_path, [cell(epochs=3)])
    assert [found.settings["optimizer"]["epochs"] for found in read_plans(tmp_path)] == [3]
    write_plan(tmp_path, [cell(epochs=2)])  # and back
    assert [found.settings["optimizer"]["epochs"] for found in read_plans(tmp_path)] == [2]
    held = claim(tmp_path, cell().slug)
    with pytest.raises(ValueError, match=r"optimizer\.epochs: 2 there, 3"):
        check_settings([cell(epochs=3)], tmp_path)
    held.release()
    append_record(tmp_path, record(cell()))
    with pytest.raises(ValueError, match=r"choose another --results:\n  optimizer\.epochs: 2 there, 3"):
        check_settings([cell(epochs=3)], tmp_path)


def test_an_executor_without_room_is_asked_now_and_then(tmp_path, monkeypatch):
    """A cluster may have no node that is large enough yet."""
    pauses = []
    monkeypatch.setattr("ldstyle.benchmark.execution.runner.time.sleep", pauses.append)
    executor = InlineExecutor()
    room = [0, 0, 0]
    monkeypatch.setattr(executor, "free", lambda: room.pop() if room else executor.slots - len(executor.jobs))
    assert run(cells(1), tmp_path, executor).done == [cells(1)[0].slug]
    assert pauses == [POLL_SECONDS] * 3


def test_a_damaged_result_does_not_stop_a_grid_and_its_cell_is_run_again(tmp_path):
    grid = [*cells(2), cell("other")]
    write_plan(tmp_path, grid)
    for one in (grid[0], grid[2]):
        (tmp_path / one.slug).mkdir()
        (tmp_path / one.slug / "result.json").write_text("")
    summary = run(grid[:2], tmp_path, InlineExecutor())
    assert sorted(summary.done) == sorted(one.slug for one in grid[:2])
    assert [one.path for one in summary.damaged] == [tmp_path / grid[2].slug / "result.json"]
    assert summary.exit_code == 1


def test_files_sent_by_a_worker_are_put_into_the_cells_folder_and_nowhere_else(tmp_path):
    one = cell()

    def send(job: Job) -> Outcome:
        files = {"result.json": json.dumps(record(job.cell)).encode(), "evaluations/city.json": b"{}"}
        return Outcome(job.cell.slug, "done", record(job.cell), files=files)

    run([one], tmp_path, InlineExecutor(send))
    assert (tmp_path / one.slug / "evaluations" / "city.json").read_bytes() == b"{}"
    assert json.loads((tmp_path / one.slug / "result.json").read_text()) == record(one)

    def escape(job: Job) -> Outcome:
        return Outcome(job.cell.slug, "done", record(job.cell), files={"../../evil": b""})

    with pytest.raises(ValueError, match=r"files of its cell only; got '\.\./\.\./evil'"):
        run([cell("evil")], tmp_path, InlineExecutor(escape))


@pytest.mark.parametrize(
    ("whole", "part", "text"),
    [(0.5, 0.75, "mAP 50.0, 7 s"), ("none", 0.75, "mAP 75.0 of the test part, 7 s"), ("none", None, "no mAP, 7 s")],
)
def test_progress_shows_the_score_that_tables_compare(tmp_path, whole, part, text):
    one, details = cell(), []
    found = record(one, seconds=7.0)
    table = found["scores"]["test"]
    found["scores"] = {"test": {**table, "map": part}, "all": None if whole == "none" else {**table, "map": whole}}
    executor = InlineExecutor(lambda job: Outcome(job.cell.slug, "done", found))
    run_cells([one], results=tmp_path, location=LOCATION, executor=executor, report=details.append)
    assert [event.text for event in details if event.kind == "done"] == [text]


def test_a_worker_knows_whether_it_sees_the_results_folder(tmp_path):
    job = Job(cell(), LOCATION, str(tmp_path), store="abc")
    assert not sees_store(job)
    (tmp_path / STORE).write_text("abd")
    assert not sees_store(job)
    (tmp_path / STORE).write_text("abc")
    assert sees_store(job)
    for name in ("last.ckpt", "previous.ckpt", "spare.ckpt"):
        (tmp_path / name).touch()
    assert set(pack(tmp_path)) == {STORE}


def test_an_error_of_a_cell_is_an_outcome(tmp_path):
    outcome = attempt(Job(cell(), LOCATION, str(tmp_path)))
    assert (outcome.kind, outcome.cell) == ("failed", cell().slug)
    assert outcome.error.startswith("FileNotFoundError: There is no data folder '/nowhere'")
    assert "run_cell" in outcome.trace


def test_local_workers_survive_each_others_deaths_and_failures(tmp_path):
    grid = [cell("killed"), cell("killed-once"), cell("failing"), *cells(4)]
    executor = LocalExecutor(workers=2, work=misbehave)
    events = []
    summary = run(grid, tmp_path, executor, events)
    assert sorted(summary.done) == sorted(one.slug for one in grid[1:] if one.method != "failing")
    assert summary.failed[grid[0].slug] == "its worker ended with exit code -9"
    assert summary.failed[grid[2].slug] == "ValueError: no\nluck"
    assert Counter(events)["lost", grid[1].slug] == 1
    assert set(ran(tmp_path).values()) == {1}
    assert len((tmp_path / RECORDS).read_text().splitlines()) == len(summary.done)


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert LocalExecutor(workers=1).threads == available_cores()
    assert LocalExecutor(workers=64 * available_cores()).threads == 1
    assert LocalExecutor(workers=1, threads=5).threads == 5
    for limit, expected in (("1", 1), ("", available_cores()), ("4,2", available_cores()), ("999", available_cores())):
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
        assert LocalExecutor(workers=1).threads == expected
    with pytest.raises(ValueError, match=r"`workers` must be at least 1; got 0"):
        LocalExecutor(workers=0)


def test_local_workers_stop_on_request_and_their_cells_go_on_next_time(tmp_path):
    forkserver._forkserver._stop()  # one that other tests have started need not be deaf to signals
    grid = [cell("dawdling"), cell("waiting")]
    ready = tmp_path / f"{grid[0].slug}.ready"

    def ask() -> None:
        wait_until(lambda: ready.exists() and ready.read_text())
        # As a scheduler does: the process that the workers were forked from, and this one.
        for process in (int(ready.read_text()), os.getpid()):
            os.kill(process, signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    events = []
    summary = run(grid, tmp_path, LocalExecutor(workers=1, work=misbehave), events)
    asking.join()
    assert events == [("started", grid[0].slug), ("stopped", grid[0].slug)]
    assert (summary.left, summary.exit_code) == ([grid[0].slug, grid[1].slug], 130)
    assert run(grid, tmp_path, InlineExecutor()).exit_code == 0


def test_a_worker_whose_fork_server_was_killed_goes_on_and_stops_on_request(tmp_path):
    one = cell("dawdling")
    ready = tmp_path / f"{one.slug}.ready"
    with LocalExecutor(workers=1, work=misbehave) as executor:
        executor.submit(Job(one, LOCATION, str(tmp_path)))
        wait_until(lambda: ready.exists() and ready.read_text())
        os.kill(int(ready.read_text()), signal.SIGKILL)
        assert executor.wait(0.2) == []
        assert executor.free() == 0
        executor.interrupt()
        outcomes: list[Outcome] = []
        wait_until(lambda: outcomes.extend(executor.wait(1.0)) or outcomes)
        assert [(outcome.kind, outcome.error) for outcome in outcomes] == [("stopped", "saved")]
        executor.submit(Job(cell(), LOCATION, str(tmp_path)))
        wait_until(lambda: outcomes.extend(executor.wait(1.0)) or len(outcomes) == 2)
        assert outcomes[1].kind == "done"


class EndingServer:
    """A context whose fork server is killed while it starts the first processes."""

    def __init__(self, ends):
        self.ends = ends

    def __call__(self):
        return self

    def Process(self, **_):
        return self

    def start(self):
        self.ends -= 1
        if self.ends >= 0:
            raise EOFError("unexpected EOF")


def test_a_fork_server_that_is_killed_is_started_again_a_few_times():
    context = EndingServer(START_ATTEMPTS - 1)
    assert start_process(context, print, ()) is context
    with pytest.raises(ChildProcessError, match=rf"ended {START_ATTEMPTS} times .*unexpected EOF"):
        start_process(EndingServer(START_ATTEMPTS), print, ())


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"The executor 'ray' needs the extra `ray`: install 'ldstyle\[ray\]'"):
        RayExecutor()


def test_a_ray_address_that_nothing_answers_at_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=rf"'{address}' within 15 s: .*--address"), RayExecutor(address):
            pass


@pytest.fixture
def importable_ray(tmp_path, monkeypatch):
    """Put a package `ray` before the real one, for this process and those it starts; its ``init`` is the text given."""

    def put(init):
        (tmp_path / "first" / "ray").mkdir(parents=True)
        text = f"def init(address, **_):\n    {init}\n\n\ndef shutdown():\n    pass\n"
        (tmp_path / "first" / "ray" / "__init__.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'first'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())

    return put


def test_a_ray_address_that_takes_the_connection_and_stays_silent_ends_with_an_error(importable_ray, capfd):
    importable_ray("import socket; socket.create_connection(address.rsplit(':', 1)).recv(1)")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        silent = rf"must answer within 0\.8 s; '{address}' .*--address"
        with pytest.raises(ConnectionError, match=silent), RayExecutor(address, connect_seconds=0.2):
            pass
    assert f"'{address}' has not answered for 0.2 s; given up after 0.8 s" in capfd.readouterr().err


def test_a_ray_cluster_that_cannot_be_joined_is_refused_with_the_reason(importable_ray):
    importable_ray("raise RuntimeError('Version mismatch: 2.1 there, 2.2 here.')")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=rf"'{address}' cannot be joined: .*mismatch"), RayExecutor(address):
            pass


def start(target, *arguments):
    process = worker_context().Process(target=target, args=arguments)
    process.start()
    return process


def test_workers_of_a_killed_process_do_not_train_on(tmp_path):
    process = start(dawdle_in_a_worker, tmp_path)
    begun = tmp_path / f"{cell('dawdling').slug}.begun"
    wait_until(lambda: begun.exists() and begun.read_text())
    worker = Path("/proc", begun.read_text())
    assert worker.exists()
    process.kill()
    process.join()
    wait_until(lambda: not worker.exists())
    held = claim(tmp_path, cell("dawdling").slug)
    assert held is not None
    held.release()


def wait_until(holds, *, seconds=600):
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.mark.parametrize("shards", [((1, 2), (2, 2)), ((1, 1), (1, 1))], ids=["shards", "the same cells"])
def test_two_processes_at_once_share_a_results_folder(tmp_path, shards):
    processes = [start(run_shard, tmp_path, *shard) for shard in shards]
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert ran(tmp_path) == {one.slug: 1 for one in cells(24)}
    lines = (tmp_path / RECORDS).read_text().splitlines()
    assert Counter(json.loads(line)["cell"] for line in lines) == ran(tmp_path)
