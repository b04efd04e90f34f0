"""How much a style module holds at a time. Bytes, not time, so it is the same on any machine."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ldstyle.config import GradCamConfig, LLAMConfig, MixStyleConfig

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "operators.py"
STAGE = (256, 56, 56)  # the first of ResNet-50 at 224 px


@pytest.fixture(scope="module")
def measuring():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("attention", [LLAMConfig(), GradCamConfig()], ids=["learned", "cached"])
def test_a_module_holds_at_most_four_maps_and_with_more_labels_three_times_their_attention_more(
    measuring, attention, layout
):
    peaks = {}
    for labels in (6, 60):
        given = measuring.Inputs(8, labels, STAGE)
        given.feats = given.feats.detach().contiguous(memory_format=layout).requires_grad_()
        given.grad = given.grad.contiguous(memory_format=layout)
        step = measuring.build_module(MixStyleConfig(), attention, given)
        peaks[labels] = measuring.peak_extra_bytes(step) / (given.grad.numel() * given.grad.element_size())
    assert max(peaks.values()) <= 3.6
    # The softmax, its masked copy and a gradient of that size: what each further label adds.
    assert peaks[60] - peaks[6] <= 3.25 * (60 - 6) / STAGE[0]
