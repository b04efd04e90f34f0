from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import threading
import time
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from ldstyle.benchmark.execution.runner import Summary
from ldstyle.benchmark.grid.cells import make_cells, make_splits
from ldstyle.benchmark.grid.commands import run_command
from ldstyle.benchmark.grid.imagery import search_folder
from ldstyle.benchmark.grid.methods import load_methods
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.results.records import read_results
from ldstyle.cli import main
from ldstyle.cli.grid import parse_edits, parse_seeds, parse_shard, read_selected
from ldstyle.data.synthetic import DOMAINS

ERM, BAD, ORACLE = (f"smoke-{name}-s1-seed0" for name in ("erm", "bad", "oracle"))
EPOCHS = 40  # of some hundredths of a second: enough of them to cut a run between two on any machine


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    bad = folder / "bad.yaml"
    bad.write_text("style: {name: global, operator: {name: dsu}}\nstages: [99]\n")
    patch = pytest.MonkeyPatch()
    patch.setenv("LDSTYLE_CACHE", str(folder / "cache"))
    yield [
        *("--data", "synthetic", "--methods", "erm", str(bad), "oracle", "--splits", "s1", "--seeds", "1"),
        *("--preset", "smoke", "--workers", "1", "--threads", "1", "--results", str(folder / "results")),
        *("--set", "keep_epochs=true", f"optimizer.epochs={EPOCHS}", f"optimizer.patience={EPOCHS}"),
    ]
    patch.undo()


@pytest.fixture(scope="module")
def results(options):
    """A grid that was cut in the middle of a cell by SIGTERM, and what stood in that cell's metrics."""
    folder = Path(options[options.index("--results") + 1])
    metrics = folder / ORACLE / "metrics.jsonl"
    seen = []

    def cut() -> None:
        while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
            time.sleep(0.002)
        seen.append([cell.status for cell in read_results(folder)])
        os.kill(os.getpid(), signal.SIGTERM)

    cutter = threading.Thread(target=cut)
    cutter.start()
    code = main(["bench", "run", *options])
    cutter.join()
    return folder, code, seen[0], metrics.read_text()


@pytest.fixture(scope="module")
def finished(results, options):
    """The grid after the same command once more, its exit code and what it printed."""
    with redirect_stderr(io.StringIO()) as printed:
        code = main(["bench", "run", *options])
    return results[0], code, printed.getvalue()


