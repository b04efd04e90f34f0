"""Laws of the label-decoupled operators, from raw maps to the restyled map."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.functional import oracles
from tests.functional.cases import (
    OPERATORS,
    PAIRED,
    ROUNDING,
    Case,
    arrays,
    augment,
    backgrounds,
    cases,
    effective,
    make_case,
    top_ratios,
)

from ldstyle import functional as LF
from ldstyle.types import Moments

every_operator = pytest.mark.parametrize("operator", OPERATORS)
paired_operator = pytest.mark.parametrize("operator", PAIRED)


def close(actual, wanted):
    torch.testing.assert_close(actual, wanted.to(torch.float64), rtol=0, atol=ROUNDING)


def inverse(order):
    return torch.argsort(order)


# Identity


@paired_operator
@given(case=cases(), background=backgrounds, top_ratio=top_ratios)
def test_a_coefficient_of_one_is_the_identity(operator, case, background, top_ratio):
    case = case.but(lam=torch.ones_like(case.lam), partner=case.partner.roll(1))
    out = augment(case, operator, background=background, top_ratio=top_ratio, masked=False)
    assert torch.equal(out, case.feats)


@paired_operator
@given(case=cases(), background=backgrounds, masked=st.booleans(), top_ratio=top_ratios)
def test_a_sample_that_is_its_own_partner_is_untouched(operator, case, background, masked, top_ratio):
    case = case.but(partner=torch.arange(len(case.feats)))
    out = augment(case, operator, background=background, top_ratio=top_ratio, masked=masked)
    assert torch.equal(out, case.feats)


@every_operator
@given(case=cases(), background=backgrounds)
def test_a_sample_without_labels_is_untouched(operator, case, background):
    present = case.present.clone()
    present[0] = False
    out = augment(case.but(present=present), operator, background=background, masked=False)
    assert torch.equal(out[0], case.feats[0])


@given(case=cases(), background=backgrounds)
def test_a_strength_of_zero_is_the_identity(case, background):
    assert torch.equal(augment(case, "csu", background=background, strength=0.0), case.feats)


@every_operator
@given(case=cases(dtype=torch.float64))
def test_a_growing_background_tends_to_the_identity(operator, case):
    distances = [
        (augment(case, operator, background=background) - case.feats).abs().max() for background in (1.0, 1e3, 1e9)
    ]
    assert distances[2] <= 1e-5  # up to 4 labels on 30 locations weigh 120 / 1e9, and no value changes by 80
    assert distances[0] >= distances[1] - ROUNDING >= distances[2] - 2 * ROUNDING


# Relation to the global operators


@every_operator
@given(case=cases(dtype=torch.float64))
def test_one_label_everywhere_equals_the_global_operator(operator, case):
    case = case.but(
        attn=torch.full_like(case.attn[:, :1], 0.7),
        present=torch.ones_like(case.present[:, :1]),
        partner=torch.arange(len(case.feats)).roll(1),
        **{name: getattr(case, name)[:, :1] for name in ("lam", "noise", "common")},
    )
    _, std = oracles.global_moments(*arrays(case.feats))
    assume(operator != "mixstyle" or np.abs(np.log10(std / std[case.partner])).max() < 1)  # within the bound on gains
    assume(operator != "csu" or 0.5 * case.noise.abs().max() < 9)
    out = augment(case, operator, background=0.0, top_ratio=1.0, masked=False)
    match operator:
        case "mixstyle":
            close(out, LF.mixstyle(case.feats, case.partner, case.lam[:, 0]))
        case "efdmix":
            close(out, LF.efdmix(case.feats, case.partner, case.lam[:, 0]))
        case _:
            draws = arrays(case.noise[:, 0], case.common[:, 0])
            close(out.double(), torch.from_numpy(oracles.csu_lite(*arrays(case.feats), *draws, 0.5)))


@given(case=cases(dtype=torch.float64))
def test_efdmix_over_the_whole_map_is_global_for_any_positive_attention(case):
    everywhere = torch.ones_like(case.present[:, :1])
    case = case.but(attn=case.attn[:, :1], present=everywhere, partner=case.partner.roll(1), lam=case.lam[:, :1])
    wanted = LF.efdmix(case.feats, case.partner, case.lam[:, 0])
    close(augment(case, "efdmix", background=0.0, top_ratio=1.0, masked=False), wanted)
    attn = LF.unit_mass(case.attn, case.present)
    whole = LF.mix_topk_values(
        case.feats, attn, case.partner, case.lam, top_ratio=0.1, background=0.0, whole_map=everywhere
    )
    close(whole, wanted)


@every_operator
@given(case=cases(min_labels=2, dtype=torch.float64), background=backgrounds)
def test_identical_maps_and_draws_collapse_to_one_label(operator, case, background):
    labels = case.present.shape[1]
    one = case.but(
        present=torch.ones_like(case.present[:, :1]),
        partner=torch.arange(len(case.feats)).roll(1),
        **{name: getattr(case, name)[:, :1] for name in ("attn", "lam", "noise", "common")},
    )
    many = one.but(
        present=torch.ones_like(case.present),
        **{name: torch.cat([getattr(one, name)] * labels, dim=1) for name in ("attn", "lam", "noise", "common")},
    )
    # The background's share is counted against every label's density.
    close(augment(many, operator, background=background), augment(one, operator, background=background / labels))


# Symmetries


@every_operator
@given(case=cases(min_labels=2, dtype=torch.float64), background=backgrounds, data=st.data())
def test_the_order_of_labels_does_not_matter(operator, case, background, data):
    order = torch.tensor(data.draw(st.permutations(range(case.present.shape[1]))))
    names = ("attn", "present", "lam", "noise", "common")
    moved = case.but(**{name: getattr(case, name)[:, order] for name in names})
    close(augment(moved, operator, background=background), augment(case, operator, background=background))


@every_operator
@given(case=cases(dtype=torch.float64), background=backgrounds, data=st.data())
def test_a_permuted_batch_gives_the_permuted_result(operator, case, background, data):
    order = torch.tensor(data.draw(st.permutations(range(len(case.feats)))))
    names = ("feats", "attn", "present", "lam", "noise", "common")
    moved = case.but(
        **{name: getattr(case, name)[order] for name in names}, partner=inverse(order)[case.partner[order]]
    )
    close(augment(moved, operator, background=background), augment(case, operator, background=background)[order])


@every_operator
@given(case=cases(dtype=torch.float64), background=backgrounds, data=st.data())
def test_permuted_channels_give_the_permuted_result(operator, case, background, data):
    order = torch.tensor(data.draw(st.permutations(range(case.feats.shape[1]))))
    moved = case.but(feats=case.feats[:, order], noise=case.noise[:, :, order])
    close(augment(moved, operator, background=background), augment(case, operator, background=background)[:, order])


@every_operator
@given(
    case=cases(relu=False, dtype=torch.float64),
    background=backgrounds,
    axes=st.sampled_from([(-1,), (-2,), (-2, -1)]),
)
def test_flipping_maps_and_features_together_flips_the_result(operator, case, background, axes):
    # Without ties: equal values keep their raster order, which a flip turns around.
    moved = case.but(feats=case.feats.flip(axes), attn=case.attn.flip(axes))
    close(augment(moved, operator, background=background), augment(case, operator, background=background).flip(axes))


@every_operator
@given(case=cases(relu=False, dtype=torch.float64), least=st.sampled_from([0.5, 0.9]), axes=st.sampled_from([-1, -2]))
def test_flips_of_maps_with_empty_places_flip_the_result(operator, case, least, axes):
    case = case.but(attn=case.attn * (case.attn > least))
    moved = case.but(feats=case.feats.flip(axes), attn=case.attn.flip(axes))
    close(augment(moved, operator, background=0.1), augment(case, operator, background=0.1).flip(axes))


@given(case=cases(min_places=4, relu=False, dtype=torch.float64), top_ratio=st.sampled_from([0.3, 0.8, 1.0]))
def test_values_from_places_without_attention_are_never_matched(case, top_ratio):
    """What lies outside both regions may be anything: it neither changes nor gets into the other image."""
    case = case.but(attn=case.attn * (case.attn > 0.6))
    outside = (case.attn == 0).all(dim=1, keepdim=True)
    moved = case.but(feats=torch.where(outside, case.feats + 100, case.feats))
    out, other = (augment(one, "efdmix", background=0.1, top_ratio=top_ratio) for one in (case, moved))
    close(torch.where(outside, other - 100, other), out)


@every_operator
@given(case=cases(), background=backgrounds, exponent=st.integers(-20, 20))
def test_the_scale_of_a_map_does_not_matter(operator, case, background, exponent):
    # Powers of two scale exactly, so even the tiniest place keeps its rank.
    factor = torch.exp2(torch.full(case.lam.shape, float(exponent)) * (case.lam > 0.5))
    moved = case.but(attn=case.attn * factor[:, :, None, None])
    assert torch.equal(augment(moved, operator, background=background), augment(case, operator, background=background))


@every_operator
@given(case=cases(), background=backgrounds, value=st.sampled_from([0.0, 1.0, 1e30, float("inf"), float("nan")]))
def test_the_maps_of_absent_labels_do_not_matter(operator, case, background, value):
    moved = case.but(attn=torch.where(case.present[:, :, None, None], case.attn, value))
    assert torch.equal(augment(moved, operator, background=background), augment(case, operator, background=background))


# Regions


def two_regions(seed: int) -> Case:
    """Label 0 alone on the left and carried by sample 0 only; labels 1 and 2 on the right, shared."""
    case = make_case(seed, batch=2, labels=3, size=(4, 6))
    attn = case.attn.clone()
    attn[:, 0, :, 3:] = 0
    attn[:, 1:, :, :3] = 0
    present = torch.tensor([[True, True, True], [False, True, True]])
    noise, common = case.noise.clone(), case.common.clone()
    noise[:, 0] = common[:, 0] = 0  # the operator without a partner leaves a label alone by drawing nothing for it
    return case.but(attn=attn, present=present, partner=torch.tensor([1, 0]), noise=noise, common=common)


@every_operator
@pytest.mark.parametrize("background", [0.0, 24e-6, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_the_region_of_an_unshared_label_is_untouched(operator, background, seed):
    case = two_regions(seed)
    out = augment(case, operator, background=background)
    assert torch.equal(out[0, :, :, :3], case.feats[0, :, :, :3])
    assert not torch.equal(out[0, :, :, 3:], case.feats[0, :, :, 3:])


@every_operator
@given(case=cases(), background=st.sampled_from([0.0, 0.1]))
def test_places_no_label_covers_are_untouched(operator, case, background):
    attn = case.attn.clone()
    attn[..., 0, :] = 0
    out = augment(case.but(attn=attn), operator, background=background)
    assert torch.equal(out[..., 0, :], case.feats[..., 0, :])


@given(case=cases(dtype=torch.float64), background=backgrounds)
def test_weights_and_residual_sum_to_one(case, background):
    attn = LF.unit_mass(case.attn * (case.attn > 0.4), case.present)
    weights, residual = LF.blend_weights(attn, background=background)
    close(weights.sum(dim=1, keepdim=True) + residual, torch.ones_like(residual))
    assert ((weights >= 0) & (residual >= 0)).all()


@given(case=cases(min_places=2, relu=False, dtype=torch.float64))
def test_one_label_reaches_its_target_moments(case):
    present = torch.ones_like(case.present[:, :1])
    attn = LF.unit_mass(case.attn[:, :1], present)
    old = LF.label_moments(case.feats, attn)
    assume(old.std.min() > 0.05)  # far above ε
    target = Moments(old.mean + case.noise[:, :1], old.std * (case.noise[:, :1].clamp(-2, 2)).exp())
    out = LF.recompose(case.feats, attn, old, target, background=0.0)
    reached = LF.label_moments(out, attn)
    close(reached.mean, target.mean)
    # Both deviations are roots of a variance plus ε: their squares differ by ε (gain² - 1), with gain at most e².
    most = 1e-6 * math.exp(4) / target.std.min().item()
    torch.testing.assert_close(reached.std, target.std, rtol=0, atol=most + ROUNDING)


@given(case=cases(dtype=torch.float64), factor=st.sampled_from([1e-3, 0.02, 60.0, 1e4]))
def test_gains_are_bounded(case, factor):
    attn = LF.unit_mass(case.attn[:, :1], torch.ones_like(case.present[:, :1]))
    old = LF.label_moments(case.feats, attn)
    bounded = Moments(old.mean, old.std * (10.0 if factor > 1 else 0.1))
    actual = LF.recompose(case.feats, attn, old, Moments(old.mean, old.std * factor), background=0.0)
    close(actual, LF.recompose(case.feats, attn, old, bounded, background=0.0))


# Exact distribution matching


@given(case=cases(), background=backgrounds, top_ratio=top_ratios)
def test_efdmix_touches_top_places_only(case, background, top_ratio):
    out = augment(case, "efdmix", background=background, top_ratio=top_ratio)
    attn = LF.unit_mass(case.attn, case.present)
    area = attn[0, 0].numel()
    touched = torch.zeros(len(attn), area, dtype=torch.bool)
    for sample, label in (effective(case) < 1).nonzero().tolist():
        touched[sample, oracles.top_places(attn[sample, label].numpy(), oracles.top_count(top_ratio, area))] = True
    same = (out == case.feats).flatten(2).all(dim=1)
    assert (same | touched).all()


@given(case=cases(dtype=torch.float64), top_ratio=top_ratios)
def test_efdmix_keeps_the_rank_order_and_ends_at_the_partners_values(case, top_ratio):
    present, partner = torch.ones_like(case.present[:, :1]), torch.arange(len(case.feats)).roll(1)
    case = case.but(attn=case.attn[:, :1], present=present, partner=partner, lam=case.lam[:, :1])
    attn, area = LF.unit_mass(case.attn, present), case.attn[0, 0].numel()
    count = oracles.top_count(top_ratio, area)
    chosen = [oracles.top_places(attn[sample, 0].numpy(), count) for sample in range(len(attn))]
    mixed = augment(case, "efdmix", background=0.0, top_ratio=top_ratio, masked=False)
    ended = augment(
        case.but(lam=torch.zeros_like(case.lam)), "efdmix", background=0.0, top_ratio=top_ratio, masked=False
    )
    for sample, places in enumerate(chosen):
        own = case.feats[sample].flatten(1)[:, places]
        order = own.argsort(dim=-1, stable=True)
        inside = mixed[sample].flatten(1)[:, places].gather(1, order)
        assert (inside.diff(dim=-1) >= -1e-6).all()
        theirs = case.feats[partner[sample]].flatten(1)[:, chosen[partner[sample]]]
        close(ended[sample].flatten(1)[:, places].sort(dim=-1).values, theirs.sort(dim=-1).values)


@given(values=st.lists(st.sampled_from([-1.5, -0.0, 0.0, 1e-30, -1e-30, 2.0, 3e38, -3e38]), min_size=1, max_size=40))
def test_the_fast_order_is_the_stable_order(values):
    from ldstyle.functional._fast_matching import sorted_values, stable_order

    row = torch.tensor([values, values[::-1]])
    wanted = torch.sort(row, dim=-1, stable=True)
    assert torch.equal(stable_order(row), wanted.indices)
    assert torch.equal(stable_order(row.double()), wanted.indices)
    assert torch.equal(sorted_values(row), wanted.values)
    assert torch.equal(sorted_values(row.bfloat16()), torch.sort(row.bfloat16(), dim=-1).values)


# Attention


@given(case=cases(min_labels=2))
def test_diversity_lies_between_zero_and_one(case):
    loss = LF.attention_diversity(case.attn, case.present)
    assert 0 <= loss <= 1 + 1e-6


@given(case=cases(min_labels=2, dtype=torch.float64))
def test_diversity_is_the_share_of_samples_with_two_labels_where_maps_are_equal(case):
    equal = case.attn[:, :1].expand_as(case.attn)
    close(LF.attention_diversity(equal, case.present), (case.present.sum(dim=1) >= 2).float().mean())


@given(case=cases(min_labels=2, min_places=2))
def test_diversity_is_zero_for_disjoint_maps(case):
    places = case.attn[0, 0].numel()
    disjoint = torch.eye(places)[: case.attn.shape[1]].view(1, -1, *case.attn.shape[2:]).expand_as(case.attn)
    assert LF.attention_diversity(disjoint, case.present) == 0


@given(case=cases(dtype=torch.float64), exponent=st.integers(-10, 10))
def test_masses_are_one_where_present_and_zero_elsewhere(case, exponent):
    wanted = case.present.float()
    close(LF.unit_mass(case.attn * 10.0**exponent, case.present).sum(dim=(2, 3)), wanted)
    close(LF.spatial_softmax(case.attn, case.present, temperature=5.0).sum(dim=(2, 3)), wanted)


@given(case=cases())
def test_flipping_twice_is_the_identity(case):
    flips = torch.stack([case.common[:, 0] > 0, case.lam[:, 0] > 0.5], dim=1)
    assert torch.equal(LF.flip_maps(LF.flip_maps(case.attn, flips), flips), case.attn)


@given(case=cases(dtype=torch.float64))
def test_the_mean_of_a_raw_map_plus_the_bias_is_the_logit(case):
    weight, bias = case.noise[0], case.common[0]
    logits = torch.nn.functional.linear(case.feats.mean(dim=(2, 3)), weight, bias)
    close(LF.class_activation_maps(case.feats, weight).mean(dim=(2, 3)) + bias, logits)


@given(cases(dtype=torch.float64))
def test_effective_locations_lie_between_one_and_the_map(case):
    attn = LF.unit_mass(case.attn, case.present)
    places = attn.shape[2] * attn.shape[3]
    found = LF.effective_locations(attn)
    there = attn.flatten(2).any(dim=-1)
    assert (found[~there] == 0).all()
    assert (found[there] >= 1 - ROUNDING).all()
    assert (found[there] <= places + ROUNDING).all()
    uniform = torch.full_like(attn, 1 / places)
    close(LF.effective_locations(uniform), torch.full(attn.shape[:2], float(places)))


@given(cases())
def test_the_slope_of_pooled_logits_is_the_learned_map(case):
    logits = case.attn.double().requires_grad_()
    (slope,) = torch.autograd.grad(LF.pooled_logits(logits, temperature=3.0).sum(), logits)
    everywhere = torch.ones_like(case.present)
    torch.testing.assert_close(slope, LF.spatial_softmax(logits.detach(), everywhere, temperature=3.0))


@given(cases(min_places=2, dtype=torch.float64))
def test_the_map_itself_has_the_least_cross_entropy(case):
    everywhere = torch.ones_like(case.present)
    target = LF.spatial_softmax(case.attn, everywhere, temperature=3.0)
    own = LF.attention_cross_entropy(case.attn, target, everywhere, temperature=3.0)
    assert own <= LF.attention_cross_entropy(case.attn.flip(2, 3), target, everywhere, temperature=3.0) + ROUNDING
    uniform = LF.attention_cross_entropy(torch.zeros_like(case.attn), target, everywhere, temperature=3.0)
    close(uniform, torch.ones(()))


@given(place=st.integers(0, 56 * 56 - 1), side=st.sampled_from([28, 14, 7]))
def test_a_region_of_one_place_keeps_its_mass_on_any_coarser_grid(place, side):
    attn = torch.zeros(56 * 56, dtype=torch.float64)
    attn[place] = 1
    mass = LF.resize_maps(attn.view(1, 1, 56, 56), (side, side)).sum().item()
    assert mass > 0.5 * (side / 56) ** 2
