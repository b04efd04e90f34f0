"""Learned attention."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.nn.nets import seeded
from tests.tolerance import bound

from ldstyle.config import EFDMixConfig, LabelDecoupledConfig, LLAMConfig
from ldstyle.functional import spatial_softmax
from ldstyle.nn import LLAM, attach
from ldstyle.runs.backbone import build_backbone
from ldstyle.runs.config import BackboneConfig
from ldstyle.types import StyleContext


@pytest.fixture
def llam():
    return seeded(lambda: LLAM(8, 3, temperature=7.0))


def bare(**settings):
    return seeded(lambda: LLAM(8, 3, temperature=7.0, input_norm="none", **settings))


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    feats = torch.from_numpy(rng.normal(size=(4, 8, 5, 6))).float()
    return feats, torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize("norm", ["instance", "none"])
def test_the_maps_are_two_linear_layers_per_place_and_a_softmax_over_places(norm, batch):
    feats, present = batch
    feats = feats.double()
    llam = seeded(lambda: LLAM(8, 3, temperature=7.0, input_norm=norm)).double()
    if norm == "instance":
        variance = feats.var(dim=(2, 3), correction=0, keepdim=True)
        given = (feats - feats.mean(dim=(2, 3), keepdim=True)) / (variance + 1e-6).sqrt()
    else:
        given = feats
    w1, b1, w2, b2 = (p.detach().double().numpy() for p in llam.parameters())
    wanted = np.zeros((4, 3, 5, 6))
    for i, h, w in np.ndindex(4, 5, 6):
        hidden = np.maximum(w1[:, :, 0, 0] @ given[i, :, h, w].double().numpy() + b1, 0)
        wanted[i, :, h, w] = np.exp(7.0 * (w2[:, :, 0, 0] @ hidden + b2))
    wanted *= present.numpy()[:, :, None, None]
    mass = wanted.sum(axis=(2, 3), keepdims=True)
    wanted = np.divide(wanted, mass, where=mass > 0, out=np.zeros_like(wanted))
    # Two layers of 8 and 2 terms, the mean and variance of 30 locations, and an exponent of up to 7 times the logit.
    np.testing.assert_allclose(llam(feats, present).detach().numpy(), wanted, rtol=0, atol=bound(100, scale=100))


def test_present_labels_have_mass_one_and_absent_ones_none(llam, batch):
    mass = llam(*batch).sum(dim=(2, 3))
    torch.testing.assert_close(mass, batch[1].float(), rtol=0, atol=bound(2 * 30, dtype=torch.float32))


@pytest.mark.parametrize(("channels", "labels"), [(256, 6), (512, 6), (7, 60), (3, 1)])
def test_parameters_follow_from_the_widths(channels, labels):
    hidden = max(1, channels // 4)
    count = sum(p.numel() for p in LLAM(channels, labels, temperature=1.0).parameters())
    assert count == channels * hidden + hidden + hidden * labels + labels


def test_a_higher_temperature_gathers_the_mass_at_the_peak(llam, batch):
    before = llam(*batch)
    llam.temperature = 70.0
    after = llam(*batch)
    assert torch.all((after.amax(dim=(2, 3)) >= before.amax(dim=(2, 3)))[batch[1]])
    assert torch.equal(before.flatten(2).argmax(-1)[batch[1]], after.flatten(2).argmax(-1)[batch[1]])


def test_maps_stay_float32_and_close_under_autocast(llam, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = llam(*batch)
    assert low.dtype == torch.float32
    # Two layers round inputs, weights and result to bfloat16; the logit times the temperature is an exponent, of the
    # value and of the sum that it is divided by.
    w1, b1, w2, b2 = (parameter.detach().abs() for parameter in llam.parameters())
    magnitude = F.conv2d(F.conv2d(F.instance_norm(batch[0]).abs(), w1, b1), w2, b2).max().item()
    exponent = 7.0 * bound(2 * 3, scale=magnitude, dtype=torch.bfloat16)
    torch.testing.assert_close(low, llam(*batch), rtol=math.expm1(2 * exponent), atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variation", [0.0, 0.02, 1.0])
def test_nearly_constant_channels_do_not_disturb_the_maps_under_autocast(variation, dtype):
    rng = np.random.default_rng(2)
    feats = torch.from_numpy(rng.normal(size=(4, 16, 9, 11))).float().relu()
    feats[:, :4] = 5 + variation * feats[:, :4]
    feats, present = feats.bfloat16(), torch.ones(4, 3, dtype=torch.bool)
    llam = seeded(lambda: LLAM(16, 3, temperature=7.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = llam(feats.to(dtype), present)
    distance = (low - llam(feats.float(), present)).abs().sum(dim=(2, 3))
    # Rounding of the logits to bfloat16, times the temperature; logits are below one.
    assert distance.max().item() < 7.0 * bound(2, dtype=torch.bfloat16)


def test_its_state_restores_its_maps(llam, batch):
    other = seeded(lambda: LLAM(8, 3, temperature=7.0), seed=1)
    assert not torch.equal(other(*batch), llam(*batch))
    other.load_state_dict(llam.state_dict())
    assert torch.equal(other(*batch), llam(*batch))


def test_its_settings_are_shown(llam):
    assert "temperature=7" in repr(llam)


def test_presence_must_be_bool(llam, batch):
    with pytest.raises(TypeError, match=r"`present` must be bool; got torch.float32. Use labels == 1"):
        llam(batch[0], batch[1].float())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("norm", ["instance", "none"])
def test_values_and_gradients_are_those_of_the_convolutions_in_either_memory_order(batch, norm, layout):
    feats, present = batch
    llam = seeded(lambda: LLAM(8, 3, temperature=7.0, input_norm=norm, input_gradient=True)).double()

    def convolved(f, p):
        f = F.instance_norm(f, eps=1e-6) if norm == "instance" else f
        return spatial_softmax(llam.localize(llam.reduce(f).relu()), p, temperature=7.0)

    found = []
    for attend in (llam, convolved):
        leaf = feats.double().contiguous(memory_format=layout).requires_grad_()
        attn = attend(leaf, present)
        slopes = torch.autograd.grad(attn.square().sum(), [leaf, *llam.parameters()])
        found.append([attn, *slopes])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


def test_the_standardised_input_makes_maps_independent_of_scale_and_shift(batch):
    feats, present = batch
    llam = seeded(lambda: LLAM(8, 3, temperature=7.0)).double()
    scale, shift = torch.linspace(0.5, 30, 8)[:, None, None], torch.linspace(-9, 9, 8)[:, None, None]
    # The variance carries an ε of 1e-6, so that scaling is exact up to that fraction only.
    torch.testing.assert_close(
        llam(feats.double() * scale + shift, present), llam(feats.double(), present), rtol=1e-3, atol=1e-6
    )
    assert not torch.allclose(bare()(feats * 9, present), bare()(feats, present), atol=0.1)


@pytest.mark.parametrize("attached", [False, True])
def test_the_input_passes_its_gradient_on_only_on_request(batch, attached):
    feats = batch[0].clone().requires_grad_()
    llam = seeded(lambda: LLAM(8, 3, temperature=7.0, input_gradient=attached))
    llam(feats, batch[1]).square().sum().backward()
    assert (feats.grad is not None) == attached
    assert llam.reduce.weight.grad.any()


def test_a_constant_channel_is_no_trouble(llam, batch):
    feats = batch[0].clone()
    feats[:, 3] = 5.0
    maps = llam(feats, batch[1])
    assert maps.isfinite().all()
    torch.testing.assert_close(maps.sum(dim=(2, 3)), batch[1].float(), rtol=0, atol=bound(2 * 30, dtype=torch.float32))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("tf_efficientnet_lite0", "none"),
        ("tf_efficientnet_lite0", "efficientnet_lite0"),
        ("resnet50", "none"),
        ("convnext_tiny", "none"),
    ],
)
def test_maps_are_neither_a_point_nor_uniform_before_training(name, weights):
    config = BackboneConfig(name=name, weights=weights)
    backbone = build_backbone(config, num_labels=6, image_size=112, seed=0)
    style = LabelDecoupledConfig(EFDMixConfig(), LLAMConfig(), gate_prob=0.0)
    net = seeded(lambda: attach(backbone, style, stages=(1, 2), num_labels=6, image_size=(112, 112))).train()
    scenes = torch.stack([torch.from_numpy(smooth_image(seed)) for seed in range(4)])
    context = StyleContext(torch.ones(4, 6, dtype=torch.bool), torch.arange(4) % 2, None, None, epoch=1)
    with torch.no_grad():
        figures = net(scenes, context).diagnostics
    fractions = [float(value) for key, value in figures.items() if key.startswith("locations/")]
    assert len(fractions) == 2
    assert all(0.05 <= fraction <= 0.8 for fraction in fractions), fractions


def smooth_image(seed, size=112):
    """An image with structure at several scales, of unit variance, (3, S, S)."""
    rng = np.random.default_rng(seed)
    image = np.zeros((3, size, size), dtype=np.float32)
    for cells in (4, 14, 56):
        coarse = rng.normal(size=(3, cells, cells))
        image += np.kron(coarse, np.ones((1, size // cells, size // cells))).astype(np.float32)
    return image / image.std()
