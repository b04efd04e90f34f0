"""The measuring scripts run and print the figures they promise; how large the figures are is not a test's matter."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ldstyle.config import GradCamConfig, LLAMConfig, MixStyleConfig

ROOT = Path(__file__).parents[1]


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_operators_prints_a_ratio_for_every_method_and_measure():
    printed = run("operators.py", "--quick")
    ratios = dict(re.findall(r"^  (\S.*?) +([\d.]+)  \(processor time [\d.]+\)", printed, flags=re.MULTILINE))
    operators = ("MixStyle", "EFDMix", "CSU")
    methods = [f"{head}{name}{tail}" for head, tail in (("", ""), ("LD-", ""), ("LD-", "-GC")) for name in operators]
    measures = ["naive loop / LD-MixStyle", "naive loop / LD-EFDMix", "sweep / forward + backward sweep"]
    assert {"EFDMix (as published)", *methods, *measures, "step with online refresh / without"} == set(ratios)
    assert all(float(value) > 0 for value in ratios.values())
    assert len(re.findall(r"at L = 6,.*at L = 60", printed)) == 4


def load(script):
    spec = importlib.util.spec_from_file_location(script, ROOT / "benchmarks" / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("attention", [LLAMConfig(), GradCamConfig()], ids=["learned", "cached"])
def test_a_module_needs_at_most_four_maps_and_no_more_for_ten_times_the_labels(attention, layout):
    """Bytes held, not time: this is the same on any machine."""
    operators, shape = load("operators"), (256, 56, 56)  # the first stage of ResNet-50
    peaks = {}
    for labels in (6, 60):
        given = operators.Inputs(8, labels, shape)
        given.feats = given.feats.detach().contiguous(memory_format=layout).requires_grad_()
        given.grad = given.grad.contiguous(memory_format=layout)
        step = operators.build_module(MixStyleConfig(), attention, given)
        peaks[labels] = operators.peak_extra_bytes(step) / (given.grad.numel() * given.grad.element_size())
    assert max(peaks.values()) <= 4
    # The attention itself, (B, L, H, W), is what the module reports: it has 60 channels to the map's 256.
    assert peaks[60] - peaks[6] <= 1.25 * 60 / 256
