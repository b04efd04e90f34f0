"""Loggers of packages that are not required: their records hold every epoch, and nothing leaves the machine."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.training.runs import metrics, tiny

from ldstyle.training.loop import fit

# The packages warn about their own dependencies.
pytestmark = pytest.mark.filterwarnings("ignore")

BLOCK = 1 << 15


def test_mlflow_holds_every_epoch_and_again_after_resuming(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    config = tiny(scenes, tmp_path / "run", logger="mlflow")
    fit(config)
    (tmp_path / "run" / "done").unlink()
    fit(config)  # from the last checkpoint, with nothing left to train
    client = mlflow.MlflowClient(address)
    experiment = client.get_experiment_by_name("ldstyle")
    runs = client.search_runs([experiment.experiment_id])
    assert [(run.info.run_name, run.info.status) for run in runs] == [("run", "FINISHED")] * 2
    expected = {row["epoch"]: row["validation"]["map"] for row in metrics(tmp_path / "run")}
    for run in runs:
        logged = client.get_metric_history(run.info.run_id, "validation/map")
        assert {entry.step: entry.value for entry in logged} == pytest.approx(expected)


def wandb_records(content: bytes) -> list[bytes]:
    """Return the records of an offline run: behind a header of 7 bytes a log in the format of LevelDB."""
    records: list[bytes] = []
    part, position = b"", 7
    while position + 7 <= len(content):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        part += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(part)
            part = b""
    return records


def test_wandb_keeps_every_epoch_offline(scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    fit(tiny(scenes, tmp_path / "run", logger="wandb"))
    wandb.finish()
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    logged: dict[float, float] = {}
    for record in map(Record.FromString, wandb_records(file.read_bytes())):
        items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        if "validation/map" in items:
            logged[float(items["epoch"])] = float(items["validation/map"])
    assert logged == pytest.approx({row["epoch"]: row["validation"]["map"] for row in metrics(tmp_path / "run")})
