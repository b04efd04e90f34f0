"""Global style modules: their functions under given draws while training, the identity otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.functional import oracles
from tests.functional.cases import ROUNDING, arrays
from tests.nn.nets import GLOBAL

from ldstyle import functional as LF
from ldstyle.config import CSULiteConfig, DSUConfig, GlobalConfig, MixStyleConfig
from ldstyle.nn import GlobalStyle
from ldstyle.nn.draws import Mixing, Rows, StyleDraws, draw_style
from ldstyle.nn.global_style import apply_global

PARTNER = torch.tensor([2, 0, 4, 3, 1])


@pytest.fixture
def feats():
    rng = np.random.default_rng(5)
    return torch.from_numpy(rng.normal(0.4, 1.2, (5, 4, 6, 7)) * rng.uniform(0.5, 2, (5, 4, 1, 1))).float()


def draws_of(name):
    return draw_style(GLOBAL[name], np.random.default_rng(7), Rows(5), num_labels=3, channels=4)


def expected(name, feats, draw):
    match name:
        case "mixstyle":
            return LF.mixstyle(feats, PARTNER, draw.lam[:, 0])
        case "efdmix":
            return LF.efdmix(feats, PARTNER, draw.lam[:, 0])
        case "csu_published":
            return LF.csu(feats, *draw)
        case "dsu":
            return LF.dsu(feats, draw.noise_mean, draw.noise_std)


@pytest.mark.parametrize("name", [name for name in GLOBAL if name != "csu"])
def test_a_training_module_is_its_function_under_the_same_draws(name, feats):
    before, draws = feats.clone(), draws_of(name)
    out = GlobalStyle(GLOBAL[name]).train()(feats, PARTNER, draws)
    assert torch.equal(out, expected(name, feats, draws.global_))
    assert not torch.allclose(out, feats)
    assert torch.equal(feats, before)


def test_csu_lite_is_equation_eleven_over_the_whole_map(feats):
    draws = draws_of("csu")
    out = GlobalStyle(GlobalConfig(CSULiteConfig(0.8), gate_prob=1.0))(feats.double(), PARTNER, draws)
    noise, common = arrays(*draws.global_)
    wanted = oracles.csu_lite(feats.double().numpy(), noise[:, 0], common[:, 0], 0.8)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", GLOBAL)
def test_outside_training_the_very_same_tensor_comes_back(name, feats):
    assert GlobalStyle(GLOBAL[name]).eval()(feats, PARTNER, draws_of(name)) is feats


@pytest.mark.parametrize("name", ["mixstyle", "efdmix"])
def test_a_sample_that_is_its_own_partner_is_unchanged(name, feats):
    out = GlobalStyle(GLOBAL[name])(feats, torch.arange(5), draws_of(name))
    assert torch.equal(out, feats)
    assert torch.equal(GlobalStyle(GLOBAL[name])(feats, PARTNER, draws_of(name))[3], feats[3])


def test_the_partner_learns_under_efdmix_as_published_and_not_under_mixstyle(feats):
    for name, learns in (("mixstyle", False), ("efdmix", True)):
        leaf = feats.clone().requires_grad_()
        GlobalStyle(GLOBAL[name])(leaf, PARTNER, draws_of(name))[0].square().sum().backward()
        assert leaf.grad[0].any()
        assert leaf.grad[PARTNER[0]].any() == learns


def test_statistics_carry_no_gradient_so_mixstyle_and_csu_lite_are_affine_in_each_value(feats):
    for name in ("mixstyle", "csu"):
        leaf = feats.double().requires_grad_()
        out = GlobalStyle(GLOBAL[name])(leaf, PARTNER, draws_of(name))
        (slope,) = torch.autograd.grad(out.sum(), leaf)
        torch.testing.assert_close(slope, slope[:, :, :1, :1].expand_as(slope), rtol=0, atol=ROUNDING)
        rise = (out[:, :, 1, 1] - out[:, :, 0, 0]) / (leaf[:, :, 1, 1] - leaf[:, :, 0, 0])
        torch.testing.assert_close(slope[:, :, 0, 0], rise, rtol=0, atol=ROUNDING)


def test_draws_of_another_operator_are_refused(feats):
    with pytest.raises(TypeError, match="Mixing draws do not belong to DSUConfig"):
        apply_global(DSUConfig(), feats, PARTNER, Mixing(torch.ones(5, 1)))


def test_a_batch_without_the_right_number_of_draws_is_refused(feats):
    with pytest.raises(ValueError, match=r"`lam` must have shape \(B,\) = \(5,\); got \(4,\)"):
        GlobalStyle(GlobalConfig(MixStyleConfig()))(feats, PARTNER, StyleDraws(Mixing(torch.ones(4, 1))))


def test_settings_are_shown():
    shown = repr(GlobalStyle(GlobalConfig(MixStyleConfig(0.3), gate_prob=0.25, pairing="crossdomain")))
    assert "MixStyleConfig(alpha=0.3), gate_prob=0.25, pairing='crossdomain'" in shown
