"""Algorithms in whole runs: without strength they are ERM, stopped runs resume bit for bit, the model stays plain."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.runs import SOURCES, at, checkpoint, metrics, same, tiny, weights
from tests.training.test_resume import assert_equal_runs

from ldstyle.cli import main
from ldstyle.progress import Display
from ldstyle.runs.backbone import build_backbone
from ldstyle.runs.interruption import Interrupted
from ldstyle.training.loop import fit


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("method", "algorithm"),
    [
        ("fact", {"gate_prob": 0.0}),
        ("coral", {"weight": 0.0}),
        ("sagm", {"radius": 0.0, "alpha": 0.0}),
    ],
)
def test_without_strength_a_run_is_erm_bit_for_bit(
    method: str, algorithm: dict[str, float], trained: Callable[..., Path], scenes: Path, tmp_path: Path
) -> None:
    fit(tiny(scenes, tmp_path / "run", method=method, algorithm=algorithm))
    assert same(weights(trained("erm")), weights(tmp_path / "run"))


def test_the_second_pass_leaves_no_trace_in_streams_and_style_banks(
    trained: Callable[..., Path], scenes: Path, tmp_path: Path
) -> None:
    still = {"radius": 0.0, "alpha": 0.0}
    fit(tiny(scenes, tmp_path / "run", method="ld-mixstyle+sagm", algorithm=still))
    plain, twice = checkpoint(trained("ld-mixstyle")), checkpoint(tmp_path / "run")
    assert same(plain["net"], twice["net"])
    assert same(plain["optimizer"], twice["optimizer"])


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("erm++", {"algorithm": {"head_ratio": 0.2, "average_ratio": 0.2}}),
        ("groupdro", {"algorithm": {"step_size": 1.0}}),
        ("miro", {}),
        ("fact", {}),
        ("mixup+asymmetric+balanced", {}),
        ("ld-mixstyle+sagm", {}),
    ],
)
def test_a_stopped_run_ends_bit_for_bit_as_an_uninterrupted_one(
    method: str, changes: dict[str, Any], scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(scenes, tmp_path / "whole", method=method, **changes)
    fit(config)
    plain_step = Display.step

    def interrupt(self: Display, epoch: int, step: int, loss: torch.Tensor) -> None:
        plain_step(self, epoch, step, loss)
        if (epoch, step) == (2, 1):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Display, "step", interrupt)
    with pytest.raises(Interrupted, match="Stopped in epoch 2 after step 1"):
        fit(at(config, tmp_path / "stopped"))
    monkeypatch.setattr(Display, "step", plain_step)
    fit(at(config, tmp_path / "stopped"))
    assert_equal_runs(tmp_path / "whole", tmp_path / "stopped")


def test_the_exported_model_is_the_plain_backbone(trained: Callable[..., Path]) -> None:
    erm = weights(trained("erm"))
    for method in ("miro", "erm++"):
        other = weights(trained(method))
        assert other.keys() == erm.keys()
        assert not same(other, erm)


def test_the_head_is_trained_first(scenes: Path, tmp_path: Path) -> None:
    config = tiny(scenes, tmp_path / "run", method="erm++", algorithm={"head_ratio": 0.99, "average_ratio": 0.9})
    fit(config)
    trained, selected = checkpoint(tmp_path / "run")["net"], weights(tmp_path / "run")
    start = build_backbone(config.backbone, num_labels=len(trained["fc.bias"]), image_size=48, seed=config.seed)
    for name, value in start.named_parameters():
        assert torch.equal(trained[name], value) == (name not in ("fc.weight", "fc.bias"))
        assert name.startswith("fc.") or torch.equal(selected[name], value)


def test_penalties_are_logged(trained: Callable[..., Path]) -> None:
    assert [math.isfinite(row["penalty"]) for row in metrics(trained("miro"))] == [True, True]
    assert "penalty" not in metrics(trained("erm"))[0]


def test_algorithm_loss_and_averaging_are_options_of_any_method(scenes: Path, tmp_path: Path) -> None:
    argv = ["train", "--method", "ld-csu+coral+swad", "--data.root", str(scenes), "--data.sources", ",".join(SOURCES)]
    argv += ["--data.size", "48", "--data.cache_dir", str(scenes.parent / "cache"), "--out", str(tmp_path / "run")]
    argv += ["--backbone.name", "test_resnet", "--backbone.weights", "none", "--accelerator", "cpu", "--logger", "none"]
    argv += ["--optimizer.batch_size", "8", "--optimizer.epochs", "2", "--optimizer.steps_per_epoch", "2", "--quiet"]
    argv += ["--style.warmup_epochs", "1", "--algorithm.weight", "0.5", "--loss.name", "focal", "--loss.gamma", "1"]
    assert main(argv) == 0
    (first, _) = metrics(tmp_path / "run")
    assert {"penalty", "fired"} <= first.keys()
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert "method: ld-csu+coral+swad" in text
    assert "weight: 0.5" in text
    assert "gamma: 1.0" in text
