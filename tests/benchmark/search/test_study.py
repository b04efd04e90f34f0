"""A search finds the best settings on the sources alone, and loses nothing that was finished."""

from __future__ import annotations

import ast
import multiprocessing
import os
import re
import runpy
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from matplotlib import pyplot
from optuna.trial import TrialState
from tests.benchmark.search.searching import cheap_score, cheap_search, trials_of

from ldstyle.benchmark.grid.methods import load_method
from ldstyle.benchmark.search import running
from ldstyle.benchmark.search import study as study_module
from ldstyle.benchmark.search.objective import fold_config, held_out_map, is_spent
from ldstyle.benchmark.search.running import PRELOADED
from ldstyle.benchmark.search.spaces import Integers
from ldstyle.benchmark.search.storage import (
    JOURNAL,
    MAX_RETRIES,
    WORKER,
    is_alive,
    open_storage,
    reclaim,
    retry,
    retry_history,
    signed_in,
)
from ldstyle.benchmark.search.study import method_phase, open_study, shared_phase, study_name, take_part, write_plots
from ldstyle.data.loading.splits import leave_one_source_out
from ldstyle.runs import model_file
from ldstyle.runs.settings import load_config

SCRIPT = Path(__file__).with_name("searching.py")
PROCESSES = multiprocessing.get_context("forkserver")
PATIENCE = 240  # seconds, on a machine that is busy otherwise


def quietly(_line: str) -> None:
    pass


def search(config, score=cheap_score):
    return take_part(config, score=score, say=quietly)


def values(config, phase="shared"):
    return [trial.value for trial in trials_of(config, phase) if trial.state is TrialState.COMPLETE]


def test_a_trials_score_is_the_mean_over_the_sources_left_out(tmp_path):
    config = cheap_search(tmp_path)
    selected = search(config)
    trials = [trial for trial in trials_of(config) if trial.state is TrialState.COMPLETE]
    for trial in trials:
        folds = trial.user_attrs["folds"]
        assert folds["a"] == pytest.approx(folds["b"] + 0.2)
        assert trial.value == pytest.approx((folds["a"] + folds["b"]) / 2)
    best = max(trials, key=lambda trial: trial.value)
    method = load_method(str(selected))
    assert method.settings["optimizer"]["head_lr"] == best.params["optimizer.head_lr"]
    assert f"mAP {100 * best.value:.2f} in trial {best.number} of 6" in selected.read_text()


def test_a_methods_own_parameters_are_searched_with_the_shared_ones_fixed(tmp_path):
    config = cheap_search(tmp_path, method="ld-efdmix-gc")
    seen = []

    def score(run, fold):
        seen.append((run.method, run.optimizer.head_lr, run.style))
        return cheap_score(run, fold)

    selected = load_method(str(search(config, score))).settings
    best = max(trials_of(config), key=lambda trial: trial.value or 0)
    own = [(rate, style) for method, rate, style in seen if method == "ld-efdmix-gc"]
    assert {rate for rate, _ in own} == {best.params["optimizer.head_lr"]} == {selected["optimizer"]["head_lr"]}
    assert len({style for _, style in own}) == 4
    assert all(style is None for method, _, style in seen if method == "erm")
    chosen = max(trials_of(config, "ld-efdmix-gc"), key=lambda trial: trial.value or 0).params
    assert selected["style"]["operator"]["top_ratio"] == chosen["style.operator.top_ratio"]
    assert selected["style"]["attention"]["refresh_every"] == chosen["style.attention.refresh_every"]
    assert "+".join(map(str, selected["stages"])) == chosen["stages"]


def test_a_second_method_reuses_the_shared_trials(tmp_path):
    search(cheap_search(tmp_path, method="mixstyle"))
    methods = []

    def score(run, fold):
        methods.append(run.method)
        return cheap_score(run, fold)

    search(cheap_search(tmp_path, method="efdmix"), score)
    assert set(methods) == {"efdmix"}


def test_a_method_without_parameters_of_its_own_gets_the_shared_ones(tmp_path):
    selected = search(cheap_search(tmp_path, method="swad"))
    assert selected.name == "swad.yaml"
    settings = load_method(str(selected)).settings
    # The preset's schedule lies over the method's, as it did in the trials.
    assert settings["swad"] == {"n_converge": 1, "n_tolerance": 2, "tolerance_ratio": 0.3, "evaluate_every": 2}
    assert set(settings["optimizer"]) == {"backbone_lr", "head_lr", "weight_decay"}


