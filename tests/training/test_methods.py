"""Every method end to end through the command line, on drawn scenes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.training.runs import SOURCES, TARGET, metrics

from ldstyle.cli import main
from ldstyle.runs.settings import method_settings, methods

# The bare readings differ from these in switches of attention that have tests of their own; one stands for all.
TRAINED = [name for name in methods() if not name.endswith("-paper") or name == "ld-efdmix-paper"]


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_trains_and_is_scored_on_a_target_that_was_absent(
    method: str, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in SOURCES:
        (sources / name).symlink_to(scenes / name)
    argv = ["train", "--method", method, "--data", str(sources), "--sources", ",".join(SOURCES)]
    argv += ["--data.size", "48", "--data.cache_dir", str(scenes.parent / "cache"), "--out", str(tmp_path / "run")]
    argv += ["--backbone.name", "test_resnet", "--backbone.weights", "none", "--accelerator", "cpu", "--logger", "none"]
    argv += ["--optimizer.batch_size", "8", "--optimizer.epochs", "2", "--optimizer.steps_per_epoch", "2"]
    decoupled = method.startswith("ld-")
    argv += ["--style.warmup_epochs", "1"] if decoupled else []
    assert main(argv) == 0
    assert f"{method}: source-validation mAP" in capsys.readouterr().out

    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["method"] == method
    assert record["sources"] == list(SOURCES)
    assert record["epochs_run"] == 2
    assert (record["selected_warmup_weight"] is None) == (not decoupled)
    rows = metrics(tmp_path / "run")
    assert ("fired" in rows[0]) == (method_settings(method)["style"] is not None)

    assert main(["evaluate", str(tmp_path / "run"), "--domain", TARGET, "--data", str(scenes)]) == 0
    result = json.loads((tmp_path / "run" / "evaluations" / f"{TARGET}.json").read_text())
    assert (result["scores"]["test"]["n"], result["scores"]["all"]["n"]) == (3, 30)
    assert result["thresholds"] == record["thresholds"]


def test_the_run_folder_holds_what_is_promised(scenes: Path, tmp_path: Path) -> None:
    argv = ["train", "--data", str(scenes), "--sources", ",".join(SOURCES), "--out", str(tmp_path / "run")]
    argv += ["--data.size", "48", "--data.cache_dir", str(scenes.parent / "cache"), "--accelerator", "cpu", "--quiet"]
    argv += ["--backbone.name", "test_resnet", "--backbone.weights", "none", "--optimizer.epochs", "1"]
    argv += ["--optimizer.batch_size", "8", "--optimizer.steps_per_epoch", "1"]
    assert main(argv) == 0
    names = {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")}
    files = {"config.yaml", "metrics.jsonl", "predictions.safetensors", "record.json", "model.safetensors"}
    assert names == files | {"model.json", "last.ckpt", "done", "tensorboard"}
    assert len(list((tmp_path / "run" / "tensorboard").glob("events*"))) == 1
