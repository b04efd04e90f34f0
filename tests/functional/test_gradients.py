"""Where a gradient is promised it is the right one, and where none is promised there is none."""

from __future__ import annotations

import pytest
import torch
from tests.functional import oracles
from tests.functional.cases import OPERATORS, ROUNDING, arrays, at_partner, effective, make_case
from tests.tolerance import bound
from torch.autograd import gradcheck

from ldstyle import functional as LF
from ldstyle.functional import _fast_matching
from ldstyle.types import Moments

SMALL = {"batch": 3, "labels": 2, "channels": 4, "size": (2, 5), "density": 0.8, "domains": 2}
layouts = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])


@pytest.fixture
def case():
    return make_case(7, **SMALL, dtype=torch.float64)


def leaf(tensor, layout=None):
    copy = tensor.detach().clone()
    return (copy if layout is None else copy.contiguous(memory_format=layout)).requires_grad_()


def test_unit_mass_has_the_right_gradient(case):
    attn = case.attn.clone()
    attn[0, 0] = 0  # no mass: the gradient stays finite
    assert gradcheck(lambda a: LF.unit_mass(a, case.present), leaf(case.attn))
    raw = leaf(attn)
    LF.unit_mass(raw, case.present).square().sum().backward()
    assert raw.grad.isfinite().all()


def test_spatial_softmax_has_the_right_gradient(case):
    assert gradcheck(lambda z: LF.spatial_softmax(z, case.present, temperature=3.0), leaf(case.attn))


def test_attention_diversity_has_the_right_gradient(case):
    present = torch.ones_like(case.present)
    assert gradcheck(lambda a: LF.attention_diversity(a, present), leaf(case.attn))
    raw = leaf(case.attn * torch.tensor([1.0, 0.0])[None, :, None, None])  # one label has no mass
    LF.attention_diversity(raw, present).backward()
    assert raw.grad.isfinite().all()


@layouts
def test_label_moments_have_the_right_gradient(case, layout):
    attn = LF.unit_mass(case.attn, torch.ones_like(case.present))
    assert gradcheck(lambda f, a: tuple(LF.label_moments(f, a)), (leaf(case.feats, layout), leaf(attn)))


@layouts
def test_recompose_has_the_right_gradient_in_every_argument(case, layout):
    attn = LF.unit_mass(case.attn, case.present)
    old = LF.label_moments(case.feats, attn)
    new = Moments(old.mean + case.noise, old.std * 1.3)

    def run(feats, maps, *moments):
        return LF.recompose(feats, maps, Moments(*moments[:2]), Moments(*moments[2:]), background=0.2)

    assert gradcheck(run, (leaf(case.feats, layout), leaf(attn), *map(leaf, (*old, *new))))


