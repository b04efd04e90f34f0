"""Label-decoupled modules against loops over pairs, for every operator and attention source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.functional import oracles
from tests.functional.cases import ROUNDING, arrays, make_case
from tests.nn.nets import LABEL_OPERATORS, LOCAL, STYLES, label_decoupled, seeded

from ldstyle import functional as LF
from ldstyle.config import CSULiteConfig, EFDMixConfig, GradCamConfig, MixStyleConfig, background_weight
from ldstyle.nn import LabelDecoupledStyle
from ldstyle.nn.banks import CachedMaps
from ldstyle.nn.draws import Mixing, Rows, draw_style
from ldstyle.nn.global_style import apply_global
from ldstyle.types import Moments, PairedContext

SIZES = {"batch": 7, "labels": 3, "channels": 4, "size": (6, 5)}
# Sample 0 is paired with 1, 1 with 2, and so on: no pair is mutual. The last is its own partner.
CHAIN = torch.tensor([1, 2, 3, 4, 5, 0, 6])


class Setup:
    """One module, one batch and its draws; every third map of the cache is missing."""

    def __init__(self, style, *, seed=3, epoch=9, dtype=torch.float32, **sizes):
        self.style = style
        case = make_case(seed, dtype=dtype, **SIZES | {"density": 0.8} | sizes)
        self.feats, self.present, self.raw, shape = case.feats, case.present, case.attn, case.attn.shape
        partner = CHAIN if shape[0] == len(CHAIN) else torch.arange(shape[0]).roll(1)
        self.batch = PairedContext(
            case.present, case.domain, epoch=epoch, partner=partner, global_partner=torch.arange(shape[0]).roll(2)
        )
        self.module = seeded(lambda: LabelDecoupledStyle(style, case.feats.shape[1], shape[1])).train().to(dtype)
        labels, channels = shape[1], case.feats.shape[1]
        if self.module.llam is not None:
            torch.nn.init.constant_(self.module.llam.reduce.bias, 9.0)  # a dead unit would make ties
        self.draws = draw_style(
            style, np.random.default_rng(seed), Rows(shape[0]), num_labels=labels, channels=channels
        )
        parts = (type(part)(*(value.to(dtype) for value in part)) for part in (self.draws.global_, self.draws.local))
        self.draws = replace(self.draws, **dict(zip(("global_", "local"), parts, strict=True)))
        entry = torch.from_numpy(np.random.default_rng(seed).random(shape[:2]) < 0.67)
        self.cached = None
        if isinstance(style.attention, GradCamConfig):
            self.cached = CachedMaps((case.attn * entry[:, :, None, None]).half(), entry & case.present)

    def run(self, **changes):
        given = {"feats": self.feats, "batch": self.batch, "draws": self.draws, "cached": self.cached} | changes
        return self.module(given["feats"], given["batch"], given["draws"], given["cached"])

    def maps(self):
        """Maps of the labels' own, zero where there are none, and where they are, as arrays."""
        none = np.zeros(self.present.shape, dtype=bool)
        if self.cached is not None:
            usable = self.cached.usable.numpy()
            return oracles.unit_mass(self.cached.maps.double().numpy(), usable), usable
        if self.module.llam is None:
            return np.zeros((*self.present.shape, *self.feats.shape[2:])), none
        return self.module.llam(self.feats, self.present).detach().double().numpy(), self.present.numpy()

    def background(self):
        return background_weight(self.style.background, self.feats.shape[2] * self.feats.shape[3])


def uniform(setup):
    height, width = setup.feats.shape[2:]
    return np.full((height, width), 1 / (height * width))


def pair_maps(setup, sample):
    """Maps in use for one sample and what its partner contributes, and where whole maps are matched."""
    own, usable = setup.maps()
    present, partner = setup.present.numpy(), int(setup.batch.partner[sample])
    mine, theirs = np.array(own[sample]), np.array(own[partner])
    whole = np.zeros(present.shape[1], dtype=bool)
    for label in np.flatnonzero(present[sample]):
        shared = partner != sample and present[partner, label]
        if not usable[sample, label] or (shared and not usable[partner, label]):
            mine[label], theirs[label], whole[label] = uniform(setup), uniform(setup), True
    return partner, mine, theirs, whole


