"""Stop and go on: after Ctrl-C, after ``kill -9``, the run ends as if nothing had happened."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.training.runs import at, checkpoint, metrics, process_context, same, tiny, weights

import ldstyle.training.build as setup
from ldstyle.progress import Display
from ldstyle.runs.config import RunConfig
from ldstyle.runs.interruption import Interrupted, Interruption
from ldstyle.training.loop import fit


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Undo what a shell does to a command it starts in the background: it makes it deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def kill_after(config: RunConfig, checkpoints: int) -> None:
    """Run in another process and kill it once it has written some checkpoints."""
    process = process_context().Process(target=fit, args=(config,))
    process.start()
    path, seen, last = Path(config.out) / "last.ckpt", 0, _written(Path(config.out) / "last.ckpt")
    while seen < checkpoints and process.is_alive():
        now = _written(path)
        if now != last:
            seen, last = seen + 1, now
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # not yet, or between the two renames
        return 0


def assert_equal_runs(one: Path, other: Path) -> None:
    assert same(weights(one), weights(other))
    assert metrics(one) == metrics(other)
    assert same(checkpoint(one), checkpoint(other))


@pytest.mark.parametrize(
    ("method", "kills", "swad"),
    [
        ("ld-mixstyle", (1, 2), None),  # a style bank and learned attention; within and between epochs
        ("ld-efdmix-gc", (5, 2), {"n_converge": 1, "n_tolerance": 2, "evaluate_every": 2}),  # cached maps, averaging
    ],
)
def test_a_run_killed_twice_ends_bit_for_bit_as_an_uninterrupted_one(
    method: str, kills: tuple[int, ...], swad: dict[str, int] | None, scenes: Path, tmp_path: Path
) -> None:
    optimizer = {"epochs": 3}
    style = {"gate_prob": 0.7}
    config = tiny(scenes, tmp_path / "whole", method=method, swad=swad, optimizer=optimizer, style=style)
    fit(config)
    # A checkpoint after every step: the first run wrote one per epoch, which must make no difference.
    killed = tiny(
        scenes, tmp_path / "killed", method=method, swad=swad, optimizer=optimizer, style=style, checkpoint_minutes=0.0
    )
    for checkpoints in kills:
        kill_after(killed, checkpoints)
        assert not (tmp_path / "killed" / "done").exists()
    fit(killed)
    assert_equal_runs(tmp_path / "whole", tmp_path / "killed")


def test_a_damaged_last_checkpoint_costs_time_and_nothing_else(
    trained: Callable[..., Path], scenes: Path, tmp_path: Path
) -> None:
    stopped = tiny(scenes, tmp_path / "stopped", method="ld-csu", checkpoint_minutes=0.0)
    kill_after(stopped, 4)
    path = tmp_path / "stopped" / "last.ckpt"
    if path.exists():  # else it was killed between the two renames
        path.write_bytes(path.read_bytes()[:-100])
    fit(stopped)
    assert_equal_runs(trained("ld-csu"), tmp_path / "stopped")


def test_ctrl_c_finishes_the_step_saves_and_dropout_goes_on_where_it_was(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = setup.build_backbone

    def with_dropout(*arguments: object, **settings: object) -> torch.nn.Module:
        backbone = build(*arguments, **settings)  # type: ignore[arg-type]
        backbone.drop_rate = 0.5  # type: ignore[assignment]
        return backbone

    monkeypatch.setattr(setup, "build_backbone", with_dropout)
    config = tiny(scenes, tmp_path / "whole")
    fit(config)
    plain_step = Display.step

    def interrupt(self: Display, epoch: int, step: int, loss: torch.Tensor) -> None:
        plain_step(self, epoch, step, loss)
        if (epoch, step) == (1, 2):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Display, "step", interrupt)
    stopped = at(config, tmp_path / "stopped")
    with pytest.raises(Interrupted, match=r"Stopped in epoch 1 after step 2; all of it is saved"):
        fit(stopped)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(Display, "step", plain_step)
    torch.rand(5)
    fit(stopped)
    assert_equal_runs(tmp_path / "whole", tmp_path / "stopped")


def test_changed_data_and_checkpoints_of_another_version_are_refused(scenes: Path, tmp_path: Path) -> None:
    config = tiny(scenes, tmp_path / "run", optimizer={"epochs": 1, "steps_per_epoch": 1})
    fit(config)
    (tmp_path / "run" / "done").unlink()
    state = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)

    def other(message: str, **changes: object) -> None:
        torch.save(state | changes, tmp_path / "run" / "last.ckpt")
        with pytest.raises(ValueError, match=message):
            fit(config)

    other("The data of suburb changed", digests=state["digests"] | {"suburb": "other"})
    other("of this version of ldstyle.*Missing key", net={})
    other("of this version of ldstyle.*'int' object", sampler=3)
    other("of this version of ldstyle.*it has no 'best'", stopping={})
    other("of this version of ldstyle.*it has no '2 parameter groups: 1'", optimizer={"param_groups": [{}]})
    torch.save({key: value for key, value in state.items() if key != "digests"}, tmp_path / "run" / "last.ckpt")
    with pytest.raises(ValueError, match=r"of this version of ldstyle.*it has no 'digests'"):
        fit(config)
    torch.save(state, tmp_path / "run" / "last.ckpt")
    fit(config)


def test_inverted_labels_are_noticed(scenes: Path, tmp_path: Path) -> None:
    root = tmp_path / "scenes"
    shutil.copytree(scenes, root)
    config = tiny(root, tmp_path / "run", optimizer={"epochs": 1, "steps_per_epoch": 1})
    fit(config)
    (tmp_path / "run" / "done").unlink()
    table = root / "suburb" / "labels.csv"
    header, *rows = table.read_text().splitlines()
    swapped = [re.sub(r"(?<=,)[01](?=,|$)", lambda cell: "10"[int(cell[0])], row) for row in rows]
    assert swapped != rows
    table.write_text("\n".join([header, *swapped]) + "\n")
    with pytest.raises(ValueError, match=r"The data of suburb changed since the run was started\. Restore them"):
        fit(config)


def test_a_run_killed_while_finishing_is_finished(scenes: Path, tmp_path: Path) -> None:
    config = tiny(scenes, tmp_path / "run", optimizer={"epochs": 1, "steps_per_epoch": 2})
    record = fit(config)
    before = weights(tmp_path / "run")
    for name in ("done", "record.json", "model.safetensors", "model.json", "predictions.safetensors"):
        (tmp_path / "run" / name).unlink()
    again = fit(config)
    assert again.scores == record.scores
    assert same(weights(tmp_path / "run"), before)


def test_a_second_signal_acts_at_once() -> None:
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interpreter needs a moment to deliver it
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