@pytest.mark.parametrize("sources", [("a", "b"), ("a", "b", "c")])
def test_no_run_names_the_source_it_is_scored_on(tmp_path, sources):
    config = cheap_search(tmp_path, sources=sources)
    folds = []
    for fold in config.folds:
        run = fold_config(shared_phase(config).settings, fold, tmp_path / "run")
        assert fold.held_out not in run.data.sources
        assert run.data.pseudo_domain == (len(sources) == 2)
        folds.append(fold.held_out)
    assert tuple(folds) == sources
    assert config.folds == leave_one_source_out(sources)


def test_labels_the_fold_did_not_train_are_left_out_of_its_score(trained, monkeypatch):
    run = trained("erm")
    config, model = load_config(run / "config.yaml"), model_file.load_model(run)

    def score(labels):
        untrained = tuple(name for name in model.vocabulary if name not in labels)
        monkeypatch.setattr(model_file, "load_model", lambda _: replace(model, untrained_labels=untrained))
        return held_out_map(config, "region")

    alone = [score([label]) for label in ("tree", "building")]
    assert alone[0] != alone[1]
    assert score(["tree", "building"]) == pytest.approx(sum(alone) / 2)
    with pytest.raises(ValueError, match=r"validation part of 'region' .* suburb, harbour"):
        score([])


def test_a_finished_search_is_not_run_again(tmp_path):
    config = cheap_search(tmp_path)
    first = search(config)
    text = first.read_text()

    def score(run, fold):
        raise AssertionError("nothing was left to do")

    assert search(config, score).read_text() == text


def test_more_trials_can_be_added(tmp_path):
    search(cheap_search(tmp_path, shared_trials=3))
    before = values(cheap_search(tmp_path))
    search(cheap_search(tmp_path, shared_trials=5))
    after = values(cheap_search(tmp_path))
    assert len(before) == 3
    assert after[:3] == before
    assert len(after) == 5


def test_a_stopped_trial_is_taken_up_again_with_its_scored_folds(tmp_path):
    config = cheap_search(tmp_path)
    calls = []

    def stopping(run, fold):
        calls.append((run.optimizer.head_lr, fold.held_out))
        if len(calls) == 6:  # the second fold of the third trial
            raise KeyboardInterrupt
        return cheap_score(run, fold)

    with pytest.raises(KeyboardInterrupt):
        search(config, stopping)
    stopped = calls[-1][0]
    finished = {trial.number: trial.value for trial in trials_of(config) if is_spent(trial)}
    assert len(finished) == 2
    search(config, stopping)
    assert calls.count((stopped, "a")) == 1
    assert calls.count((stopped, "b")) == 2
    after = trials_of(config)
    assert {number: after[number].value for number in finished} == finished
    assert sum(map(is_spent, after)) == 6
    assert stopped in [trial.params["optimizer.head_lr"] for trial in after if is_spent(trial)]


def test_a_failing_trial_is_kept_with_its_reason_and_counts(tmp_path):
    config = cheap_search(tmp_path)
    calls = 0

    def score(run, fold):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ValueError("The loss became nan")
        return cheap_score(run, fold)

    search(config, score)
    trials = trials_of(config)
    assert [trial.state for trial in trials].count(TrialState.FAIL) == 1
    assert trials[1].user_attrs["error"] == "ValueError: The loss became nan"
    assert sum(map(is_spent, trials)) == len(trials) == 6


def test_a_search_ends_when_trial_after_trial_fails(tmp_path):
    def score(run, fold):
        raise FileNotFoundError("no data")

    with pytest.raises(ValueError, match="3 trials in a row failed; the last by FileNotFoundError: no data"):
        search(cheap_search(tmp_path), score)