def test_a_grid_that_is_cut_says_so_and_status_was_right_throughout(results, capsys):
    folder, code, meanwhile, _ = results
    assert code == 130
    assert meanwhile == ["done", "failed", "running"]
    assert [cell.status for cell in read_results(folder)] == ["done", "failed", "missing"]
    assert main(["bench", "status", "--results", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert f"✗ {BAD}  ValueError: " in shown
    assert "1 of 3 cells done, 1 failed, 1 cut" in shown


def test_a_dry_run_lists_the_cells_and_estimates_from_those_that_ran(results, options, capsys):
    assert main(["bench", "run", *options, "--dry-run"]) == 0
    split, *cells, last = capsys.readouterr().out.splitlines()
    assert split == f"s1: {DOMAINS[1]} + {DOMAINS[2]} → {DOMAINS[0]}"
    assert [line.split() for line in cells] == [["done", ERM], ["failed", BAD], ["missing", ORACLE]]
    assert last.startswith("2 of 3 cells to run with 1 at a time: about ")


def test_the_same_command_resumes_where_it_was_cut(results, finished):
    before = results[3]
    folder, code, said = finished
    assert code == 1
    assert f"[3/3] done    {ORACLE}  mAP " in said
    assert "1 done now, 1 done before, 1 failed" in said
    assert f"failed: {BAD}: ValueError: " in said
    rows = (folder / ORACLE / "metrics.jsonl").read_text().splitlines()
    assert rows[: before.count("\n")] == before.splitlines()
    assert len(rows) == EPOCHS
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert [line["cell"] for line in lines] == [ERM, ORACLE]
    erm, oracle = lines
    assert erm["config"]["data"]["sources"] == erm["split"]["sources"]
    assert oracle["config"]["data"]["sources"] == [oracle["split"]["target"]]
    assert set(erm["splits"]) == {*erm["split"]["sources"], erm["split"]["target"]}
    assert oracle["scores"]["all"] is None
    assert erm["scores"]["all"]["n"] > erm["scores"]["test"]["n"] == oracle["scores"]["test"]["n"]
    assert oracle["splits"].items() <= erm["splits"].items()
    assert not list(folder.glob(f"{ERM}/*.ckpt"))
    for line in lines:
        assert [row["epoch"] for row in line["epochs"]] == list(range(1, EPOCHS + 1))
        assert line["epochs"][line["selected_epoch"] - 1]["scores"] == line["scores"]
        assert not (folder / line["cell"] / "epochs").exists()


def test_a_cell_run_again_gives_the_very_record_even_if_it_was_cut(finished, capsys):
    folder = finished[0]
    seed = next(seed for seed in range(9) if _chosen(folder, seed) == ORACLE)
    assert main(["bench", "verify", "--results", str(folder), "--seed", str(seed)]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 cells: tables rebuilt from the predictions are the recorded ones" in said
    assert f"{ORACLE}: equal" in said


def test_verify_finds_a_record_that_was_altered(finished, tmp_path, capsys, monkeypatch):
    lines = [json.loads(line) for line in (finished[0] / "records.jsonl").read_text().splitlines()]
    truth = {line["cell"]: dict(line) for line in lines}
    for line in lines:
        line["validation_map"] += 0.125
    for name in truth:
        shutil.copytree(finished[0] / name, tmp_path / name)
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr("ldstyle.benchmark.results.verify.run_again", lambda cell, place, trust: truth[cell.cell])
    verify = ["bench", "verify", "--results", str(tmp_path)]
    assert main(verify) == 1
    assert "largest difference 0.125" in capsys.readouterr().out
    assert main([*verify, "--tolerance", "0.2"]) == 0
    for path in (finished[0] / ORACLE).glob("predictions-*.safetensors"):
        shutil.copyfile(finished[0] / ERM / path.name, tmp_path / ORACLE / path.name)
    assert main([*verify, "--tolerance", "0.2"]) == 1
    assert f"{ORACLE}: the predictions do not give the recorded scores.test." in capsys.readouterr().out


def test_damaged_files_are_named_and_the_exit_code_tells(finished, tmp_path, capsys, monkeypatch):
    records = [json.loads(line) for line in (finished[0] / "records.jsonl").read_text().splitlines()]
    truth = {record["cell"]: record for record in records}
    monkeypatch.setattr("ldstyle.benchmark.results.verify.run_again", lambda cell, place, trust: truth[cell.cell])
    shutil.copytree(finished[0], tmp_path / "copy")
    (predictions,) = (tmp_path / "copy" / ERM).glob("predictions-*.safetensors")
    predictions.write_bytes(b"torn")
    plan = tmp_path / "copy" / "plans" / "torn.json"
    plan.write_text("{")
    assert main(["bench", "verify", "--results", str(tmp_path / "copy")]) == 1
    said = capsys.readouterr()
    assert "1 of 2 cells: tables rebuilt" in said.out
    assert said.err.count("left out: ") == 2
    assert str(predictions) in said.err
    assert str(plan) in said.err
    (tmp_path / "copy" / BAD / "failure.json").unlink()
    assert main(["bench", "status", "--results", str(tmp_path / "copy")]) == 1
    said = capsys.readouterr()
    assert "2 of 3 cells done" in said.out
    assert f"left out: '{plan}'" in said.err


@pytest.mark.parametrize("kept", [True, False], ids=["options of the plan", "options derived from the cells"])
def test_the_command_that_adds_methods_to_a_grid_runs_as_printed(results, tmp_path, capsys, kept):
    folder = tmp_path / "a copy"
    shutil.copytree(results[0], folder)
    for path in folder.glob("plans/*.json") if not kept else ():
        content = json.loads(path.read_text())
        del content["options"]
        path.write_text(json.dumps(content))
    ldstyle, *words = shlex.split(run_command(folder, ["erm", "mixstyle"]))
    assert ldstyle == "ldstyle"
    assert main([*words, "--dry-run"]) == 0  # with other settings ERM would be refused
    _, erm, mixstyle, _ = capsys.readouterr().out.splitlines()
    assert (erm.split(), mixstyle.split()) == (["done", ERM], ["missing", "smoke-mixstyle-s1-seed0"])


def test_a_run_and_its_dry_run_name_every_split_and_every_domain_not_used(tmp_path, capsys, monkeypatch, layouts):
    monkeypatch.setattr("ldstyle.cli.grid.run_cells", lambda *_, **__: Summary())
    for name in ("ucm", "aid", "village"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "labels.csv").write_text("path,tree\na.png,1\n")
    arguments = ["bench", "run", "--methods", "erm", "--data", str(tmp_path), "--results", str(tmp_path / "r")]
    arguments += ["--preset", "smoke", "--seeds", "1"]
    assert main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if " → " in line] == [
        "s1: ucm + village → aid",
        "s2: aid + village → ucm",
        "s3: aid + ucm → village",
    ]
    assert main(arguments) == 0
    assert "s3: aid + ucm → village\n" in capsys.readouterr().err
    for name in ("ucm", "aid"):
        (tmp_path / name / "labels.csv").unlink()
    layouts.ucm(tmp_path / "first download")
    layouts.aid(tmp_path / "second download")
    assert main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if " → " in line] == ["s1: aid → ucm", "s2: ucm → aid"]
    assert "not used: village; --domains names the domains to use" in shown


def test_cells_of_other_data_are_refused_before_training(scenes, tmp_path, capsys, monkeypatch):
    root, results = tmp_path / "data", tmp_path / "results"
    shutil.copytree(scenes, root)
    common = ["--data", str(root), "--splits", "s1", "--seeds", "1", "--preset", "smoke", "--workers", "1"]
    common += ["--threads", "1", "--cache", str(tmp_path / "cache"), "--results"]
    assert main(["bench", "run", *common, str(results), "--methods", "erm"]) == 0
    monkeypatch.setattr("ldstyle.cli.grid.run_cells", lambda *_, **__: Summary())
    table = root / DOMAINS[1] / "labels.csv"
    before = table.read_text()
    header, *rows = before.splitlines()
    inverted = [f"{row[:-1]}{'10'[int(row[-1])]}" for row in rows]
    table.write_text("\n".join([header, *inverted]) + "\n")
    capsys.readouterr()
    both = ["--methods", "erm", "csu"]
    assert main(["bench", "run", *common, str(results), *both]) == 2
    said = capsys.readouterr().err
    assert f"labels of '{DOMAINS[1]}' are not those of {ERM}" in said
    assert "choose another --results" in said
    assert [cell.cell for cell in read_results(results)] == [ERM]
    assert main(["bench", "run", *common, str(tmp_path / "others"), *both]) == 0
    table.write_text(before)
    assert main(["bench", "run", *common, str(results), *both]) == 0


@pytest.mark.parametrize("accelerator", ["cuda", "gpu", "warp"])
def test_an_accelerator_that_is_not_there_is_refused_and_the_repaired_command_runs(
    tmp_path, capsys, monkeypatch, accelerator
):
    monkeypatch.setattr("lightning.fabric.accelerators.cuda.CUDAAccelerator.is_available", lambda *_: False)
    monkeypatch.setattr("lightning.fabric.accelerators.mps.MPSAccelerator.is_available", lambda *_: False)
    monkeypatch.setattr("ldstyle.cli.grid.run_cells", lambda *_, **__: Summary())
    table = tmp_path / "mine.csv"
    table.write_text("path,domain,tree\n" + "".join(f"{d}{i}.png,{d},1\n" for d in "xyz" for i in range(3)))
    arguments = ["bench", "run", "--methods", "erm", "--data", str(table), "--results", str(tmp_path / "r")]
    arguments += ["--preset", "smoke", "--set"]
    assert main([*arguments, f"accelerator={accelerator}"]) == 2
    assert f"got accelerator = '{accelerator}'" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    assert main([*arguments, "accelerator=cpu"]) == 0


def _chosen(folder, seed):
    from ldstyle.benchmark.results.verify import choose_cell

    return choose_cell(read_results(folder), seed=seed).cell


def test_other_settings_need_another_results_folder(results, options, capsys):
    assert main(["bench", "run", *options[:-1], "optimizer.epochs=3"]) == 2
    assert f"optimizer.epochs: {EPOCHS} there, 3 now" in capsys.readouterr().err


def test_own_domains_make_their_own_splits(tmp_path, capsys, monkeypatch):
    table = tmp_path / "mine.csv"
    table.write_text("path,domain,tree\n" + "".join(f"{d}{i}.png,{d},1\n" for d in "xyz" for i in range(3)))
    arguments = ["bench", "run", "--methods", "erm", "--seeds", "3,5", "--dry-run", "--results", str(tmp_path / "r")]
    assert main([*arguments, "--data", str(table), "--splits", "y", "s3", "--shard", "2/2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["s2: x + z → y", "s3: x + y → z"]
    cells = [line.split()[1] for line in shown[2:-1]]
    assert cells == ["paper-erm-s3-seed3", "paper-erm-s3-seed5"]
    monkeypatch.delenv("LDSTYLE_DATA", raising=False)
    assert main(arguments) == 2
    assert "Data are needed: --data DIR, --data TABLE.csv, --data synthetic" in capsys.readouterr().err
    assert main([*arguments, "--data", str(tmp_path / "gone")]) == 2
    assert "There are no data" in capsys.readouterr().err


def test_a_dry_run_needs_no_results_in_an_existing_folder(tmp_path, capsys):
    table = tmp_path / "mine.csv"
    table.write_text("path,domain,tree\n" + "".join(f"{d}{i}.png,{d},1\n" for d in "xyz" for i in range(3)))
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "complexity.json").write_text("{}")  # as `bench complexity --results` leaves it
    arguments = ["bench", "run", "--methods", "erm", "--seeds", "1", "--splits", "s1", "--dry-run"]
    assert main([*arguments, "--data", str(table), "--results", str(tmp_path / "r")]) == 0
    assert "1 of 1 cells to run" in capsys.readouterr().out


def test_selected_settings_are_read_by_method_and_split(tmp_path, capsys):
    table = tmp_path / "mine.csv"
    table.write_text("path,domain,tree\n" + "".join(f"{d}{i}.png,{d},1\n" for d in "xyz" for i in range(3)))
    arguments = ["bench", "run", "--methods", "ld-efdmix-gc", "--data", str(table), "--dry-run"]
    arguments += ["--results", str(tmp_path / "r")]
    assert main([*arguments, "--selected", "paper"]) == 0
    assert main([*arguments, "--selected", str(tmp_path)]) == 2
    assert "has no settings for this grid; expected e.g. 'ld-efdmix-gc-s1.yaml'" in capsys.readouterr().err
    assert main([*arguments, "--selected", str(tmp_path / "gone")]) == 2
    assert "There is no folder" in capsys.readouterr().err


def test_what_a_search_has_selected_is_found_by_the_splits_sources(tmp_path):
    splits = make_splits(("x", "y", "z"))
    methods = load_methods(["ld-csu", "erm"])
    searched = search_folder(tmp_path, "small", ("y", "z")) / "ld-csu.yaml"
    searched.parent.mkdir()
    searched.write_text("stages: [2]\n")
    (tmp_path / "erm-s2.yaml").write_text("optimizer: {epochs: 7}\n")
    found = read_selected(str(tmp_path), methods, splits, preset="small")
    assert found == {("ld-csu", "s1"): {"stages": [2]}, ("erm", "s2"): {"optimizer": {"epochs": 7}}}
    (tmp_path / "ld-csu-s1.yaml").write_text("stages: [1]\n")  # the nearer one counts
    assert read_selected(str(tmp_path), methods, splits, preset="small")["ld-csu", "s1"] == {"stages": [1]}
    assert ("ld-csu", "s1") not in read_selected("paper", load_methods(["ld-efdmix-gc"]), splits, preset="paper")


def test_a_method_with_additions_has_the_selected_settings_of_the_method_without(tmp_path):
    splits = make_splits(("x", "y", "z"))[:1]
    (tmp_path / "ld-csu-s1.yaml").write_text("style: {gate_prob: 0.3}\n")
    methods = load_methods(["ld-csu+coral+swad", "swad", "erm"])
    found = read_selected(str(tmp_path), methods, splits, preset="small")
    assert found == {("ld-csu+coral+swad", "s1"): {"style": {"gate_prob": 0.3}}}
    cells = make_cells(methods, splits, [0], preset=PRESETS["small"], data={"root": "x"}, selected=found)
    run = cells[0].settings
    assert (run["style"]["gate_prob"], run["algorithm"]["name"]) == (0.3, "coral")
    assert run["swad"] is not None
    (tmp_path / "ld-csu+coral-s1.yaml").write_text("algorithm: {weight: 2.0}\n")  # the nearest one counts
    found = read_selected(str(tmp_path), methods, splits, preset="small")
    assert found == {("ld-csu+coral+swad", "s1"): {"algorithm": {"weight": 2.0}}}


def test_seeds_are_a_number_or_a_list():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("4,0,4") == (4, 0)
    assert parse_seeds("7,") == (7,)


@pytest.mark.parametrize("text", ["0", "", "x", "1,-1"])
def test_no_seeds_are_refused(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "run", "--seeds", text])
    assert f"got {text!r}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b"])
def test_shards_out_of_range_are_refused(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "run", "--shard", text])
    assert f"must be I/N with 1 <= I <= N, e.g. 2/8; got {text!r}" in capsys.readouterr().err
    assert parse_shard("2/8") == (2, 8)


def test_settings_are_edited_by_dotted_names():
    found = parse_edits(
        ["optimizer.epochs=3", "optimizer.patience=2", "style.operator={name: dsu}", "precision=bf16-mixed"]
    )
    assert found == {
        "optimizer": {"epochs": 3, "patience": 2},
        "style": {"operator": {"name": "dsu"}},
        "precision": "bf16-mixed",
    }
    with pytest.raises(ValueError, match=r"--set takes KEY=VALUE, e\.g\. optimizer\.epochs=20; got 'x'"):
        parse_edits(["x"])


@pytest.mark.parametrize("value", ["[1", "{a: b", "!!python/name:os.system", "2020-99-99", "*x", "'"])
def test_a_value_that_is_no_yaml_is_a_clear_error(value):
    with pytest.raises(ValueError, match=rf"--set .*got {re.escape(repr(f'seed={value}'))}"):
        parse_edits([f"seed={value}"])
