"""Numbers of the paper that need no training: parameters and multiply-accumulates (Table 9)."""

from __future__ import annotations

import pytest
import timm
import torch
from tests.nn.nets import make_context, make_images, seeded
from torch.utils.flop_counter import FlopCounterMode

import ldstyle
from ldstyle.config import EFDMixConfig, GlobalConfig, GradCamConfig, LabelDecoupledConfig, LLAMConfig, MixStyleConfig

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")

LABELS = 6
PARAMETERS = 23_520_326
ATTENTION = {1: 16_838, 2: 66_438}
GIGA_MACS = 4.087


@pytest.fixture(scope="module")
def resnet50():
    return seeded(lambda: timm.create_model("resnet50", num_classes=LABELS)).eval()


@pytest.fixture(scope="module")
def net(resnet50):
    style = LabelDecoupledConfig(EFDMixConfig(), LLAMConfig())
    return ldstyle.attach(resnet50, style, stages=(1, 2), num_labels=LABELS, image_size=(64, 64)).eval()


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def giga_macs(function, *args):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function(*args)
    return counter.get_total_flops() / 2e9  # a multiply-accumulate is two operations


def test_resnet50_with_six_outputs_has_the_papers_parameters(resnet50):
    assert count(resnet50) == PARAMETERS


def test_learned_attention_on_the_first_two_stages_adds_a_third_of_a_percent(net):
    assert [count(module) for module in net.styles] == list(ATTENTION.values())
    assert count(net) == PARAMETERS + 83_276
    assert f"{83_276 / PARAMETERS:.2%}" == "0.35%"


def test_nothing_but_learned_attention_has_parameters(resnet50):
    size = {"num_labels": LABELS, "num_samples": 8, "image_size": (64, 64)}
    for style in (
        GlobalConfig(MixStyleConfig()),
        LabelDecoupledConfig(MixStyleConfig(), GradCamConfig(), bank_size=16),
    ):
        assert count(ldstyle.attach(resnet50, style, stages=(1, 2), **size)) == PARAMETERS


def test_inference_costs_what_the_plain_backbone_costs(resnet50, net):
    image = make_images(1, size=(224, 224))
    plain, styled = giga_macs(resnet50, image), giga_macs(net, image)
    assert round(plain, 3) == GIGA_MACS
    assert styled == plain
    assert giga_macs(net, image, make_context(1, labels=LABELS)) == plain


def test_the_exported_model_has_the_plain_backbones_parameters_and_outputs(net):
    fresh = timm.create_model("resnet50", num_classes=LABELS)
    fresh.load_state_dict(net.backbone.state_dict())
    image = make_images(1, size=(64, 64))
    assert torch.equal(fresh.eval()(image), net(image))