def expected(setup):
    """Restyle sample by sample: each and its partner make a batch of two."""
    out = np.zeros(setup.feats.shape)
    feats, present = arrays(setup.feats, setup.present)
    for sample in range(len(feats)):
        if isinstance(setup.style.operator, CSULiteConfig):
            out[sample] = perturbed(setup, sample)
            continue
        partner, mine, theirs, whole = pair_maps(setup, sample)
        lam = setup.draws.local.lam[sample].double().numpy()
        lam = np.where(present[sample] & present[partner] & (partner != sample), lam, 1.0)
        pair = feats[[sample, partner]], np.stack([mine, theirs])
        lam = np.stack([lam, np.ones_like(lam)])
        match setup.style.operator:
            case EFDMixConfig(top_ratio=top_ratio):
                masks = np.stack([whole, whole])
                mixed = oracles.mix_topk_values(*pair, [1, 0], lam, top_ratio, setup.background(), masks)
            case MixStyleConfig():
                old = oracles.label_moments(*pair)
                new = oracles.mix_moments(old, [value[[1, 0]] for value in old], lam)
                mixed = oracles.recompose(*pair, old, new, setup.background(), setup.style.max_gain)
        out[sample] = mixed[0]
    return out


def perturbed(setup, sample):
    own, usable = setup.maps()
    present, feats = setup.present.numpy(), setup.feats.double().numpy()[sample : sample + 1]
    missing = present[sample] & ~usable[sample]
    attn = np.where(missing[:, None, None], uniform(setup), own[sample])[None]
    old = oracles.label_moments(feats, attn)
    noise, common = (part[sample : sample + 1].double().numpy() for part in setup.draws.local)
    new = oracles.perturb_moments(old, noise, common, setup.style.operator.strength)
    return oracles.recompose(feats, attn, old, new, setup.background(), setup.style.max_gain)[0]


def lost(setup):
    """Samples with labels but no usable map at all."""
    return (setup.present.any(dim=1) & ~setup.cached.usable.any(dim=1)).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("background", ["paper", "confined", 0.0])
@pytest.mark.parametrize("name", LOCAL)
def test_a_training_module_restyles_each_label_as_a_loop_over_pairs_does(name, background):
    setup = Setup(replace(LOCAL[name], background=background), dtype=torch.float64)
    wanted = expected(setup)
    before = setup.feats.clone()
    actual = setup.run().feats
    keep = [i for i in range(7) if setup.cached is None or i not in lost(setup)]
    np.testing.assert_allclose(actual.detach().numpy()[keep], wanted[keep], rtol=0, atol=ROUNDING)
    assert not np.allclose(wanted[keep], before.numpy()[keep], atol=1e-2)
    assert torch.equal(setup.feats, before)


@pytest.mark.parametrize("operator", LABEL_OPERATORS)
def test_with_learned_attention_the_module_is_its_functions_bit_for_bit(operator):
    setup = Setup(LOCAL[f"{operator}-llam"])
    attn = setup.module.llam(setup.feats, setup.present)
    partner, background = setup.batch.partner, setup.background()
    old = LF.label_moments(setup.feats, attn)
    if operator == "csu":
        new = LF.perturb_moments(old, *setup.draws.local, strength=0.5)
    else:
        lam = LF.effective_lambda(setup.draws.local.lam, setup.present, partner)
        new = LF.mix_moments(old, Moments(old.mean[partner], old.std[partner]), lam)
    wanted = LF.recompose(setup.feats, attn, old, new, background=background)
    if operator == "efdmix":
        wanted = LF.mix_topk_values(setup.feats, attn, partner, lam, top_ratio=0.34, background=background)
    result = setup.run()
    assert torch.equal(result.feats, wanted)
    assert torch.equal(result.attn, attn)
    assert torch.equal(result.diversity, LF.attention_diversity(attn, setup.present))


