"""Every function against its float64 loop oracle, at sizes that all differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.functional import oracles
from tests.functional.cases import ROUNDING, arrays, at_partner, effective, make_case

from ldstyle import functional as LF
from ldstyle.types import Moments, StyledOutput

SIZES = [
    {},
    {"batch": 1},
    {"labels": 1},
    {"channels": 1},
    {"size": (1, 1)},
    {"size": (9, 2)},
    {"density": 0.0},
    {"density": 1.0, "relu": True},
    {"batch": 9, "domains": 4, "relu": True},
]


@pytest.fixture(params=range(len(SIZES)), ids=lambda number: str(SIZES[number]))
def case(request):
    return make_case(request.param, **SIZES[request.param], dtype=torch.float64)


def close(actual, wanted):
    assert actual.dtype == torch.float64
    np.testing.assert_allclose(actual.detach().numpy(), wanted, rtol=0, atol=ROUNDING)


def test_unit_mass(case):
    attn = case.attn.clone()
    attn[0, 0] = 0  # a label without mass
    close(LF.unit_mass(attn, case.present), oracles.unit_mass(*arrays(attn, case.present)))


def test_label_moments(case):
    attn = LF.unit_mass(case.attn, case.present)
    for actual, wanted in zip(
        LF.label_moments(case.feats, attn), oracles.label_moments(*arrays(case.feats, attn)), strict=True
    ):
        close(actual, wanted)


@pytest.mark.parametrize("background", [0.0, 1e-3, 2.0])
def test_blend_weights(case, background):
    attn = LF.unit_mass(case.attn, case.present)
    attn[0, :, 0, 0] = 0  # a place no label covers
    for actual, wanted in zip(
        LF.blend_weights(attn, background=background), oracles.blend_weights(*arrays(attn), background), strict=True
    ):
        close(actual, wanted)


@pytest.mark.parametrize("max_gain", [10.0, 1.5])
def test_recompose(case, max_gain):
    attn = LF.unit_mass(case.attn, case.present)
    old = LF.label_moments(case.feats, attn)
    new = Moments(old.mean + case.noise, old.std * case.noise.exp())
    actual = LF.recompose(case.feats, attn, old, new, background=0.2, max_gain=max_gain)
    wanted = oracles.recompose(*arrays(case.feats, attn), arrays(*old), arrays(*new), 0.2, max_gain)
    close(actual, wanted)


def test_spatial_softmax(case):
    actual = LF.spatial_softmax(case.attn, case.present, temperature=7.0)
    close(actual, oracles.spatial_softmax(*arrays(case.attn, case.present), 7.0))


def test_attention_diversity(case):
    attn = case.attn.clone()
    attn[-1, 0] = 0  # a present label without mass is similar to nothing
    close(LF.attention_diversity(attn, case.present), oracles.attention_diversity(*arrays(attn, case.present)))


def test_class_activation_maps(case):
    head = case.noise[0]
    close(LF.class_activation_maps(case.feats, head), oracles.class_activation_maps(*arrays(case.feats, head)))


@pytest.mark.parametrize("size", [(1, 1), (3, 11), (12, 14)])
def test_resize_maps(case, size):
    close(LF.resize_maps(case.attn, size), oracles.resize_maps(*arrays(case.attn), size))


def test_flip_maps(case):
    flips = torch.stack([case.common[:, 0] > 0, case.lam[:, 0] > 0.5], dim=1)
    assert np.array_equal(LF.flip_maps(case.attn, flips), oracles.flip_maps(case.attn.numpy(), flips.numpy()))


def test_effective_locations(case):
    attn = LF.unit_mass(case.attn, case.present)
    close(LF.effective_locations(attn), oracles.effective_locations(*arrays(attn)))


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.9])
def test_threshold_maps(case, threshold):
    close(LF.threshold_maps(case.attn, threshold=threshold), oracles.threshold_maps(*arrays(case.attn), threshold))


def test_attention_cross_entropy(case):
    target = LF.unit_mass(case.attn.flip(2), case.present)
    keep = case.present & (case.common > 0)
    actual = LF.attention_cross_entropy(case.attn, target, keep, temperature=7.0)
    close(actual, oracles.attention_cross_entropy(*arrays(case.attn, target, keep), 7.0))


def test_pooled_logits(case):
    close(LF.pooled_logits(case.attn, temperature=7.0), oracles.pooled_logits(*arrays(case.attn), 7.0))


def test_relative_change(case):
    close(LF.relative_change(case.feats, 2 * case.feats), oracles.relative_change(*arrays(case.feats, 2 * case.feats)))


def test_effective_lambda(case):
    for partner in (case.partner, torch.arange(len(case.partner)).roll(1)):
        actual = LF.effective_lambda(case.lam, case.present, partner)
        assert np.array_equal(actual, oracles.effective_lambda(*arrays(case.lam, case.present, partner)))


def test_mix_moments(case):
    own = LF.label_moments(case.feats, LF.unit_mass(case.attn, case.present))
    other = at_partner(own, torch.arange(len(case.partner)).roll(1))
    actual = LF.mix_moments(own, other, case.lam)
    for got, wanted in zip(actual, oracles.mix_moments(arrays(*own), arrays(*other), *arrays(case.lam)), strict=True):
        close(got, wanted)


def test_perturb_moments(case):
    own = LF.label_moments(case.feats, LF.unit_mass(case.attn, case.present))
    actual = LF.perturb_moments(own, case.noise, case.common, strength=0.7)
    wanted = oracles.perturb_moments(arrays(*own), *arrays(case.noise, case.common), 0.7)
    for got, expected in zip(actual, wanted, strict=True):
        close(got, expected)


@pytest.mark.parametrize("top_ratio", [1e-3, 0.34, 1.0])
@pytest.mark.parametrize("least", [0.0, 0.6])  # below it there is no attention, as in masks and thresholded maps
def test_mix_topk_values(case, top_ratio, least):
    attn, lam = LF.unit_mass(case.attn * (case.attn > least), case.present), effective(case)
    whole = case.common > 0
    for whole_map in (None, whole):
        actual = LF.mix_topk_values(
            case.feats, attn, case.partner, lam, top_ratio=top_ratio, background=0.2, whole_map=whole_map
        )
        masks = None if whole_map is None else whole_map.numpy()
        inputs = arrays(case.feats, attn, case.partner, lam)
        close(actual, oracles.mix_topk_values(*inputs, top_ratio, 0.2, masks))


def test_mix_topk_values_takes_places_from_another_ranking(case):
    attn, lam, ranking = LF.unit_mass(case.attn, case.present), effective(case), case.attn.square().flip(-1)
    settings = {"top_ratio": 0.34, "background": 0.2}
    actual = LF.mix_topk_values(case.feats, attn, case.partner, lam, ranking=ranking, **settings)
    inputs = arrays(case.feats, attn, case.partner, lam)
    close(actual, oracles.mix_topk_values(*inputs, **settings, ranking=ranking.numpy()))


@pytest.mark.parametrize(("top_ratio", "area"), [(0.29, (10, 10)), (0.57, (10, 10)), (0.34, (56, 56)), (0.07, (20, 5))])
def test_the_number_of_matched_places_does_not_suffer_from_rounding(top_ratio, area):
    case = make_case(1, batch=2, labels=1, channels=1, size=area, density=1.0)
    partner, lam = torch.tensor([1, 0]), torch.zeros(2, 1)
    attn = LF.unit_mass(case.attn, case.present)
    out = LF.mix_topk_values(case.feats, attn, partner, lam, top_ratio=top_ratio, background=0.0)
    assert (out[0] != case.feats[0]).sum() == oracles.top_count(top_ratio, area[0] * area[1])


def test_mixstyle(case):
    partner, lam = torch.arange(len(case.feats)).roll(1), case.lam[:, 0]
    close(LF.mixstyle(case.feats, partner, lam), oracles.mixstyle(*arrays(case.feats, partner, lam)))


def test_efdmix(case):
    partner, lam = torch.arange(len(case.feats)).roll(1), case.lam[:, 0]
    close(LF.efdmix(case.feats, partner, lam), oracles.efdmix(*arrays(case.feats, partner, lam)))


def test_csu(case):
    inputs = case.feats, case.lam[:, 0], case.noise[:, 0], case.noise[:, -1].flip(0)
    close(LF.csu(*inputs), oracles.csu(*arrays(*inputs)))


def test_csu_with_more_samples_than_channels():
    case = make_case(2, batch=11, channels=3, dtype=torch.float64)
    inputs = case.feats, case.lam[:, 0], case.noise[:, 0], case.noise[:, -1].flip(0)
    close(LF.csu(*inputs), oracles.csu(*arrays(*inputs)))


def test_dsu(case):
    inputs = case.feats, case.noise[:, 0], case.noise[:, -1].flip(0)
    close(LF.dsu(*inputs), oracles.dsu(*arrays(*inputs)))


def test_blend_pathways(case):
    local, other, share = case.feats, case.feats.flip(0).square(), case.lam[:, 0]
    close(LF.blend_pathways(local, other, 0.3), 0.3 * local.numpy() + 0.7 * other.numpy())
    wanted = [s * a + (1 - s) * b for s, a, b in zip(*arrays(share, local, other), strict=True)]
    close(LF.blend_pathways(local, other, share), np.stack(wanted))


@pytest.mark.parametrize("masked", [False, True])
def test_objective(case, masked):
    known = case.lam < 0.5 if masked else None
    output = StyledOutput(logits=case.common, diversity=torch.tensor(0.4, dtype=torch.float64))
    actual = LF.objective(output, case.present, diversity_weight=0.3, known=known)
    inputs = arrays(case.common, case.present)
    close(actual, oracles.objective(*inputs, 0.4, 0.3, None if known is None else known.numpy()))


def test_equal_attention_is_ranked_by_place():
    feats = torch.arange(12.0).view(1, 1, 3, 4).repeat(2, 1, 1, 1)
    feats[1] += 100
    attn = torch.full((2, 1, 3, 4), 1 / 12)
    mixed = LF.mix_topk_values(feats, attn, torch.tensor([1, 0]), torch.zeros(2, 1), top_ratio=0.5, background=0.0)
    assert torch.equal(mixed[0].flatten(), torch.cat([torch.arange(6.0) + 100, torch.arange(6.0, 12.0)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relative_change_of_constant_maps_is_zero_though_their_means_are_rounded(dtype):
    before = torch.full((3, 5, 56, 56), 0.1, dtype=dtype) * torch.arange(1, 6, dtype=dtype)[:, None, None]
    assert LF.relative_change(before, before + 0.5).eq(0).all()


def test_relative_change_is_exact_where_the_mean_is_far_above_the_spread():
    before = 100 + torch.randn(2, 4, 56, 56, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = LF.relative_change(before, before + 0.5)
    torch.testing.assert_close(
        LF.relative_change(before.float(), before.float() + 0.5).double(), expected, rtol=1e-5, atol=0
    )
