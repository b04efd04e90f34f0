"""Random draws: of the right law, shared between processes, and owned by the generator they are given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.nn.nets import GLOBAL, LOCAL, STYLES, label_decoupled

from ldstyle.config import CSULiteConfig, DSUConfig, EFDMixConfig, GlobalConfig, MixStyleConfig
from ldstyle.nn.draws import Mixing, Perturbation, Rows, Uncertainty, draw_style, random_partners

SIZES = {"num_labels": 3, "channels": 5}


def draw(style, rows, *, seed=0, **sizes):
    return draw_style(style, np.random.default_rng(seed), rows, **SIZES | sizes)


def tensors(draws):
    parts = [*draws.global_, *(draws.local or ()), *(() if draws.choice is None else (draws.choice,))]
    return [part.clone() for part in parts]


@pytest.mark.parametrize("name", STYLES)
def test_processes_draw_their_rows_of_what_one_process_would_draw(name):
    one = np.random.default_rng(3)
    whole = tensors(draw_style(STYLES[name], one, Rows(6), **SIZES))
    parts = []
    for rank in range(3):
        generator = np.random.default_rng(3)
        parts.append(tensors(draw_style(STYLES[name], generator, Rows(2, rank, 3), **SIZES)))
        assert generator.bit_generator.state == one.bit_generator.state
    for together, *split in zip(whole, *parts, strict=True):
        assert torch.equal(together, torch.cat(split))


@pytest.mark.parametrize("name", STYLES)
def test_draws_repeat_for_a_seed_and_change_with_it(name):
    first, again, other = (tensors(draw(STYLES[name], Rows(4), seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True) if a.unique().numel() > 1)
    assert all(part.dtype == torch.float32 for part in first)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("operator", [MixStyleConfig, EFDMixConfig])
def test_coefficients_follow_the_symmetric_beta_law(operator, alpha):
    lam = draw(GlobalConfig(operator(alpha)), Rows(20_000)).global_.lam.double()
    assert lam.shape == (20_000, 1)
    assert lam.mean().item() == pytest.approx(0.5, abs=0.015)
    assert lam.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


def test_noise_is_standard_normal_and_independent_of_its_neighbours():
    noise, common = draw(label_decoupled("csu", "llam"), Rows(5000)).local
    assert noise.shape == (5000, 3, 5)
    assert common.shape == (5000, 3)
    for part in (noise.flatten(1), common):
        np.testing.assert_allclose(np.cov(part.numpy().T), np.eye(part.shape[1]), atol=0.08)
        assert part.mean().abs() < 0.03


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mixstyle", Mixing), ("efdmix", Mixing), ("csu", Perturbation), ("csu_published", Uncertainty)],
)
def test_global_styles_draw_one_style_per_image(name, kind):
    draws = draw(GLOBAL[name], Rows(4))
    assert isinstance(draws.global_, kind)
    assert draws.local is None
    assert draws.choice is None


def test_dsu_draws_noise_and_a_factor_of_one():
    factor, noise_mean, noise_std = draw(GlobalConfig(DSUConfig()), Rows(4)).global_
    assert torch.equal(factor, torch.ones(4))
    assert not torch.equal(noise_mean, noise_std)


@pytest.mark.parametrize("name", LOCAL)
def test_labels_have_coefficients_of_their_own_unless_shared(name):
    own = draw(LOCAL[name], Rows(4)).local
    assert all(not torch.equal(part[:, 0], part[:, 1]) for part in own)
    operator, attention = name.split("-")
    shared = draw(label_decoupled(operator, attention, per_label=False), Rows(4)).local
    assert all(torch.equal(part[:, 0], part[:, label]) for part in shared for label in range(3))
    assert [part.shape for part in shared] == [part.shape for part in own]


def test_the_global_path_draws_the_same_with_and_without_a_per_label_path():
    alone = draw(GlobalConfig(CSULiteConfig(0.5)), Rows(4)).global_
    with_local = draw(label_decoupled("csu", "uniform"), Rows(4)).global_
    assert all(torch.equal(a, b) for a, b in zip(alone, with_local, strict=True))


def test_only_a_style_bank_draws_choices():
    assert draw(STYLES["mixstyle-llam"], Rows(4)).choice is None
    choice = draw(STYLES["banked-llam"], Rows(400)).choice
    assert choice.shape == (400, 3)
    assert 0 <= choice.min() < 0.02 < 0.98 < choice.max() < 1


@pytest.mark.parametrize(
    "original", [[0, 0], [0, 1, 0], [0, 1, 2, 0, 1, 2, 3], [5, 5, 5], [5, 5, 5, 1, 2], list(range(6))]
)
def test_random_pairs_avoid_copies_and_leave_all_other_pairs_alone(original):
    generator, copies = np.random.default_rng(0), torch.tensor(original)
    for _ in range(50):
        priority = torch.from_numpy(generator.random(len(original)))
        drawn, partner = priority.argsort(), random_partners(priority, copies)
        itself = torch.arange(len(original))
        assert not ((copies[partner] == copies) & (partner != itself)).any()
        bad = (copies[drawn] == copies) & (drawn != itself)
        assert (partner != drawn).sum() <= 2 * bad.sum()
        assert torch.equal(random_partners(priority, None), drawn)
        if not bad.any():
            assert torch.equal(partner, drawn)