@layouts
@pytest.mark.parametrize("needed", [(True, False, False), (False, True, False), (False, False, True)])
def test_recompose_gives_each_gradient_alone_as_together(case, layout, needed):
    attn = LF.unit_mass(case.attn, case.present)
    old = LF.label_moments(case.feats, attn)
    slopes = torch.randn(case.feats.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def gradients(flags):
        feats, maps, mean = leaf(case.feats, layout), leaf(attn), leaf(old.mean + case.noise)
        for tensor, flag in zip((feats, maps, mean), flags, strict=True):
            tensor.requires_grad_(flag)
        LF.recompose(feats, maps, old, Moments(mean, old.std * 1.3), background=0.2).backward(slopes)
        return [tensor.grad for tensor in (feats, maps, mean)]

    together = gradients((True, True, True))
    for wanted, got, flag in zip(together, gradients(needed), needed, strict=True):
        assert torch.allclose(got, wanted) if flag else got is None


@layouts
@pytest.mark.parametrize("whole", [False, True])
def test_matched_values_teach_the_attention(case, layout, whole):
    attn = LF.unit_mass(case.attn, torch.ones_like(case.present))
    partner = torch.tensor([1, 2, 0])
    feats = case.feats.contiguous(memory_format=layout)

    def run(maps):
        return LF.mix_topk_values(
            feats,
            maps,
            partner,
            case.lam,
            top_ratio=0.34,
            background=0.2,
            whole_map=torch.full_like(case.present, whole),
        )

    assert gradcheck(run, leaf(attn))


@layouts
def test_the_gradient_passes_straight_through_and_not_to_the_partner(case, layout):
    attn = LF.unit_mass(case.attn, torch.ones_like(case.present))
    partner = torch.tensor([1, 2, 0])
    slopes = torch.zeros_like(case.feats)
    slopes[0] = case.feats[1].exp()  # only the first sample is asked for
    feats = leaf(case.feats, layout)
    LF.mix_topk_values(feats, attn, partner, case.lam, top_ratio=0.34, background=0.2).backward(slopes)
    assert torch.equal(feats.grad, slopes)


@layouts
@pytest.mark.parametrize("relu", [False, True])
def test_global_efdmix_has_the_published_value_and_gradient(layout, relu):
    case = make_case(4, batch=5, channels=3, size=(4, 5), relu=relu, dtype=torch.float64)
    partner, lam = torch.tensor([1, 2, 0, 3, 0]), case.lam[:, 0]
    slopes = case.feats.cos()
    feats = leaf(case.feats, layout)
    mixed = LF.efdmix(feats, partner, lam)
    mixed.backward(slopes)
    value, gradient = oracles.published_efdmix(*arrays(case.feats, partner, lam, slopes))
    torch.testing.assert_close(mixed.detach(), torch.from_numpy(value))
    torch.testing.assert_close(feats.grad, torch.from_numpy(gradient))


@pytest.mark.parametrize(("batch", "channels"), [(4, 6), (7, 3)])
def test_published_csu_passes_its_gradient_through_the_covariance(batch, channels):
    """Against the symmetric root of the whole covariance, differentiated numerically."""
    case = make_case(8, batch=batch, labels=2, channels=channels, size=(3, 4), dtype=torch.float64)
    feats, factor, noise = leaf(case.feats), case.lam[:, 0], (case.noise[:, 0], case.noise[:, 1])
    slopes = case.feats.cos()
    LF.csu(feats, factor, *noise).backward(slopes)
    step = 1e-6
    for place in ((0, 0, 1, 2), (batch - 1, channels - 1, 2, 0), (1, 1, 0, 3)):
        moved = [case.feats.clone(), case.feats.clone()]
        moved[0][place] += step
        moved[1][place] -= step
        up, down = (oracles.csu(*arrays(f, factor, *noise)) for f in moved)
        wanted = ((up - down) / (2 * step) * slopes.numpy()).sum()
        # Central differences are right up to step² and rounding / step, both about 1e-10 here.
        assert feats.grad[place].item() == pytest.approx(wanted, rel=1e-6, abs=1e-7)


def test_global_mixstyle_sends_no_gradient_through_statistics(case):
    feats, partner = leaf(case.feats), torch.tensor([1, 2, 0])
    slopes = torch.zeros_like(case.feats)
    slopes[0] = 1.0
    LF.mixstyle(feats, partner, case.lam[:, 0]).backward(slopes)
    assert torch.equal(feats.grad[1:], torch.zeros_like(feats.grad[1:]))
    std = (case.feats.var(dim=(2, 3), correction=0) + 1e-6).sqrt()
    gain = (std + (1 - case.lam[:, :1]) * (std[partner] - std)) / std
    torch.testing.assert_close(feats.grad[0], gain[0, :, None, None].expand_as(feats.grad[0]))


@pytest.mark.parametrize("name", ["csu", "dsu"])
def test_uncertainty_operators_have_finite_gradients(case, name):
    feats = leaf(case.feats)
    noise = case.noise[:, 0], case.noise[:, 1]
    out = LF.dsu(feats, *noise) if name == "dsu" else LF.csu(feats, case.lam[:, 0], *noise)
    out.square().sum().backward()
    assert feats.grad.isfinite().all()
    assert feats.grad.abs().max() > 0


@pytest.mark.parametrize("operator", OPERATORS)
def test_learned_attention_gets_a_finite_gradient_under_every_operator(operator):
    """Statistics take F without and A with gradient, the partner's neither."""
    case = make_case(3, batch=4, labels=3, density=1.0, domains=2)
    case = case.but(domain=torch.tensor([0, 1, 0, 1]), partner=torch.tensor([1, 0, 3, 2]))
    logits, feats = leaf(case.attn), leaf(case.feats)
    attn = LF.spatial_softmax(logits, case.present, temperature=2.0)
    if operator == "efdmix":
        out = LF.mix_topk_values(feats, attn, case.partner, effective(case), top_ratio=0.34, background=0.1)
    else:
        own = LF.label_moments(feats.detach(), attn)
        other = at_partner(Moments(own.mean.detach(), own.std.detach()), case.partner)
        new = (
            LF.mix_moments(own, other, effective(case))
            if operator == "mixstyle"
            else LF.perturb_moments(own, case.noise, case.common, strength=0.5)
        )
        out = LF.recompose(feats, attn, own, new, background=0.1)
    out.square().sum().backward()
    for tensor in (logits, feats):
        assert tensor.grad.isfinite().all()
        assert (tensor.grad.flatten(1).abs().amax(dim=1) > 0).all()


@pytest.mark.parametrize("operator", ["recompose", "mix_topk_values"])
def test_attention_gradients_in_half_precision_agree(operator):
    case = make_case(5, batch=4, density=1.0)
    maps = LF.unit_mass(case.attn, case.present)
    old = LF.label_moments(case.feats, maps)
    new = Moments(old.mean + case.noise, old.std * 1.3)

    lowered, slopes = case.feats.bfloat16(), case.feats.cos().bfloat16()  # exact in both precisions

    def gradients(dtype):
        feats, attn = leaf(lowered.to(dtype)), leaf(maps)
        if operator == "recompose":
            out = LF.recompose(feats, attn, old, new, background=0.1)
        else:
            partner = torch.tensor([1, 0, 3, 2])
            out = LF.mix_topk_values(feats, attn, partner, case.lam, top_ratio=0.34, background=0.1)
        out.backward(slopes.to(dtype))
        return feats.grad.float(), attn.grad

    for wanted, got in zip(gradients(torch.float32), gradients(torch.bfloat16), strict=True):
        assert got.dtype == torch.float32
        # Four channels, each with a difference, two products and a sum in bfloat16.
        tolerance = bound(4 * 4, scale=wanted.abs().max().item(), dtype=torch.bfloat16)
        torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)