def test_bad_trials_are_pruned_after_their_first_fold(tmp_path):
    config = cheap_search(tmp_path, shared_trials=30)
    second = []

    def score(run, fold):
        if fold.held_out == "b":
            second.append(run.optimizer.head_lr)
        return cheap_score(run, fold)

    search(config, score)
    trials = trials_of(config)
    pruned = [trial for trial in trials if trial.state is TrialState.PRUNED]
    assert pruned
    for trial in pruned:
        assert list(trial.user_attrs["folds"]) == ["a"]
        assert trial.params["optimizer.head_lr"] not in second
        others = [
            t.intermediate_values[0] for t in trials if t.state is TrialState.COMPLETE and t.number < trial.number
        ]
        assert trial.intermediate_values[0] < sorted(others)[len(others) // 2] + 1e-12
    assert sum(map(is_spent, trials)) == 30
    # The search closes in on the best learning rate, 1e-3.
    assert max(values(config)) > 0.78


def test_the_same_seed_searches_the_same_way_and_another_does_not(tmp_path):
    def params(folder, seed):
        config = cheap_search(tmp_path / folder, seed=seed, shared_trials=12)
        search(config)
        return [trial.params for trial in trials_of(config)]

    first = params("one", 0)
    assert first == params("two", 0)
    assert first != params("three", 1)
    assert len({tuple(drawn.values()) for drawn in first}) == 12


def test_a_study_with_other_settings_is_refused(tmp_path):
    search(cheap_search(tmp_path))
    other = cheap_search(tmp_path, edits={"optimizer": {"epochs": 9}})
    with pytest.raises(ValueError, match=r"other settings; choose another --out:\n  optimizer.epochs: 2 there, 9 now"):
        search(other)


def test_a_search_needs_two_sources_and_a_method_that_has_sources(tmp_path):
    with pytest.raises(ValueError, match="at least two different domains"):
        cheap_search(tmp_path, sources=("a",))
    with pytest.raises(ValueError, match="sources only; the oracle"):
        cheap_search(tmp_path, method="oracle")
    with pytest.raises(ValueError, match=r"at least one trial of the method, .* got 0 and 6"):
        cheap_search(tmp_path, trials=0)
    with pytest.raises(ValueError, match=r"nothing to search: 'erm' has no parameters of its own. Set --shared-trials"):
        cheap_search(tmp_path, shared_trials=0)


def test_a_search_may_keep_the_optimizer_and_take_some_parameters_only(tmp_path):
    chosen = ("style.gate_prob", "style.operator.top_ratio")
    config = cheap_search(tmp_path, method="ld-efdmix", shared_trials=0, parameters=chosen)
    rates = set()

    def score(run, fold):
        rates.add(run.optimizer.head_lr)
        return cheap_score(run, fold)

    selected = load_method(str(search(config, score))).settings
    trials = trials_of(config, "ld-efdmix")
    assert len(trials) == 4
    assert all(set(trial.params) == set(chosen) for trial in trials)
    assert rates == {method_phase(config, {}).settings["optimizer"]["head_lr"]}
    assert "optimizer" not in selected
    best = max(trials, key=lambda trial: trial.value or 0)
    assert selected["style"]["operator"]["top_ratio"] == best.params["style.operator.top_ratio"]
    assert not (config.out / "shared.yaml").exists()


def test_a_parameter_that_a_method_lacks_is_refused_with_those_it_has(tmp_path):
    config = cheap_search(tmp_path, method="efdmix", parameters=("style.bank_size",))
    with pytest.raises(ValueError, match=r"'efdmix' has no parameter 'style.bank_size' .* style.operator.alpha, "):
        search(config)


def begun(config, *, worker):
    """Begin a trial as a worker would, and leave it."""
    storage = open_storage(config.out)
    study = open_study(config, shared_phase(config), storage)
    trial = study.ask()
    trial.suggest_float("optimizer.head_lr", 1e-5, 5e-2, log=True)
    trial.set_user_attr(WORKER, worker)
    trial.set_user_attr("folds", {"a": 0.4})

    def again():
        return reclaim(study, storage, config.out, watched=set())

    return study, trial, again


def test_the_trial_of_a_dead_worker_is_failed_and_queued_again(tmp_path):
    config = cheap_search(tmp_path)
    study, trial, reclaimed = begun(config, worker="dead")
    assert reclaimed() == 1
    assert reclaimed() == 0
    cut, again = study.trials
    assert (cut.state, again.state) == (TrialState.FAIL, TrialState.WAITING)
    assert not is_spent(cut)
    assert again.user_attrs == {"folds": {"a": 0.4}}
    assert retry_history(again) == [0]
    search(config)
    done = trials_of(config)[1]
    assert done.params["optimizer.head_lr"] == trial.params["optimizer.head_lr"]
    assert done.user_attrs["folds"]["a"] == 0.4
    assert sum(map(is_spent, trials_of(config))) == 6


def test_the_trial_of_a_living_worker_is_left_alone(tmp_path):
    config = cheap_search(tmp_path)
    with signed_in(config.out) as worker:
        assert is_alive(config.out, worker)
        *_, reclaimed = begun(config, worker=worker)
        assert reclaimed() == 0
    assert not is_alive(config.out, worker)
    assert reclaimed() == 1


def test_a_trial_whose_workers_keep_dying_is_given_up(tmp_path):
    config = cheap_search(tmp_path)
    study, _, reclaimed = begun(config, worker="dead")
    for _ in range(MAX_RETRIES):
        assert reclaimed() == 1
        study.ask().set_user_attr(WORKER, "dead")
    assert reclaimed() == 1
    assert [trial.state for trial in study.trials] == [TrialState.FAIL] * (1 + MAX_RETRIES)


def test_a_trial_queued_again_by_two_workers_is_run_once(tmp_path):
    config = cheap_search(tmp_path)
    study, trial, reclaimed = begun(config, worker="dead")
    reclaimed()
    retry(study, study.trials[0])
    search(config)
    trials = [trial for trial in trials_of(config) if is_spent(trial)]
    assert len(trials) == 6
    assert [one.params["optimizer.head_lr"] for one in trials].count(trial.params["optimizer.head_lr"]) == 1


def test_workers_that_draw_the_same_values_do_not_share_a_run(tmp_path):
    """Few categories are drawn twice; the second waits, so that neither finds the other's files."""
    config = cheap_search(tmp_path, method="ld-mixstyle", shared_trials=0, trials=2, parameters=("style.bank_size",))
    study = open_study(config, method_phase(config, {}), open_storage(config.out, None))
    for _ in range(2):
        study.enqueue_trial({"style.bank_size": 64})
    at_work = set()

    def score(run, fold):
        assert run.out not in at_work
        at_work.add(run.out)
        time.sleep(0.2)
        at_work.remove(run.out)
        return cheap_score(run, fold)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: search(config, score), range(2)))
    assert [trial.state for trial in trials_of(config, "ld-mixstyle") if is_spent(trial)] == [TrialState.COMPLETE] * 2


