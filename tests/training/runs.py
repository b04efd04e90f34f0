"""Tiny runs on drawn scenes, what they leave behind, and processes to run them in."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ldstyle.runs.config import RunConfig
from ldstyle.runs.settings import config_from, merge, method_settings
from ldstyle.training import build, loop

SOURCES = ("suburb", "harbour")
TARGET = "region"


def tiny(scenes: Path, out: Path, *, method: str = "erm", **changes: Any) -> RunConfig:
    """A run of two epochs of three steps; ``changes`` are laid over its settings."""
    settings = {
        "data": {"root": str(scenes), "sources": list(SOURCES), "size": 48, "cache_dir": str(scenes.parent / "cache")},
        "out": str(out),
        "backbone": {"name": "test_resnet", "weights": "none"},
        "optimizer": {"batch_size": 8, "epochs": 2, "steps_per_epoch": 3},
        "accelerator": "cpu",
        "logger": "none",
        "quiet": True,
    }
    if method.startswith("ld-"):
        settings["style"] = {"warmup_epochs": 1}
    return config_from(merge(merge(method_settings(method), settings), changes))


def at(config: RunConfig, out: Path) -> RunConfig:
    return replace(config, out=str(out))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of ``metrics.jsonl`` without their wall times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def checkpoint(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "last.ckpt", weights_only=True)
    history = [json.loads(row) for row in state.pop("history")]
    del state["seconds"]
    return {**state, "history": [{key: value for key, value in row.items() if key != "seconds"} for row in history]}


def same(one: Any, other: Any) -> bool:
    """Whether nested states are equal, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other) or (one != one and other != other)


@contextmanager
def well_conditioned() -> Iterator[None]:
    """Train in double precision, by an optimizer that does not enlarge rounding errors.

    AdamW divides a mean of gradients by the root of that of their squares plus ε. With its ε of 1e-8 rounding alone
    decides on the step of a weight whose gradient is near zero; with 1 a step is a smooth function of the gradients.
    """

    def build_backbone(*args: Any, **kwargs: Any) -> nn.Module:
        backbone = single(*args, **kwargs).double()
        backbone.register_forward_pre_hook(lambda _, given: (given[0].double(), *given[1:]))
        return backbone

    def build_optimizer(*args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        optimizer = steep(*args, **kwargs)
        for group in optimizer.param_groups:
            group["eps"] = 1.0
        return optimizer

    single, steep = build.build_backbone, loop.build_optimizer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "build_backbone", build_backbone)
        patch.setattr(loop, "build_optimizer", build_optimizer)
        yield


def process_context() -> Any:
    """Start processes from a server that has imported everything already: real ones, which start at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ldstyle.training.loop", "timm"])
    return context
