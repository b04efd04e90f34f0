"""Learned attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ldstyle.functional import spatial_softmax
from ldstyle.nn import LLAM

from .nets import seeded


@pytest.fixture
def llam():
    return seeded(lambda: LLAM(8, 3, temperature=7.0))


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    feats = torch.from_numpy(rng.normal(size=(4, 8, 5, 6))).float()
    return feats, torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 1]], dtype=torch.bool)


def test_the_maps_are_two_linear_layers_per_place_and_a_softmax_over_places(llam, batch):
    feats, present = batch
    w1, b1, w2, b2 = (p.detach().double().numpy() for p in llam.parameters())
    wanted = np.zeros((4, 3, 5, 6))
    for i, h, w in np.ndindex(4, 5, 6):
        hidden = np.maximum(w1[:, :, 0, 0] @ feats[i, :, h, w].double().numpy() + b1, 0)
        wanted[i, :, h, w] = np.exp(7.0 * (w2[:, :, 0, 0] @ hidden + b2))
    wanted *= present.numpy()[:, :, None, None]
    mass = wanted.sum(axis=(2, 3), keepdims=True)
    wanted = np.divide(wanted, mass, where=mass > 0, out=np.zeros_like(wanted))
    np.testing.assert_allclose(llam(feats, present).detach().numpy(), wanted, rtol=1e-4, atol=1e-7)


def test_present_labels_have_mass_one_and_absent_ones_none(llam, batch):
    mass = llam(*batch).sum(dim=(2, 3))
    torch.testing.assert_close(mass, batch[1].float())


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
    torch.testing.assert_close(low, llam(*batch), rtol=0.2, atol=5e-3)


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
def test_values_and_gradients_are_those_of_the_convolutions_in_either_memory_order(llam, batch, layout):
    feats, present = batch
    found = []
    for attend in (llam, lambda f, p: spatial_softmax(llam.localize(llam.reduce(f).relu()), p, temperature=7.0)):
        leaf = feats.contiguous(memory_format=layout).requires_grad_()
        attn = attend(leaf, present)
        slopes = torch.autograd.grad(attn.square().sum(), [leaf, *llam.parameters()])
        found.append([attn, *slopes])
    assert found[0][1].stride() == feats.contiguous(memory_format=layout).stride()
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)