def test_a_trial_stopped_while_it_waits_is_queued_again(tmp_path, monkeypatch):
    def stop(_lock, *_args, **_options):
        raise KeyboardInterrupt

    config = cheap_search(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("ldstyle.benchmark.search.objective.FileLock.acquire", stop)
        patch.setattr("ldstyle.benchmark.search.study.signed_in", lambda out: nullcontext("me"))
        with pytest.raises(KeyboardInterrupt):
            search(config)
    stopped, again = trials_of(config)
    assert (stopped.state, again.state) == (TrialState.FAIL, TrialState.WAITING)
    assert again.system_attrs["fixed_params"] == stopped.params


def test_a_source_of_any_name_is_held_out_within_the_folder_of_the_search(tmp_path):
    config = cheap_search(tmp_path, sources=("/elsewhere", "b"), shared_trials=1)
    folders = []

    def score(run, fold):
        folders.append(Path(run.out))
        return cheap_score(run, fold)

    search(config, score)
    assert len(folders) == 2
    assert all(folder.is_relative_to(config.out) for folder in folders)


KILLED_WHILE_WRITING = """
import os, signal
from pathlib import Path
import optuna
from ldstyle.benchmark.search.storage import open_storage
os.chdir(FOLDER)
storage = open_storage(Path("search"))
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
optuna.create_study(storage=storage, study_name="torn")
"""


def test_a_lock_left_by_a_killed_worker_is_broken_though_the_folder_is_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ldstyle.benchmark.search.storage.LOCK_SECONDS", 3)
    storage = open_storage(Path("search"))  # of another worker, which is at work already
    script = tmp_path / "worker.py"
    script.write_text(KILLED_WHILE_WRITING)
    PROCESSES.set_forkserver_preload(PRELOADED)
    process = PROCESSES.Process(target=runpy.run_path, args=(str(script), {"FOLDER": str(tmp_path)}), daemon=True)
    process.start()
    process.join(timeout=PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    assert os.path.lexists(tmp_path / "search" / f"{JOURNAL}.lock"), "it was killed while it held the lock"
    optuna.create_study(storage=storage, study_name="next")
    names = [one.study_name for one in optuna.get_all_study_summaries(open_storage(Path("search")))]
    assert set(names) <= {"torn", "next"}
    assert "next" in names


def test_a_dangling_lock_is_broken(tmp_path):
    link = tmp_path / f"{JOURNAL}.lock"
    link.symlink_to("search/journal.log")
    optuna.create_study(storage=open_storage(tmp_path), study_name="next")
    assert not link.is_symlink()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nonsense", "nonsense"),
        ("nonsense://user:secret@host/x", "nonsense://…@host/x"),
        ("sqlite:////no/such/folder/x.db", "sqlite:////no/such/folder/x.db"),
        ("", ""),
    ],
)
def test_an_address_that_is_no_database_is_a_clear_error(tmp_path, monkeypatch, url, shown):
    monkeypatch.setattr("ldstyle.benchmark.search.storage.time.sleep", lambda _: None)
    with pytest.raises(ValueError, match=rf"--storage .*got {re.escape(repr(shown))}") as caught:
        open_storage(tmp_path, url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("epochs", [1, 2, 6, 100])
def test_no_warm_up_is_as_long_as_the_training(tmp_path, epochs):
    config = cheap_search(tmp_path, method="ld-efdmix-gc", edits={"optimizer": {"epochs": epochs}})
    (warmup,) = [one for one in method_phase(config, {}).space if one.setting == "style.warmup_epochs"]
    assert warmup.range == Integers(0, min(10, epochs - 1))


def test_a_journal_torn_by_a_crash_loses_its_last_line_only(tmp_path):
    config = cheap_search(tmp_path, shared_trials=3)
    search(config)
    before = values(config)
    with (config.out / JOURNAL).open("ab") as file:
        file.write(b'{"op_code":4,"worker')
    search(cheap_search(tmp_path, shared_trials=4))
    assert values(config)[:3] == before
    assert len(values(config)) == 4


def start(folder, url, hang_in_fold):
    """Start a worker in a process that has its imports already: it is forked from a server that has them."""
    PROCESSES.set_forkserver_preload(PRELOADED)
    arguments = {"FOLDER": folder, "URL": url, "HANG_IN_FOLD": hang_in_fold}
    process = PROCESSES.Process(target=runpy.run_path, args=(str(SCRIPT), arguments, "__main__"), daemon=True)
    process.start()
    return process


def wait_for_spent(config, count, process):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.is_alive():
        try:
            if sum(map(is_spent, trials_of(config))) >= count:
                return
        except KeyError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{count} trials were not reached; the worker's exit code is {process.exitcode}")


def wait_for_fold(config, number):
    """Wait until a trial has its first fold behind it, and thus has given a sign of life."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if any(trial.number == number and trial.user_attrs.get("folds") for trial in trials_of(config)):
            return
        time.sleep(0.1)
    raise AssertionError(f"trial {number} did not get so far")


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_processes_share_a_study_and_lose_no_finished_trial_when_one_is_killed(tmp_path, kind):
    url = None if kind == "journal" else f"sqlite:///{tmp_path / 'search.db'}"
    config = cheap_search(tmp_path, storage=url, shared_trials=12)
    first = start(tmp_path, url, 8)  # hangs in the second fold of its fourth trial
    wait_for_spent(config, 3, first)
    wait_for_fold(config, 3)
    first.kill()
    first.join()
    finished = {trial.number: trial.value for trial in trials_of(config) if is_spent(trial)}
    others = [start(tmp_path, url, 0) for _ in range(2)]
    for process in others:
        process.join(timeout=PATIENCE)
        assert process.exitcode == 0
    trials = trials_of(config)
    assert {number: trials[number].value for number in finished} == finished
    assert sum(map(is_spent, trials)) == 12
    assert not [trial for trial in trials if not trial.state.is_finished()]
    drawn = [trial.params["optimizer.head_lr"] for trial in trials if is_spent(trial)]
    assert len(set(drawn)) == 12
    if kind == "journal":
        assert len({trial.user_attrs[WORKER] for trial in trials if is_spent(trial)}) >= 2


@pytest.mark.parametrize(("limit", "threads"), [(None, 4), ("1", 1), ("3", 3), ("16", 4), ("4,2", 4)])
def test_workers_share_the_cores_as_those_of_a_grid_do(tmp_path, monkeypatch, limit, threads):
    asked = []

    class Done:
        exitcode = 0

        def join(self) -> None: ...

    def start_process(_context, _target, arguments) -> Done:
        asked.append(arguments[1])
        return Done()

    monkeypatch.setattr(running, "start_process", start_process)
    monkeypatch.setattr(running, "take_part", lambda config: config.out)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: range(8), raising=False)
    if limit is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
    running.run_search(cheap_search(tmp_path), workers=2)
    assert asked == [threads, threads]


def test_a_worker_that_died_before_its_first_sign_of_life_does_not_hold_up_a_database(tmp_path):
    url = f"sqlite:///{tmp_path / 'search.db'}"
    config = cheap_search(tmp_path, storage=url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a trial asked for sends no heartbeat is the point
        open_study(config, shared_phase(config), open_storage(config.out, url)).ask()
    search(config)
    trials = trials_of(config)
    assert trials[0].state is TrialState.FAIL
    assert sum(map(is_spent, trials)) == 6


def test_workers_that_open_a_new_database_together_all_get_it(tmp_path):
    url = f"sqlite:///{tmp_path / 'new.db'}"
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(lambda _: open_storage(tmp_path, url), range(4)))
    assert {str(storage.engine.url) for storage in opened} == {url}


def test_workers_that_end_together_write_one_whole_file(tmp_path):
    config = cheap_search(tmp_path)
    text = search(config).read_text()
    with ThreadPoolExecutor(8) as threads:
        written = list(threads.map(lambda _: search(config), range(16)))
    assert {path.read_text() for path in written} == {text}


@pytest.fixture(scope="module")
def study():
    study = optuna.create_study(direction="maximize", study_name="known", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_float("matters", 0, 1) + 0 * trial.suggest_float("idle", 0, 1), 40)
    return study


def test_plots_are_files_of_their_own_and_importances_need_enough_trials(study, tmp_path):
    style = dict(pyplot.rcParams)
    few = optuna.create_study(direction="maximize")
    few.optimize(lambda trial: trial.suggest_float("x", 0, 1), 3)
    assert [path.name for path in write_plots(few, tmp_path, name="few")] == ["few-history.png"]
    written = write_plots(study, tmp_path, name="many")
    assert [path.name for path in written] == ["many-history.png", "many-importance.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    assert dict(pyplot.rcParams) == style
    assert pyplot.get_fignums() == []


def test_a_search_touches_no_private_names_of_optuna():
    """Attributes such as ``study._storage`` change without notice."""
    for path in Path(study_module.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        private = {name for name in named if name.startswith("_") and not name.startswith("__")}
        assert private <= {"_mean_over_folds", "_of", "_runs_in", "_seed"}, path.name
        modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        assert not any("._" in module for module in modules), path.name


def test_a_worker_whose_trial_was_given_up_by_others_continues(tmp_path):
    config = cheap_search(tmp_path, storage=f"sqlite:///{tmp_path / 'search.db'}")
    taken, said = [], []

    def score(run, fold):
        if not taken:  # as another worker does that has seen no sign of life
            (running,) = [trial for trial in trials_of(config) if not trial.state.is_finished()]
            name = study_name(config, "shared")
            study = optuna.load_study(study_name=name, storage=open_storage(config.out, config.storage))
            study.tell(running.number, state=TrialState.FAIL)
            taken.append(running.number)
        return cheap_score(run, fold)

    take_part(config, score=score, say=said.append)
    trials = trials_of(config)
    assert [trials[number].state for number in taken] == [TrialState.FAIL]
    assert sum(map(is_spent, trials)) == 6
    assert any("a trial was given up by another worker" in line for line in said)
