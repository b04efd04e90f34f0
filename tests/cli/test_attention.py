"""``ldstyle attention`` on a tiny run: every source, on training, held-out and unseen images."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.tolerance import bound
from tests.training.runs import SOURCES, TARGET, tiny

from ldstyle.cli import main
from ldstyle.cli.outputs import RECORD
from ldstyle.evaluation.attention.judge import judge_data
from ldstyle.evaluation.evaluate import evaluate
from ldstyle.report.figures.overlays import write_sheets
from ldstyle.runs.config import BackboneConfig, DataConfig
from ldstyle.training.loop import fit

ROUNDED = bound(16, dtype=torch.float32)
"""Of ratios of two measures, each a ratio of counts or a value computed in float64 and rounded."""


@pytest.fixture(scope="module")
def run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention") / "run"
    fit(tiny(scenes, folder, method="ld-efdmix", optimizer={"head_lr": 0.05}))
    return folder


@pytest.fixture(scope="module")
def out(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged") / "attention"
    options = ["--domain", SOURCES[0], "--domain", TARGET, "--threshold", "0.3", "0.7", "--device", "cpu", "--quiet"]
    assert main(["attention", str(run), *options, "--out", str(folder)]) == 0
    return folder


def report_of(folder: Path) -> dict:
    return json.loads((folder / "attention.json").read_text())


def test_every_source_is_judged_on_training_held_out_and_unseen_images(out: Path) -> None:
    report = report_of(out)
    parts = [(part["domain"], part["group"], part["images"]) for part in report["parts"]]
    assert parts == [(SOURCES[0], "training", 24), (SOURCES[0], "held-out", 6), (TARGET, "unseen", 30)]
    for part in report["parts"]:
        assert list(part["sources"]) == [
            "uniform", "llam/layer1", "llam/layer2", "cam", "cached", "cached>0.3", "cached>0.7"
        ]  # fmt: skip
        assert list(part["sources"]["cam"]) == ["mean", *report["vocabulary"]]


def test_the_uniform_map_is_one_times_itself_and_covers_everything(out: Path) -> None:
    for part in report_of(out)["parts"]:
        for row in part["sources"]["uniform"].values():
            if row["n"]:
                for name in ("pointing", "iou", "mass"):
                    assert row[name] == pytest.approx(row[f"{name}_chance"], rel=ROUNDED)
                assert (row["iou_ratio"], row["mass_ratio"]) == pytest.approx((1, 1), abs=ROUNDED)
                assert row["coverage"] == pytest.approx(1, abs=ROUNDED)


def test_a_threshold_never_widens_cached_maps_and_leaves_their_number(out: Path) -> None:
    for part in report_of(out)["parts"]:
        plain, low, high = (part["sources"][name]["mean"] for name in ("cached", "cached>0.3", "cached>0.7"))
        assert plain["n"] == low["n"] == high["n"] > 0
        assert plain["coverage"] >= low["coverage"] >= high["coverage"]
        every = part["sources"]["cam"]["mean"]
        assert every["n"] >= plain["n"]
        assert every["n"] + every["missing"] == plain["n"] + plain["missing"]


def test_the_unseen_domain_is_judged_as_evaluation_judges_it(run: Path, out: Path) -> None:
    found = report_of(out)["parts"][-1]["sources"]
    expected = evaluate(run, domain=TARGET)
    for source, table in {"cam": expected["localization"], "llam/layer2": expected["attention"]["layer2"]}.items():
        for name in ("pointing", "iou", "mass", "coverage"):
            assert found[source]["mean"][name] == table["mean"][name]  # the same batches


def test_the_table_has_the_numbers_of_the_report(out: Path) -> None:
    rows = list(csv.DictReader((out / "attention.csv").read_text().splitlines()))
    parts = {(part["domain"], part["group"]): part["sources"] for part in report_of(out)["parts"]}
    assert len(rows) == sum(len(labels) for sources in parts.values() for labels in sources.values())
    for row in rows:
        expected = parts[row["domain"], row["group"]][row["source"]][row["label"]]
        assert {name: row[name] for name in expected} == {
            name: "" if value is None else str(value) for name, value in expected.items()
        }


def test_each_domain_has_a_contact_sheet(out: Path) -> None:
    assert sorted(path.name for path in out.iterdir() if path.name != RECORD) == sorted(
        ["attention.csv", "attention.json", f"{SOURCES[0]}.png", f"{TARGET}.png"]
    )
    pixels = np.asarray(Image.open(out / f"{TARGET}.png").convert("RGB"))
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 1000


def test_maps_can_be_made_from_larger_images_of_fewer_scenes(run: Path, tmp_path: Path, capsys) -> None:
    views = ["--map-size", "96", "--average-flips", "--scales", "1", "1.5"]
    options = ["--domain", TARGET, *views, "--max-images", "5", "--device", "cpu"]
    assert main(["attention", str(run), *options, "--out", str(tmp_path / "out")]) == 0
    report = report_of(tmp_path / "out")
    assert report["settings"]["map_size"] == 96
    assert (report["settings"]["average_flips"], report["settings"]["scales"]) == (True, [1, 1.5])
    assert [part["images"] for part in report["parts"]] == [5]
    shown = capsys.readouterr().out
    assert "LLAM, layer1" in shown
    assert "attention.json" in shown


def test_a_probe_of_the_frozen_backbone_is_judged_with_a_run(run: Path, tmp_path: Path) -> None:
    options = ["--domain", SOURCES[0], "--probe", "--probe-size", "64", "--max-images", "6", "--device", "cpu"]
    assert main(["attention", str(run), *options, "--quiet", "--out", str(tmp_path / "out")]) == 0
    report = report_of(tmp_path / "out")
    assert report["settings"]["probe_size"] == 64
    for part in report["parts"]:
        plain, sharp = (part["sources"][name]["mean"] for name in ("probe", "probe>0.5"))
        assert plain["n"] == sharp["n"] > 0
        assert plain["coverage"] >= sharp["coverage"]


def test_a_data_folder_is_judged_without_a_run(scenes: Path, tmp_path: Path) -> None:
    network = ["--backbone", "test_resnet", "--weights", "none", "--probe", "--probe-size", "64"]
    options = ["--domain", SOURCES[0], "--domain", TARGET, "--sources", *SOURCES, "--size", "48", *network]
    cache = ["--cache", str(scenes.parent / "cache"), "--device", "cpu", "--quiet"]
    assert main(["attention", str(scenes), *options, *cache, "--out", str(tmp_path / "out")]) == 0
    report = report_of(tmp_path / "out")
    assert report["data"] == str(scenes)
    assert [(part["group"], part["images"]) for part in report["parts"]] == [
        ("training", 24), ("held-out", 6), ("unseen", 30)
    ]  # fmt: skip
    for part in report["parts"]:
        assert list(part["sources"]) == ["uniform", "masks/8", "probe", "probe>0.5"]
        upper = part["sources"]["masks/8"]["mean"]
        assert upper["missing"] == 0
        assert upper["iou_ratio"] > 2
        others = [part["sources"][name]["mean"] for name in ("uniform", "probe", "probe>0.5")]
        for name in ("pointing", "iou", "mass"):
            assert upper[name] > max(other[name] for other in others), name


def test_a_data_folder_needs_the_domains_to_train_on(scenes: Path, tmp_path: Path, capsys) -> None:
    assert main(["attention", str(scenes), "--domain", TARGET, "--out", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert "--sources" in capsys.readouterr().err


def test_a_domain_without_masks_is_named(run: Path, scenes: Path, tmp_path: Path, capsys) -> None:
    bare = tmp_path / "data" / "bare"
    (bare / "images").mkdir(parents=True)
    rows = list(csv.DictReader((scenes / TARGET / "labels.csv").read_text().splitlines()))
    for row in rows:
        (bare / row["path"]).write_bytes((scenes / TARGET / row["path"]).read_bytes())
    kept = [name for name in rows[0] if name != "mask"]
    lines = [",".join(kept), *(",".join(row[name] for name in kept) for row in rows)]
    (bare / "labels.csv").write_text("\n".join(lines) + "\n")
    options = ["--domain", "bare", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["attention", str(run), *options]) == 2
    assert "'bare' has none" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--domain", TARGET, "--threshold", "1.5"], "`threshold` must lie between 0 and 1; got 1.5"),
        (["--domain", TARGET, "--domain", TARGET], f"each once; got ['{TARGET}', '{TARGET}']"),
        (["--domain", "regoin"], "no domain 'regoin'"),
        (
            ["--domain", TARGET, "--scales", "0"],
            "factors of the image size; got [0.0]",
        ),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(options, message, run: Path, tmp_path: Path, capsys) -> None:
    assert main(["attention", str(run), *options, "--out", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_as_output_is_refused_and_kept(run: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "out").write_text("mine")
    assert main(["attention", str(run), "--domain", TARGET, "--out", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert f"'{tmp_path / 'out'}' is a file" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("name", ["attention.json", "attention.csv", f"{TARGET}.png"])
def test_foreign_files_are_left_alone_unless_forced(name: str, run: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / name).write_text("mine")
    options = ["--domain", TARGET, "--max-images", "2", "--device", "cpu", "--quiet", "--out", str(tmp_path)]
    assert main(["attention", str(run), *options]) == 2
    assert name in (shown := capsys.readouterr().err)
    assert "--force" in shown
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"
    assert main(["attention", str(run), *options, "--force"]) == 0
    assert (tmp_path / name).read_bytes() != b"mine"
    assert main(["attention", str(run), *options]) == 0


def test_an_unfinished_run_is_refused(tmp_path: Path, capsys) -> None:
    assert main(["attention", str(tmp_path), "--domain", TARGET, "--out", str(tmp_path / "out")]) == 2
    assert "is not a finished run" in capsys.readouterr().err


def test_any_domain_has_a_sheet_and_columns_that_are_no_labels_are_left_out(scenes: Path, tmp_path: Path) -> None:
    """Names of domains come from a table, and may have a slash."""
    shutil.copytree(scenes / TARGET, tmp_path / "data")
    table = tmp_path / "data" / "labels.csv"
    with table.open(newline="") as file:
        rows = [row | {"domain": "north/east", "cloudy": "1"} for row in csv.DictReader(file)]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    data = DataConfig(str(tmp_path / "data"), ("north/east",), size=48, cache_dir=str(tmp_path), ignore=("cloudy",))
    judgement = judge_data(data, ["north/east"], backbone=BackboneConfig("test_resnet", "none"))
    assert "cloudy" not in judgement.vocabulary
    assert [path.name for path in write_sheets(tmp_path, judgement)] == ["north%2Feast.png"]
