"""The environment is the pinned one: a careless dependency can swap torch under torchvision."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import torchvision

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
LINES = [line for line in CONSTRAINTS.read_text().splitlines() if line.strip() and not line.startswith("#")]
PINS = dict(line.split("==") for line in LINES if "==" in line)


@pytest.mark.parametrize("package", ["torch", "torchvision"])
def test_the_installed_pair_is_the_pinned_one(package):
    installed = version(package).split("+")[0]
    assert installed == PINS[package], f"{package} {installed} is installed but {PINS[package]} is pinned; reinstall"


def test_torchvision_loads_with_its_compiled_operators():
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.1, 0.0, 2.0, 2.0], [5.0, 5.0, 6.0, 6.0]])
    kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.5)
    assert kept.tolist() == [0, 2]


def test_constraints_hold_names_and_versions_only():
    for line in LINES:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._!]+", line), line


def test_no_package_is_pinned_twice():
    names = [re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in LINES]
    assert len(names) == len(set(names))