def test_a_broadcast_slope_gives_the_gradient_of_a_full_one(case):
    attn = LF.unit_mass(case.attn, case.present)
    old = LF.label_moments(case.feats, attn)
    results = []
    for slopes in (torch.ones((), dtype=torch.float64).expand_as(case.feats), torch.ones_like(case.feats)):
        feats, maps = leaf(case.feats), leaf(attn)
        LF.recompose(feats, maps, old, Moments(old.mean + 1, old.std), background=0.1).backward(slopes)
        results.append((feats.grad, maps.grad))
    for broadcast, full in zip(*results, strict=True):
        torch.testing.assert_close(broadcast, full)


def saved_changes(output):
    return output.grad_fn.kept


@pytest.mark.parametrize("relu", [False, True])
def test_changes_computed_again_equal_changes_kept(relu, monkeypatch):
    """With many labels the changes outgrow one map and are computed again in the backward pass."""
    sizes = {"batch": 4, "channels": 5, "size": (4, 6), "density": 1.0}
    partner = torch.tensor([1, 0, 3, 2])

    def gradient(labels, *, keep):
        case = make_case(11, labels=labels, relu=relu, dtype=torch.float64, **sizes)
        attn = leaf(LF.unit_mass(case.attn, case.present))
        counter = []
        original = _fast_matching._changes
        monkeypatch.setattr(_fast_matching, "_changes", lambda *given: counter.append(1) or original(*given))
        out = LF.mix_topk_values(case.feats, attn, partner, case.lam, top_ratio=0.34, background=0.1)
        assert (saved_changes(out) is not None) == keep
        forward = len(counter)
        out.backward(case.feats.cos())
        assert len(counter) == (forward if keep else 2 * forward)
        monkeypatch.setattr(_fast_matching, "_changes", original)
        return attn.grad

    few, many = gradient(2, keep=True), gradient(12, keep=False)
    assert few.abs().max() > 0
    # The same problem, group by group, so that each one fits: the changes of the groups add up, and so do the slopes.
    case = make_case(11, labels=12, relu=relu, dtype=torch.float64, **sizes)
    attn = leaf(LF.unit_mass(case.attn, case.present))
    groups = tuple(_fast_matching._plan(attn.detach(), partner, case.lam, None, top=8))
    total = torch.zeros_like(attn)
    for group in groups:
        out = _fast_matching._BlendMatched.apply(case.feats, attn, 0.1, (group,))
        assert saved_changes(out) is not None
        total += torch.autograd.grad(out, attn, case.feats.cos())[0]
    torch.testing.assert_close(many, total, rtol=0, atol=ROUNDING)