@pytest.mark.parametrize("operator", ["mixstyle", "efdmix"])
def test_a_partner_keeps_its_own_map_where_it_is_itself_badly_paired(operator):
    # 0 → 1 → 2: both 0 and 1 have maps, but 1 matches whole maps because 2 has none.
    setup = Setup(LOCAL[f"{operator}-gradcam"], density=1.0, dtype=torch.float64)
    usable = torch.ones_like(setup.present)
    usable[2] = False
    setup.cached = CachedMaps(setup.raw.pow(2).half(), usable)
    np.testing.assert_allclose(setup.run().feats[0].numpy(), expected(setup)[0], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("side", ["own", "partner"])
@pytest.mark.parametrize("operator", ["mixstyle", "efdmix"])
def test_an_entry_missing_on_either_side_means_whole_uniform_maps_on_both(operator, side):
    setup = Setup(LOCAL[f"{operator}-gradcam"], labels=1, density=1.0, dtype=torch.float64)
    usable = torch.ones_like(setup.present)
    usable[0 if side == "own" else 1] = False
    setup.cached = CachedMaps(setup.raw[:, :, :3, :2].half(), usable)
    setup.style = setup.module.config = replace(setup.style, background=0.0)
    lam = setup.draws.local.lam[:, 0]
    setup.draws = replace(setup.draws, global_=Mixing(torch.full((7, 1), 0.3)))
    whole = (LF.mixstyle if operator == "mixstyle" else LF.efdmix)(setup.feats, CHAIN, lam)
    actual = setup.run().feats
    if side == "partner":
        torch.testing.assert_close(actual[0], whole[0], rtol=0, atol=ROUNDING)
    assert not torch.allclose(actual[1 if side == "own" else 2], whole[1 if side == "own" else 2], atol=1e-2)


@pytest.mark.parametrize("operator", LABEL_OPERATORS)
def test_a_sample_without_any_usable_map_takes_the_plain_global_operator(operator):
    setup = Setup(LOCAL[f"{operator}-gradcam"])
    usable = setup.cached.usable.clone()
    usable[[1, 4]] = False
    setup.cached = CachedMaps(setup.cached.maps, usable)
    assert lost(setup) == [1, 4]
    wanted = apply_global(setup.style.operator, setup.feats, setup.batch.global_partner, setup.draws.global_)
    actual = setup.run().feats
    assert torch.equal(actual[[1, 4]], wanted[[1, 4]])
    assert not torch.isclose(actual, wanted)[0].all()


@pytest.mark.parametrize("operator", LABEL_OPERATORS)
def test_cached_attention_before_there_is_any_is_the_global_operator(operator):
    setup = Setup(LOCAL[f"{operator}-gradcam"])
    wanted = apply_global(setup.style.operator, setup.feats, setup.batch.global_partner, setup.draws.global_)
    result = setup.run(cached=None)
    assert torch.equal(result.feats, wanted)
    assert result.attn is None


@pytest.mark.parametrize("name", [name for name in LOCAL if "gradcam" not in name])
def test_the_warm_up_is_global_then_blended_then_local(name):
    style = replace(LOCAL[name], warmup_epochs=4)
    setup = Setup(style, dtype=torch.float64)
    global_ = apply_global(style.operator, setup.feats, setup.batch.global_partner, setup.draws.global_)
    local = Setup(replace(style, warmup_epochs=0), dtype=torch.float64).run().feats
    for epoch, share in ((1, 0.0), (4, 0.0), (5, 0.25), (7, 0.75), (8, 1.0), (30, 1.0)):
        actual = setup.run(batch=replace(setup.batch, epoch=epoch)).feats
        wanted = {0.0: global_, 1.0: local}.get(share, share * local + (1 - share) * global_)
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0 if share in (0, 1) else ROUNDING)


@pytest.mark.parametrize("attention", ["llam", "gradcam", "uniform"])
def test_a_subclass_replaces_the_operator_and_nothing_else(attention):
    given = []

    class Doubling(LabelDecoupledStyle):
        def restyle(self, feats, region, batch, draws):
            given.append((region, draws))
            return 2 * feats, None

    setup = Setup(label_decoupled("mixstyle", attention, warmup_epochs=4), dtype=torch.float64)
    plain = setup.run(batch=replace(setup.batch, epoch=6))
    setup.module.__class__ = Doubling
    result = setup.run(batch=replace(setup.batch, epoch=6))
    ((region, draws),) = given
    own, usable = setup.maps()
    assert draws is setup.draws
    assert region.attn.shape == (*setup.present.shape, *setup.feats.shape[2:])
    if attention == "gradcam":
        lost = (setup.present & ~setup.cached.usable.any(dim=1, keepdim=True)).any(dim=1)
        assert torch.equal(result.feats[~lost], 2 * setup.feats[~lost])
        assert torch.equal(result.feats[lost], plain.feats[lost])  # without any map, the global path
        np.testing.assert_allclose(region.attn, own, rtol=0, atol=ROUNDING)
        assert np.array_equal(region.usable, usable)
    else:
        global_ = apply_global(MixStyleConfig(), setup.feats, setup.batch.global_partner, setup.draws.global_)
        halfway = setup.feats + global_ / 2  # through the warm-up's second part
        torch.testing.assert_close(result.feats, halfway, rtol=0, atol=ROUNDING)
    assert (result.diversity is not None) == (attention == "llam")


@pytest.mark.parametrize("name", LOCAL)
def test_outside_training_the_very_same_tensor_comes_back(name):
    setup = Setup(LOCAL[name])
    setup.module.eval()
    result = setup.run()
    assert result.feats is setup.feats
    assert result.attn is None


@pytest.mark.parametrize("name", LOCAL)
def test_a_shut_gate_leaves_the_tensor_alone_but_still_measures_diversity(name):
    setup = Setup(LOCAL[name])
    result = setup.run(draws=None)
    assert result.feats is setup.feats
    assert (result.diversity is not None) == ("llam" in name)
    if "llam" in name:
        assert torch.equal(result.diversity, setup.run().diversity)


