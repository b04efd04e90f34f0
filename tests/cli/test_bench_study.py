"""``ldstyle bench ablations``, ``sensitivity`` and ``complexity``: what they would run, and the tables they print."""

from __future__ import annotations

import pytest
from rich.console import Console

from ldstyle.benchmark.complexity import count_macs
from ldstyle.benchmark.grid.presets import PRESETS
from ldstyle.benchmark.results.cell import CellResult, ScoreTable
from ldstyle.benchmark.results.view import Results
from ldstyle.benchmark.studies import ABLATIONS, SWEEPS, choose_sweeps
from ldstyle.cli import main
from ldstyle.cli.bench import ablation_table, sweep_table
from ldstyle.report.tables.cost import read_complexity
from ldstyle.runs.backbone import create_network


@pytest.fixture
def grid(tmp_path):
    return [
        "--data",
        "synthetic",
        "--preset",
        "smoke",
        "--cache",
        str(tmp_path),
        "--results",
        str(tmp_path / "results"),
    ]


def result(method: str, value: float, seed: int = 0) -> CellResult:
    scores = {"test": ScoreTable(value, {}, cf1=value, of1=value), "all": None}
    return CellResult(method, method, method, "s1", ("a",), "b", seed, "smoke", status="done", scores=scores)


def drawn(table) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_ablations_are_nine_rows_on_split_1(grid, capsys):
    assert main(["bench", "ablations", *grid, "--seeds", "2", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = [f"missing  smoke-{row.name}-s1-seed{seed}" for seed in (0, 1) for row in ABLATIONS]
    assert lines[0] == "s1: region + harbour → suburb"
    assert lines[1:-1] == expected
    assert lines[-1].startswith("18 of 18 cells to run")


def test_the_sweeps_run_once_at_their_own_seed(grid, capsys):
    assert main(["bench", "sensitivity", *grid, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) - 2 == sum(len(sweep.values) for sweep in SWEEPS)
    assert all(line.endswith("-s1-seed1000") for line in lines[1:-1])
    assert main(["bench", "sensitivity", *grid, "--dry-run", "--sweeps", "bank"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4 + 2


def test_a_sweep_at_a_main_seed_is_refused(grid, capsys):
    assert main(["bench", "sensitivity", *grid, "--seeds", "0,7"]) == 2
    assert "other than those of the main runs" in capsys.readouterr().err


def test_the_ablation_table_shows_changes_intervals_and_the_papers():
    results = [result("ld-efdmix-gc", 0.7 + 0.1 * seed, seed) for seed in range(3)]
    results += [result("ld-efdmix-gc.uniform", 0.6 + 0.05 * seed, seed) for seed in range(3)]
    lines = drawn(ablation_table(Results(results), split="s1")).splitlines()
    (row,) = [line for line in lines if "uniform map" in line]
    # Differences -0.10, -0.15 and -0.20; the interval of three values is spanned by them.
    assert row.split()[-5:] == ["-15.0", "-20.0", "…", "-10.0", "-2.6"]
    assert "65.0 ± 5.0" in row
    assert any("w/o warm-up" in line and "not requested: seeds 0, 1," in line for line in lines)


def test_the_sweep_table_shows_each_value():
    shown = drawn(sweep_table(Results([result("ld-mixstyle~bank=256", 0.5)]), choose_sweeps(["bank"])[0], split="s1"))
    assert all(f" {size} " in shown for size in (64, 128, 256, 512))
    assert "50.0" in shown


def test_complexity_stands_beside_the_papers_table_and_is_kept_for_the_report(capsys, tmp_path):
    options = ["--backbone", "test_resnet", "--size", "64", "--batch-size", "2", "--repeats", "1", "--device", "cpu"]
    assert main(["bench", "complexity", *options, "--results", str(tmp_path)]) == 0
    conditions, measured = read_complexity(tmp_path / "complexity.json")
    assert (conditions.backbone, conditions.size, conditions.batch_size) == ("test_resnet", 64, 2)
    assert all(row.throughput for row in measured.values())
    shown = capsys.readouterr().out
    assert "test_resnet, 64 px, batch 2 on cpu" in shown
    assert shown.count("4.087") == 3
    assert "+0.35" in shown


@pytest.mark.parametrize("preset", ["small", "study", "demo"])
def test_complexity_measures_the_network_that_a_preset_trains(preset, tmp_path):
    options = ["--preset", preset, "--num-labels", "5", "--repeats", "0", "--device", "cpu"]
    assert main(["bench", "complexity", *options, "--results", str(tmp_path)]) == 0
    conditions, measured = read_complexity(tmp_path / "complexity.json")
    settings = PRESETS[preset].settings
    network = create_network("tf_efficientnet_lite0", num_labels=5, output_stride=16)
    assert measured["global"].macs == count_macs(network, size=settings["data"]["size"])
    assert (conditions.output_stride, conditions.size) == (16, settings["data"]["size"])


def test_another_network_has_its_own_output_stride(tmp_path):
    options = ["--preset", "small", "--backbone", "test_resnet", "--repeats", "0", "--device", "cpu"]
    assert main(["bench", "complexity", *options, "--results", str(tmp_path)]) == 0
    conditions, _ = read_complexity(tmp_path / "complexity.json")
    assert (conditions.backbone, conditions.output_stride, conditions.size) == ("test_resnet", None, 128)
