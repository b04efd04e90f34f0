"""What a run shows: nothing, lines, or a live bar; and what it logs."""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.training.runs import metrics, tiny

from ldstyle import progress
from ldstyle.evaluation.predict import flat_scalars
from ldstyle.progress import Display, LineDisplay, LiveDisplay, open_display
from ldstyle.training.loop import fit

ROW: dict[str, Any] = {
    "epoch": 2,
    "loss": 0.25,
    "best": 0.75,
    "best_epoch": 1,
    "validation": {"map": 0.5, "ap": {"tree": 0.61, "ship": None}},
}


def test_lines_hold_loss_scores_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    display = LineDisplay()
    display.begin(epochs=10, steps=30, done=30)
    began = time.monotonic()
    monkeypatch.setattr(progress.time, "monotonic", lambda: began + 30)
    display.epoch(ROW)
    # One epoch took 30 s and eight are left.
    expected = "epoch 2/10  loss 0.2500  mAP 50.0 (best 75.0 of epoch 1)  tree 61  ship -  at most 4 min left\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(("pathway", "shown"), [(None, False), (0.0, True), (0.5, True), (1.0, False)])
def test_epochs_of_the_warm_up_are_marked(pathway: float | None, shown: bool) -> None:
    assert progress.describe(ROW | {"pathway": pathway}).endswith("  warm-up") == shown


def test_the_bar_shows_step_loss_and_scores() -> None:
    file = io.StringIO()
    with LiveDisplay(Console(file=file, force_terminal=True, width=120)) as display:
        display.work(1, 3, "cache suburb")
        display.begin(epochs=10, steps=30, done=0)
        display.step(1, 7, torch.tensor(0.125))
        display.epoch(ROW)
        display.step(2, 30, torch.tensor(0.0625))
        display.say("Going on.")
    shown = file.getvalue()
    for text in ("cache suburb", "epoch 2/10", "30/30", "loss 0.0625", "mAP 50.0", "tree 61", "Going on."):
        assert text in shown


def test_the_loss_is_read_only_when_it_is_shown() -> None:
    class Watched:
        reads = 0

        def __float__(self) -> float:
            Watched.reads += 1
            return 1.0

    with LiveDisplay(Console(file=io.StringIO(), force_terminal=True)) as display:
        display.begin(epochs=1, steps=1000, done=0)
        for step in range(1, 100):
            display.step(1, step, Watched())  # type: ignore[arg-type]
    assert Watched.reads <= 3


def test_quiet_shows_nothing_and_other_output_gets_lines(
    capsys: pytest.CaptureFixture[str], scenes: Path, tmp_path: Path
) -> None:
    assert type(open_display(quiet=True)) is Display
    assert type(open_display(quiet=False)) is LineDisplay  # pytest's standard error is no terminal
    fit(tiny(scenes, tmp_path / "run", optimizer={"epochs": 1, "steps_per_epoch": 1}))
    assert capsys.readouterr() == ("", "")


def test_nested_rows_become_scalars_by_path() -> None:
    assert flat_scalars(ROW) == {
        "epoch": 2.0,
        "loss": 0.25,
        "best": 0.75,
        "best_epoch": 1.0,
        "validation/map": 0.5,
        "validation/ap/tree": 0.61,
    }


def test_the_csv_logger_holds_every_epoch(scenes: Path, tmp_path: Path) -> None:
    fit(tiny(scenes, tmp_path / "run", logger="csv"))
    text = (tmp_path / "run" / "csv" / "metrics.csv").read_text()
    logged = [float(row["loss"]) for row in csv.DictReader(text.splitlines())]
    assert logged == pytest.approx([row["loss"] for row in metrics(tmp_path / "run")])


def test_tensorboard_holds_every_epoch_once_after_going_on(scenes: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tiny(scenes, tmp_path / "run", logger="tensorboard")
    fit(config)
    (tmp_path / "run" / "done").unlink()
    fit(config)  # goes on from the last checkpoint, with nothing left to train
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    logged = {event.step: event.value for event in events.Scalars("validation/map")}
    assert len(events.Scalars("validation/map")) == len(logged) == 2
    expected = {row["epoch"]: row["validation"]["map"] for row in metrics(tmp_path / "run")}
    assert logged == pytest.approx(expected)
