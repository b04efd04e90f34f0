"""The equations of the baselines: against their loops, their laws, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.functional import oracles_baselines as oracles
from tests.functional.cases import ROUNDING, arrays, make_case
from torch.autograd import gradcheck

from ldstyle import functional as LF

SIZES = [{}, {"batch": 1}, {"channels": 1}, {"size": (1, 1)}, {"size": (9, 2)}, {"batch": 9, "domains": 4}]
SHAPES = [  # γ₊, γ₋, m, w₋
    (0.0, 0.0, 0.0, 1.0),
    (2.0, 2.0, 0.0, 0.75),
    (0.0, 4.0, 0.05, 1.0),
    (1.0, 0.5, 0.3, 1.0),
    (0.5, 0.0, 0.2, 1.0),
]


@pytest.fixture(params=range(len(SIZES)), ids=lambda number: str(SIZES[number]))
def case(request):
    return make_case(request.param, **SIZES[request.param], dtype=torch.float64)


def close(actual, wanted):
    assert actual.dtype == torch.float64
    np.testing.assert_allclose(actual.detach().numpy(), wanted, rtol=0, atol=ROUNDING)


def others(case):
    """A partner for everyone, by a shift of the batch."""
    return torch.arange(len(case.feats)).roll(1)


def test_mix_samples(case):
    partner, lam = others(case), case.lam[:, 0]
    for samples in (case.feats, case.common):
        close(LF.mix_samples(samples, partner, lam), oracles.mix_samples(*arrays(samples, partner, lam)))


def test_mix_amplitudes(case):
    partner, lam = others(case), case.lam[:, 0]
    close(LF.mix_amplitudes(case.feats, partner, lam), oracles.mix_amplitudes(*arrays(case.feats, partner, lam)))


@pytest.mark.parametrize("mix", [LF.mix_samples, LF.mix_amplitudes])
def test_mixing_by_one_or_with_oneself_is_the_identity(case, mix):
    ones, itself = torch.ones(len(case.feats)), torch.arange(len(case.feats))
    assert torch.equal(mix(case.feats, others(case), ones), case.feats)
    assert torch.equal(mix(case.feats, itself, case.lam[:, 0]), case.feats)


def test_mixed_amplitudes_leave_the_phase(case):
    mixed = LF.mix_amplitudes(case.feats.double(), others(case), torch.zeros(len(case.feats)))
    got, own, other = (
        torch.fft.fft2(images) for images in (mixed, case.feats.double(), case.feats.double().roll(1, 0))
    )
    torch.testing.assert_close(got.abs(), other.abs(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got / got.abs(), own / own.abs(), rtol=1e-6, atol=1e-6)


def test_covariance_distance(case):
    pooled = case.noise.flatten(1)
    close(LF.covariance_distance(pooled, case.domain), oracles.covariance_distance(*arrays(pooled, case.domain)))


def test_domains_of_equal_features_have_no_distance_and_single_samples_take_no_part():
    pooled = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    twice = torch.cat([pooled, pooled])
    assert LF.covariance_distance(twice, torch.arange(6) // 3) == 0
    alone = torch.cat([twice, torch.full((1, 4), 9.0)])
    assert LF.covariance_distance(alone, torch.tensor([0, 0, 0, 1, 1, 1, 2])) == 0
    assert LF.covariance_distance(pooled, torch.zeros(3, dtype=torch.int64)) == 0


def test_feature_likelihood(case):
    frozen, raw = case.feats.flip(0), case.noise[0, 0]
    close(LF.feature_likelihood(case.feats, frozen, raw), oracles.feature_likelihood(*arrays(case.feats, frozen, raw)))


def test_the_best_variance_is_the_mean_square_of_the_differences():
    """The slope of the likelihood vanishes there, which is how the variances are learned."""
    case = make_case(3, dtype=torch.float64)
    frozen = case.feats.flip(0)
    best = (case.feats - frozen).square().mean(dim=(0, 2, 3)) - 1e-5
    raw = best.expm1().log().requires_grad_()
    LF.feature_likelihood(case.feats, frozen, raw).backward()
    assert raw.grad.abs().max() < 1e-12


@pytest.mark.parametrize("step_size", [0.0, 0.01, 3.0])
def test_reweigh_domains(step_size):
    weights, losses = torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 2.5]], dtype=torch.float64)
    new = LF.reweigh_domains(weights, losses, step_size=step_size)
    close(new, oracles.reweigh_domains(*arrays(weights, losses), step_size))
    assert new.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("shape", SHAPES)
def test_label_losses(case, shape):
    positive, negative, margin, absent_weight = shape
    weights = case.lam[0] + 0.5
    got = LF.label_losses(
        case.common,
        case.lam,
        positive_weight=weights,
        negative_weight=absent_weight,
        gamma_positive=positive,
        gamma_negative=negative,
        margin=margin,
    )
    wanted = oracles.label_losses(*arrays(case.common, case.lam, weights), absent_weight, positive, negative, margin)
    close(got, wanted)


def test_the_loss_without_focusing_is_torchs_cross_entropy():
    case = make_case(4)
    weights = case.lam[0] + 0.5
    wanted = F.binary_cross_entropy_with_logits(case.common, case.present.float(), reduction="none", pos_weight=weights)
    torch.testing.assert_close(LF.label_losses(case.common, case.present, positive_weight=weights), wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_loss_of_a_mixed_label_is_the_mixture_of_losses(shape):
    positive, negative, margin, _ = shape
    case = make_case(5, dtype=torch.float64)

    def loss(labels):
        return LF.label_losses(case.common, labels, gamma_positive=positive, gamma_negative=negative, margin=margin)

    one, other = case.present.double(), case.present.double().flip(0)
    torch.testing.assert_close(loss(0.3 * one + 0.7 * other), 0.3 * loss(one) + 0.7 * loss(other))


@pytest.mark.parametrize("shape", SHAPES)
def test_losses_and_slopes_stay_finite_at_extreme_logits(shape):
    positive, negative, margin, _ = shape
    logits = torch.tensor([[-200.0, 200.0], [-90.0, 90.0]], requires_grad=True)
    for labels in (torch.zeros(2, 2), torch.ones(2, 2)):
        losses = LF.label_losses(
            logits, labels, gamma_positive=positive, gamma_negative=negative, margin=max(margin, 0.0)
        )
        assert losses.isfinite().all()
        (slopes,) = torch.autograd.grad(losses.sum(), logits)
        assert slopes.isfinite().all()


def test_gradients_are_right():
    case = make_case(6, batch=5, channels=3, size=(2, 3), dtype=torch.float64, domains=2)
    feats, raw = case.feats.clone().requires_grad_(), case.noise[0, 0].clone().requires_grad_()
    assert gradcheck(lambda f, r: LF.feature_likelihood(f, case.feats.flip(0), r), (feats, raw))
    pooled = case.noise.flatten(1).clone().requires_grad_()
    assert gradcheck(lambda p: LF.covariance_distance(p, case.domain), pooled)
    logits = case.common.clone().requires_grad_()
    for positive, negative, margin, _ in SHAPES:
        settings = {"gamma_positive": positive, "gamma_negative": negative, "margin": margin}
        assert gradcheck(lambda z, settings=settings: LF.label_losses(z, case.lam, **settings), logits)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        ("mix_amplitudes", {"images": torch.ones(2, 3, 4)}, ValueError, r"`images` must be .* got .*\(2, 3, 4\)"),
        ("mix_amplitudes", {"lam": torch.ones(2)}, ValueError, r"`lam` must have shape \(B,\) = \(5,\); got \(2,\)"),
        ("mix_samples", {"partner": torch.zeros(5)}, TypeError, r"`partner` must be int64"),
        ("covariance_distance", {"pooled": torch.ones(5)}, ValueError, r"`pooled` must be .* got .*\(5,\)"),
        ("covariance_distance", {"domain": torch.zeros(4)}, ValueError, r"`domain` must have shape \(B,\) = \(5,\)"),
        ("feature_likelihood", {"raw_variance": torch.ones(9)}, ValueError, r"`raw_variance` must have shape \(C,\)"),
        ("feature_likelihood", {"frozen": torch.ones(1)}, ValueError, r"`frozen` must have shape"),
        ("reweigh_domains", {"losses": torch.ones(9)}, ValueError, r"`losses` must have shape \(S,\)"),
        ("label_losses", {"labels": torch.ones(5, 9)}, ValueError, r"`labels` must have shape \(B, L\) = \(5, 3\)"),
        ("label_losses", {"logits": torch.ones(5)}, ValueError, r"`logits` must be .* got .*\(5,\)"),
        ("label_losses", {"positive_weight": torch.ones(9)}, ValueError, r"`positive_weight` must have shape \(L,\)"),
    ],
)
def test_bad_input_is_named(function, arguments, error, message):
    from .cases import calls

    with pytest.raises(error, match=message):
        getattr(LF, function)(**{**calls(make_case(0))[function], **arguments})