@pytest.mark.parametrize("operator", ["mixstyle", "csu"])
def test_clamped_gains_are_counted(operator):
    setup = Setup(replace(LOCAL[f"{operator}-uniform"], max_gain=1.2))
    own, _ = setup.maps()
    wide = replace(setup.style, max_gain=1e9)
    clamped = int(setup.run().clamped)
    assert clamped > 0
    setup.module.config = wide
    assert int(setup.run().clamped) == 0
    attn = np.where(setup.present.numpy()[:, :, None, None], uniform(setup), own)
    old = oracles.label_moments(setup.feats.double().numpy(), attn)
    if operator == "csu":
        new = oracles.perturb_moments(old, *arrays(*setup.draws.local), 0.5)
    else:
        lam = LF.effective_lambda(setup.draws.local.lam, setup.present, CHAIN)
        new = oracles.mix_moments(old, [value[CHAIN] for value in old], lam.double().numpy())
    ratio = new[1] / old[1]
    inside = setup.present.numpy()[:, :, None]
    assert clamped == int((((ratio > 1.2) | (ratio < 1 / 1.2)) & inside).sum())


def test_draws_of_another_operator_are_refused():
    setup = Setup(LOCAL["mixstyle-llam"])
    with pytest.raises(TypeError, match="Perturbation draws do not belong to MixStyleConfig"):
        setup.run(draws=Setup(LOCAL["csu-llam"]).draws)


@pytest.mark.parametrize("name", ["banked-llam", "banked-gradcam", "banked-uniform"])
class TestStyleBank:
    def test_styles_are_drawn_before_this_batch_is_pushed(self, name):
        banked, plain = Setup(STYLES[name]), Setup(replace(STYLES[name], bank_size=0))
        assert torch.equal(banked.run().feats, plain.run().feats)
        assert len(banked.module.bank) > 0
        assert not torch.equal(banked.run().feats, plain.run().feats)

    def test_an_entry_of_another_domain_replaces_the_partner(self, name):
        style = replace(STYLES[name], bank_size=1, background=0.0)
        setup = Setup(style, batch=2, labels=1, density=1.0, dtype=torch.float64)
        if setup.cached is not None:
            setup.cached = CachedMaps(setup.raw.half(), torch.ones(2, 1, dtype=torch.bool))
        alone = replace(setup.batch, domain=torch.tensor([0, 0]), partner=torch.tensor([0, 1]))
        setup.run(batch=alone)  # remembers the last sample's style
        stored, found = setup.module.bank.draw(setup.present, torch.tensor([1, 1]), setup.draws.choice)
        assert found.all()
        away = replace(alone, domain=torch.tensor([0, 1]))
        out = setup.run(batch=away).feats
        assert torch.equal(out[0], setup.feats[0])  # the entry is of its own domain, and it has no partner
        maps, usable = setup.maps()
        attn = maps if usable.all() else np.broadcast_to(uniform(setup), maps.shape)
        old = oracles.label_moments(setup.feats.double().numpy(), attn)
        new = oracles.mix_moments(old, arrays(*stored), setup.draws.local.lam.double().numpy())
        wanted = oracles.recompose(setup.feats.double().numpy(), attn, old, new, 0.0)
        np.testing.assert_allclose(out[1].detach().numpy(), wanted[1], rtol=0, atol=ROUNDING)

    def test_only_styles_of_present_labels_with_a_map_are_remembered(self, name):
        setup = Setup(STYLES[name])
        setup.run()
        kept = setup.present if setup.cached is None else setup.cached.usable
        assert len(setup.module.bank) == int(kept.sum(dim=0).clamp(max=4).sum())

    def test_nothing_is_remembered_of_a_batch_that_is_not_clean(self, name):
        setup = Setup(STYLES[name])
        setup.run(batch=replace(setup.batch, clean=False))
        assert len(setup.module.bank) == 0


def test_without_labels_and_with_a_batch_of_one_nothing_changes():
    for name, style in LOCAL.items():
        setup = Setup(style, batch=1, density=0.0)
        assert torch.equal(setup.run().feats, setup.feats), name


def test_one_coefficient_per_sample_restyles_all_labels_alike():
    style = label_decoupled("mixstyle", "uniform", per_label=False, background=0.0)
    setup = Setup(style, labels=4, density=1.0, dtype=torch.float64)
    wanted = LF.mixstyle(setup.feats, CHAIN, setup.draws.local.lam[:, 2])
    torch.testing.assert_close(setup.run().feats, wanted, rtol=0, atol=ROUNDING)


def test_settings_are_shown():
    assert "warmup_epochs=1, background=paper" in repr(Setup(LOCAL["csu-llam"]).module)
