"""Table 9: the paper's counts come out exactly; the deployed network is the same for all methods."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ldstyle.benchmark.complexity import FAMILIES, TITLES, count_macs, measure_families, measure_throughput
from ldstyle.benchmark.paper import TABLE_9
from ldstyle.runs.backbone import create_network


def test_parameters_and_operations_of_the_paper():
    backbone = create_network("resnet50", num_labels=6)
    assert sum(parameter.numel() for parameter in backbone.parameters()) == 23_520_326
    macs = count_macs(backbone, size=224)
    assert round(macs / 1e9, 3) == TABLE_9["global"].macs == 4.087


def test_learned_attention_adds_what_its_two_convolutions_have():
    # (C·C/4 + C/4) + (C/4·L + L) at ResNet-50's stages, C = 256 and 512, with L = 6.
    added = sum(c * c // 4 + c // 4 + c // 4 * 6 + 6 for c in (256, 512))
    assert added == 83_276
    assert round(23_520_326 / 1e6, 2) == TABLE_9["global"].parameters
    assert round((23_520_326 + added) / 1e6, 2) == TABLE_9["llam"].parameters
    assert round(100 * added / 23_520_326, 2) == TABLE_9["llam"].added


def test_operations_are_counted_by_hand_on_a_small_network():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(4 * 5 * 5, 7))
    assert count_macs(network, size=5) == 5 * 5 * 4 * 3 * 9 + 4 * 5 * 5 * 7


def test_all_families_deploy_the_same_network():
    measured = measure_families("test_resnet", num_labels=6, size=64, batch_size=2, repeats=2)
    assert list(measured) == list(FAMILIES) == list(TABLE_9) == list(TITLES)
    assert len({(row.deployed, row.macs) for row in measured.values()}) == 1
    channels = [stage["num_chs"] for stage in create_network("test_resnet", num_labels=6).feature_info[1:3]]
    added = sum(c * (c // 4) + c // 4 + c // 4 * 6 + 6 for c in channels)
    assert measured["llam"].parameters - measured["global"].parameters == added
    assert measured["llam"].added == pytest.approx(added / measured["llam"].deployed)
    assert measured["gradcam"].parameters == measured["global"].parameters == measured["global"].deployed
    for row in measured.values():
        low, middle, high = row.throughput
        assert 0 < low <= middle <= high


def test_throughput_is_measured_in_evaluation_mode_and_leaves_the_global_stream_alone():
    modes = []

    class Network(nn.Module):
        def forward(self, images):
            modes.append((self.training, torch.is_inference_mode_enabled(), images.shape))
            return images

    before = torch.random.get_rng_state()
    measure_throughput(Network().train(), size=4, batch_size=3, repeats=2, device=torch.device("cpu"))
    assert modes == [(False, True, (3, 3, 4, 4))] * 3
    assert torch.equal(torch.random.get_rng_state(), before)
