"""``ldstyle search`` end to end on drawn scenes: killed, resumed, and nothing that was finished is lost."""

from __future__ import annotations

import multiprocessing
import time

import optuna
import pytest

from ldstyle.benchmark.grid.methods import load_method
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.search.objective import is_spent
from ldstyle.benchmark.search.running import PRELOADED
from ldstyle.benchmark.search.storage import open_storage
from ldstyle.cli import main
from ldstyle.data.synthetic import DOMAINS, write_scenes

PROCESSES = multiprocessing.get_context("forkserver")
PATIENCE = 240  # seconds, on a machine that is busy otherwise
TINY = ["optimizer.epochs=1", "optimizer.steps_per_epoch=1", "optimizer.batch_size=4"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("scenes"), per_domain=30, size=48, workers=1)


@pytest.fixture
def command(scenes, tmp_path):
    options = ["--preset", "smoke", "--data", str(scenes), "--cache", str(tmp_path / "cache"), "--set", *TINY]
    budget = ["--shared-trials", "6", "--trials", "6", "--out", str(tmp_path / "search")]
    return ["search", "--method", "ld-efdmix", "--sources", *DOMAINS[:2], *options, *budget]


def trials(out):
    storage = open_storage(out)
    found = {}
    for summary in optuna.get_all_study_summaries(storage):
        study = optuna.load_study(study_name=summary.study_name, storage=storage)
        found[summary.study_name.rpartition("/")[2]] = [trial for trial in study.trials if is_spent(trial)]
    return found


def count(found):
    return sum(map(len, found.values()))


def test_a_search_of_two_processes_is_killed_and_resumed_without_losing_a_finished_trial(command, tmp_path, capfd):
    out = tmp_path / "search"
    PROCESSES.set_forkserver_preload(PRELOADED)
    workers = [PROCESSES.Process(target=main, args=(command,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + PATIENCE
    while count(trials(out)) < 4 and time.monotonic() < deadline and all(worker.is_alive() for worker in workers):
        time.sleep(0.2)
    for worker in workers:
        worker.kill()
        worker.join()
    before = {name: {trial.number: trial.value for trial in found} for name, found in trials(out).items()}
    assert 4 <= sum(map(len, before.values())) < 12, capfd.readouterr().err

    assert main([*command, "--workers", "2"]) == 0
    after = trials(out)
    assert {name: len(found) for name, found in after.items()} == {"shared": 6, "ld-efdmix": 6}
    for name, finished in before.items():
        kept = {trial.number: trial.value for trial in after[name]}
        assert kept.items() >= finished.items()
    written = capfd.readouterr().out.splitlines()
    assert written == [str(out / name) for name in ("ld-efdmix.yaml", "shared-history.png", "ld-efdmix-history.png")]
    best = max(after["ld-efdmix"], key=lambda trial: trial.value)
    selected = load_method(written[0]).settings
    assert selected["style"]["attention"]["temperature"] == best.params["style.attention.temperature"]
    assert not list((out / "runs").iterdir())


def test_the_cost_comes_first_and_a_dry_run_ends_there(command, tmp_path, capsys):
    assert main([*command, "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    # Twelve trials of two folds, one step each.
    assert "6 shared + 6 ld-efdmix, 2 runs each: 24 runs, at most 24 steps" in shown.err
    assert not (tmp_path / "search" / "shared.yaml").exists()


def test_steps_of_the_estimate_follow_from_the_training_parts(command, capsys):
    whole = [option.replace("steps_per_epoch=1", "steps_per_epoch=null") for option in command]
    assert main([*whole, "--dry-run"]) == 0
    # 24 of 30 scenes and as many copies are 48 samples: 12 steps of 4 in each of 24 runs.
    assert f"at most {24 * 12} steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--method", "ld-efdmx"], "There is no method 'ld-efdmx'"),
        (["--sources", DOMAINS[0]], "at least two different domains"),
        (["--set", "epochs"], "--set takes KEY=VALUE"),
        (["--storage", "nonsense"], "--storage must be the URL of a database"),
        (["--set", "seed=[1"], "--set takes KEY=VALUE"),
        (["--set", "accelerator=warp"], "got accelerator = 'warp'"),
    ],
)
def test_a_mistake_ends_with_one_line(command, changed, message, capsys):
    assert main([*command, *changed]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_help_lists_all_presets(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["search", "--help"])
    assert ", ".join(PRESETS) in " ".join(capsys.readouterr().out.split())
