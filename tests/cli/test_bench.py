from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from ldstyle.benchmark.cells import make_splits
from ldstyle.benchmark.methods import load_methods
from ldstyle.benchmark.places import search_folder
from ldstyle.benchmark.records import read_results
from ldstyle.cli import main
from ldstyle.cli.bench_options import parse_edits, parse_seeds, parse_shard, read_selected

ERM, BAD, ORACLE = (f"smoke-{name}-s1-seed0" for name in ("erm", "bad", "oracle"))
EPOCHS = 6


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
        *("--set", "keep_epochs=true", f"optimizer.epochs={EPOCHS}"),
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
            time.sleep(0.01)
        seen.append([cell.status for cell in read_results(folder)])
        os.kill(os.getpid(), signal.SIGTERM)

    cutter = threading.Thread(target=cut)
    cutter.start()
    code = main(["bench", "run", *options])
    cutter.join()
    return folder, code, seen[0], metrics.read_text()


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
    *cells, last = capsys.readouterr().out.splitlines()
    assert [line.split() for line in cells] == [["done", ERM], ["failed", BAD], ["missing", ORACLE]]
    assert last.startswith("2 of 3 cells to run with 1 at a time: about ")


def test_the_same_command_goes_on_where_it_was_cut(results, options, capsys):
    folder, _, _, before = results
    assert main(["bench", "run", *options]) == 1
    said = capsys.readouterr().err
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


def test_a_cell_run_again_gives_the_very_record_even_if_it_was_cut(results, capsys):
    folder = results[0]
    seed = next(seed for seed in range(9) if _chosen(folder, seed) == ORACLE)
    assert main(["bench", "verify", "--results", str(folder), "--seed", str(seed)]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 cells: tables rebuilt from the predictions are the recorded ones" in said
    assert f"{ORACLE}: equal" in said


def test_verify_finds_a_record_that_was_altered(results, tmp_path, capsys, monkeypatch):
    lines = [json.loads(line) for line in (results[0] / "records.jsonl").read_text().splitlines()]
    truth = {line["cell"]: dict(line) for line in lines}
    for line in lines:
        line["validation_map"] += 0.125
    for name in truth:
        (tmp_path / name).symlink_to(results[0] / name)
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr("ldstyle.benchmark.verify.run_again", lambda _, cell: truth[cell.cell])
    verify = ["bench", "verify", "--results", str(tmp_path)]
    assert main(verify) == 1
    assert "largest difference 0.125" in capsys.readouterr().out
    assert main([*verify, "--tolerance", "0.2"]) == 0
    for path in (results[0] / ORACLE).glob("predictions-*.safetensors"):
        (tmp_path / ORACLE).unlink()
        (tmp_path / ORACLE).mkdir()
        (tmp_path / ORACLE / path.name).write_bytes((results[0] / ERM / path.name).read_bytes())
        (tmp_path / ORACLE / "parts.json").symlink_to(results[0] / ORACLE / "parts.json")
    assert main([*verify, "--tolerance", "0.2"]) == 1
    assert f"{ORACLE}: the predictions do not give the recorded scores.test." in capsys.readouterr().out


def _chosen(folder, seed):
    from ldstyle.benchmark.verify import choose_cell

    return choose_cell(read_results(folder), seed=seed).cell


def test_other_settings_need_another_results_folder(results, options, capsys):
    assert main(["bench", "run", *options[:-1], "optimizer.epochs=3"]) == 2
    assert f"optimizer.epochs: {EPOCHS} there, 3 now" in capsys.readouterr().err


def test_own_domains_make_their_own_splits(tmp_path, capsys, monkeypatch):
    table = tmp_path / "mine.csv"
    table.write_text("path,domain,tree\n" + "".join(f"{d}{i}.png,{d},1\n" for d in "xyz" for i in range(3)))
    arguments = ["bench", "run", "--methods", "erm", "--seeds", "3,5", "--dry-run", "--results", str(tmp_path / "r")]
    assert main([*arguments, "--data", str(table), "--splits", "y", "s3", "--shard", "2/2"]) == 0
    cells = [line.split()[1] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert cells == ["paper-erm-s3-seed3", "paper-erm-s3-seed5"]
    monkeypatch.delenv("LDSTYLE_DATA", raising=False)
    assert main(arguments) == 2
    assert "Data are needed: --data DIR, --data TABLE.csv, --data synthetic" in capsys.readouterr().err
    assert main([*arguments, "--data", str(tmp_path / "gone")]) == 2
    assert "There are no data" in capsys.readouterr().err


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
