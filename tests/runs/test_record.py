"""The record of a run: it reads back equal and says what determined the run."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from ldstyle.runs.folder import close_run, is_done, sole_writer
from ldstyle.runs.record import RunRecord, git_commit, peak_memory_mb, read_record, versions, write_record

RECORD = RunRecord(
    method="erm",
    sources=("a", "b"),
    seed=3,
    scores={"validation": {"map": 0.1 + 0.2, "per_domain": {"a": None}}},
    thresholds={"tree": 1 / 3},
    selected_epoch=4,
    selected_warmup_weight=None,
    epochs_run=9,
    selection="mean source-validation mAP",
    splits={"a": "0f"},
    vocabulary=("tree",),
    config={"seed": 3, "stages": [1, 2]},
    versions={"python": "3.11"},
    git_commit=None,
    wall_seconds=1.5,
    peak_memory_mb=100.0,
    localization=None,
)


def test_a_record_reads_back_equal(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    assert read_record(tmp_path) == RECORD
    assert json.loads((tmp_path / "record.json").read_text())["schema"] == 1


def test_later_additions_to_a_record_are_ignored(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    content = json.loads((tmp_path / "record.json").read_text())
    (tmp_path / "record.json").write_text(json.dumps(content | {"news": 1}))
    assert read_record(tmp_path) == RECORD


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "its schema must be 1; got None"),
        ("[]", "is not the record of a run"),
        ("{", "is not the record of a run"),
        ('{"schema": 1}', "missing .* required positional argument"),
    ],
)
def test_other_files_are_not_records(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_record(tmp_path)


def test_a_missing_record_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Is '.*' a finished run"):
        read_record(tmp_path)


def test_the_marker_is_written_after_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr("ldstyle.runs.folder.write_record", fail)
    with pytest.raises(OSError, match="no"):
        close_run(tmp_path, RECORD)
    assert not is_done(tmp_path)
    monkeypatch.undo()
    close_run(tmp_path, replace(RECORD, seed=4))
    assert is_done(tmp_path)
    assert read_record(tmp_path).seed == 4


def test_versions_and_commit_are_those_installed() -> None:
    assert versions()["torch"] == version("torch")
    here = Path(__file__).parent
    head = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    expected = head.stdout.strip() if head.returncode == 0 else None
    found = git_commit()
    assert (found if found is None else found.removesuffix("-dirty")) == expected


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the proc file system as the other opinion")
def test_peak_memory_is_the_one_the_kernel_counts() -> None:
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    assert peak_memory_mb(torch.device("cpu")) == pytest.approx(kilobytes / 1024, rel=0.02)


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    with sole_writer(tmp_path), pytest.raises(OSError, match="Another process is writing the run"):  # noqa: SIM117
        with sole_writer(tmp_path):
            pass
    with sole_writer(tmp_path):
        pass
