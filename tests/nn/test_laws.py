"""Laws that hold for every operator and attention source, in modules and in whole networks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.functional.cases import ROUNDING, cases, make_case
from tests.nn.nets import (
    ATTENTIONS,
    LABEL_OPERATORS,
    LABELS,
    LOCAL,
    STYLES,
    fill_maps,
    global_streams,
    label_decoupled,
    make_context,
    make_images,
    seeded,
    styled,
)
from tests.tolerance import bound

from ldstyle.functional import objective
from ldstyle.nn import LabelDecoupledStyle
from ldstyle.nn.banks import CachedMaps
from ldstyle.nn.draws import Mixing, Perturbation, StyleDraws
from ldstyle.types import PairedContext

PAIRED = ("mixstyle", "efdmix")
few = settings(max_examples=10)  # of each of up to nine combinations
operators = pytest.mark.parametrize("operator", LABEL_OPERATORS)
paired = pytest.mark.parametrize("operator", PAIRED)
attentions = pytest.mark.parametrize("attention", ATTENTIONS)


class Run:
    """A module on a drawn case; what is changed is given as keywords, the rest follows from the case."""

    def __init__(self, case, operator, attention, **settings):
        style = label_decoupled(operator, attention, background="confined")
        style = replace(style, **{key: value for key, value in settings.items() if hasattr(style, key)})
        inner = {key: value for key, value in settings.items() if not hasattr(style, key)}
        style = replace(style, attention=replace(style.attention, **inner))
        self.case, self.attention = case, attention
        self.module = seeded(lambda: LabelDecoupledStyle(style, case.feats.shape[1], case.present.shape[1])).train()
        self.module.to(case.feats.dtype)
        self.mixing = operator != "csu"
        if self.module.llam is not None:
            torch.nn.init.constant_(self.module.llam.reduce.bias, 9.0)  # a dead unit would make ties

    def __call__(self, *, usable=None, **changes):
        case = self.case.but(**changes)
        batch = PairedContext(case.present, case.domain, epoch=9, partner=case.partner, global_partner=case.partner)
        local = Mixing(case.lam) if self.mixing else Perturbation(case.noise, case.common)
        global_ = type(local)(*(part[:, :1] for part in local))
        usable = case.present if usable is None else usable & case.present
        cached = CachedMaps(case.attn.half(), usable) if self.attention == "gradcam" else None
        return self.module(case.feats, batch, StyleDraws(global_, local), cached).feats


@paired
@attentions
@few
@given(cases())
def test_coefficients_of_one_are_the_identity(operator, attention, case):
    run = Run(case, operator, attention)
    assert torch.equal(run(lam=torch.ones_like(case.lam)), case.feats)


@paired
@attentions
@few
@given(cases())
def test_samples_that_are_their_own_partner_are_unchanged(operator, attention, case):
    run = Run(case, operator, attention)
    assert torch.equal(run(partner=torch.arange(len(case.feats))), case.feats)


@operators
@attentions
@few
@given(cases())
def test_a_sample_without_labels_is_unchanged(operator, attention, case):
    present = case.present.clone()
    present[0] = False
    assert torch.equal(Run(case, operator, attention)(present=present)[0], case.feats[0])


@paired
@few
@given(cases())
def test_a_sample_whose_partner_shares_no_label_is_unchanged(operator, case):
    present = case.present.clone()
    present[:, 0], present[0] = False, False
    present[0, 0] = True
    assert torch.equal(Run(case, operator, "llam")(present=present)[0], case.feats[0])


@operators
@few
@given(cases(dtype=torch.float64))
def test_more_background_means_less_change(operator, case):
    change = [
        (Run(case, operator, "gradcam", background=share)() - case.feats).abs().max().item()
        for share in (0.1, 1e2, 1e9)
    ]
    assert change[2] <= 1e-6 * (1 + change[0])
    assert change[1] <= 0.5 * change[0] + ROUNDING


@operators
@attentions
@few
@given(cases(dtype=torch.float64), st.integers(0, 10**6))
def test_the_order_of_a_batch_does_not_matter(operator, attention, case, seed):
    order = torch.randperm(len(case.feats), generator=torch.Generator().manual_seed(seed))
    fields = {"feats", "attn", "present", "domain", "lam", "noise", "common"}
    shuffled = {name: getattr(case, name)[order] for name in fields}
    shuffled["partner"] = order.argsort()[case.partner[order]]
    run = Run(case, operator, attention)
    torch.testing.assert_close(run(**shuffled), run()[order], rtol=0, atol=ROUNDING)


@operators
@few
@given(cases(dtype=torch.float64), st.integers(0, 10**6))
def test_the_order_of_the_labels_does_not_matter(operator, case, seed):
    order = torch.randperm(case.present.shape[1], generator=torch.Generator().manual_seed(seed))
    fields = {"attn", "present", "lam", "noise", "common"}
    run = Run(case, operator, "gradcam")
    shuffled = run(**{name: getattr(case, name)[:, order] for name in fields})
    torch.testing.assert_close(shuffled, run(), rtol=0, atol=ROUNDING)


@operators
@attentions
@pytest.mark.parametrize("side", [-1, -2])
@few
@given(cases(relu=False, dtype=torch.float64))
def test_flipping_maps_and_features_flips_the_result(operator, attention, side, case):
    run = Run(case, operator, attention)
    # Equal values or maps would be ranked by place, which a flip turns round.
    maps = case.attn.half() if run.module.llam is None else run.module.llam(case.feats, torch.ones_like(case.present))
    assume(all(row.unique().numel() == row.numel() for row in (*maps.flatten(0, 1), *case.feats.flatten(0, 1))))
    flipped = run(feats=case.feats.flip(side), attn=case.attn.flip(side))
    torch.testing.assert_close(flipped.flip(side), run(), rtol=0, atol=ROUNDING)


@operators
@few
@given(cases(dtype=torch.float64), st.sampled_from([0.5, 0.25, 2.0]))
def test_neither_the_scale_of_a_map_nor_the_map_of_an_absent_label_matters(operator, case, scale):
    run = Run(case, operator, "gradcam")
    attn = torch.where(case.present[:, :, None, None], case.attn * scale, case.attn.flip(0) * 3)
    torch.testing.assert_close(run(attn=attn), run(), rtol=0, atol=ROUNDING)


@paired
def test_the_region_of_an_unshared_label_is_unchanged(operator):
    case = make_case(4, batch=2, labels=2, size=(6, 8))
    present = torch.tensor([[True, True], [True, False]])
    attn = torch.zeros_like(case.attn)
    attn[:, 0, :, :4], attn[:, 1, :, 4:] = case.attn[:, 0, :, :4], case.attn[:, 1, :, 4:]
    run = Run(case, operator, "gradcam", background=0.0)
    out = run(attn=attn, present=present, partner=torch.tensor([1, 0]), domain=torch.tensor([0, 1]))
    assert torch.equal(out[0, :, :, 4:], case.feats[0, :, :, 4:])
    assert not torch.isclose(out[0, :, :, :4], case.feats[0, :, :, :4]).all()


@operators
@few
@given(cases(dtype=torch.float64))
def test_maps_missing_on_both_sides_are_as_good_as_uniform_attention(operator, case):
    keep = torch.zeros_like(case.present)
    keep[:, 0] = True  # every sample keeps one map, so none is lost to the global operator
    assume(case.present[:, 0].all() and case.present.shape[1] > 1)
    uniform = torch.full_like(case.attn, 0.5)
    gradcam = Run(case, operator, "gradcam")
    top_everywhere = operator == "efdmix"  # the kept label has a constant map of its own, whose top-K is a strip
    settings = {"lam": case.lam.index_fill(1, torch.tensor([0]), 1.0)} if top_everywhere else {}
    ours = gradcam(usable=keep, attn=uniform, **settings)
    wanted = Run(case, operator, "uniform")(**settings)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=ROUNDING)


@operators
def test_attention_learns_under_every_operator(operator):
    net = styled(label_decoupled(operator, "llam"))
    context = make_context()
    objective(net(make_images(), context), context.present, diversity_weight=0.0).backward()
    for module in net.styles:
        grads = {name: parameter.grad for name, parameter in module.llam.named_parameters()}
        assert all(grad.isfinite().all() for grad in grads.values())
        assert grads["reduce.weight"].abs().max() > 1e-9
        assert grads["localize.weight"].abs().max() > 1e-9


@operators
@pytest.mark.parametrize("attention", ["gradcam", "uniform"])
def test_statistics_and_partners_carry_no_gradient(operator, attention):
    case = make_case(6, density=1.0)
    feats = case.feats.clone().requires_grad_()
    out = Run(case, operator, attention)(feats=feats)
    sample, channel, row, column = 1, 2, 3, 4
    (slope,) = torch.autograd.grad(out[sample, channel, row, column], feats, retain_graph=True)
    own = slope[sample, channel, row, column].item()
    assert own > 0
    assert slope.abs().sum().item() == pytest.approx(own)
    if operator == "efdmix":
        (straight,) = torch.autograd.grad(out.sum(), feats)
        assert torch.equal(straight, torch.ones_like(straight))


@operators
def test_learned_attention_sends_its_gradient_back_to_the_features_on_request_only(operator):
    case = make_case(6, density=1.0)
    feats = case.feats.clone().requires_grad_()
    out = Run(case, operator, "llam")(feats=feats)
    (slope,) = torch.autograd.grad(out[1, 2].sum(), feats)
    assert not slope[1, [0, 1, 3]].any()
    out = Run(case, operator, "llam", input_gradient=True)(feats=feats)
    (slope,) = torch.autograd.grad(out[1, 2].sum(), feats)
    assert slope[1, [0, 1, 3]].any()  # other channels, through the maps alone
    assert not slope[[0, 2, 3, 4]].any()


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("name", STYLES)
def test_every_style_trains_on_small_and_odd_batches(name, batch):
    net = styled(STYLES[name])
    fill_maps(net)
    context = make_context(batch, seed=1, domains=3)
    context = replace(context, present=context.present.clone())
    context.present[-1] = False
    output = net(make_images(batch, seed=1), context)
    objective(output, context.present, diversity_weight=0.1).backward()
    assert output.logits.shape == (batch, LABELS)
    assert output.logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
    assert next(net.backbone.parameters()).grad.any()


@pytest.mark.parametrize("name", LOCAL)
def test_a_batch_without_labels_is_the_plain_backbones(name):
    net, images = styled(STYLES[name]), make_images()
    fill_maps(net)
    output = net(images, make_context(present=torch.zeros(6, LABELS, dtype=torch.bool)))
    assert torch.equal(output.logits, net.backbone(images))
    assert output.diversity == 0


@paired
@attentions
def test_a_batch_of_one_domain_is_the_plain_backbones(operator, attention):
    net, images = styled(label_decoupled(operator, attention)), make_images()
    fill_maps(net, missing=0.0)
    output = net(images, make_context(domain=torch.zeros(6, dtype=torch.int64)))
    assert output.diagnostics["fired"] == 2
    assert torch.equal(output.logits, net.backbone(images))


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
@pytest.mark.parametrize("name", STYLES)
def test_half_precision_stays_close_and_trains(name):
    logits, context = {}, make_context()
    for enabled in (False, True):
        net = styled(STYLES[name])
        fill_maps(net)
        with torch.backends.mkldnn.flags(enabled=False):  # its bfloat16 kernels stop some virtual processors
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                output = net(make_images(), context)
            objective(output, context.present, diversity_weight=0.1).backward()
        logits[enabled] = output.logits.detach().float()
        assert output.logits.dtype == (torch.bfloat16 if enabled else torch.float32)
        assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
        assert all(p.grad is not None for p in net.parameters())
    torch.testing.assert_close(logits[True], logits[False], rtol=0, atol=0.05 * logits[False].std().item() + 0.02)


@pytest.mark.parametrize("name", STYLES)
def test_the_memory_format_does_not_matter_and_is_kept(name):
    results, formats = [], []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        net = styled(STYLES[name], stages=("stage1",)).double().to(memory_format=memory_format)
        fill_maps(net)
        net.backbone.stage2.register_forward_pre_hook(
            lambda _m, args: formats.append(args[0].is_contiguous(memory_format=torch.channels_last))
        )
        images = make_images().double().contiguous(memory_format=memory_format).requires_grad_()
        output = net(images, make_context())
        output.logits.square().sum().backward()
        results.append((output.logits.detach(), images.grad))
    for plain, last in zip(*results, strict=True):
        # Five layers with sums of at most 120 terms, forwards and backwards; divisions by deviations of at least 1e-3.
        torch.testing.assert_close(last, plain, rtol=0, atol=bound(2 * 5 * 120, scale=1000))
    assert formats == [False, True]


@pytest.mark.parametrize("name", LOCAL)
@few
@given(st.sampled_from([0.0, 1e-20, 1e-3, 1e4]), st.booleans())
def test_constant_tiny_and_huge_features_stay_finite(name, scale, constant):
    case = make_case(8, batch=4, density=1.0)
    feats = (torch.ones_like(case.feats) if constant else case.feats) * scale
    feats[0] = case.feats[0]  # one ordinary sample, whose style the others are to take
    leaf = feats.clone().requires_grad_()
    operator, attention = name.split("-")
    out = Run(case, operator, attention)(feats=leaf, partner=torch.tensor([1, 0, 0, 0]))
    out.sum().backward()
    assert out.isfinite().all()
    assert leaf.grad.isfinite().all()


def test_a_training_step_draws_from_no_global_stream():
    before = global_streams()
    for name in STYLES:
        net = styled(STYLES[name])
        fill_maps(net)
        context = make_context()
        objective(net(make_images(), context), context.present, diversity_weight=0.1).backward()
    assert before == global_streams()
