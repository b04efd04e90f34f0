"""Networks with style modules: what goes in, what comes out, and what is left behind."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import timm
import torch
from tests.nn.nets import (
    IMAGE_SIZE,
    LABELS,
    SAMPLES,
    STAGES,
    STYLES,
    Toy,
    fill_maps,
    global_streams,
    label_decoupled,
    make_context,
    make_images,
    seeded,
    styled,
    train_step,
)
from tests.tolerance import bound
from torch import nn

import ldstyle
from ldstyle.config import GlobalConfig, MixStyleConfig
from ldstyle.functional import objective
from ldstyle.types import StyledOutput

LLAM_EFDMIX = label_decoupled("efdmix", "llam")


@pytest.mark.parametrize("name", STYLES)
def test_a_network_saved_midway_goes_on_bit_for_bit(name):
    def start(seed):
        net = styled(STYLES[name], seed=seed)
        return net, torch.optim.AdamW(net.parameters(), lr=0.01)

    net, optimizer = start(seed=0)
    if "online" not in name:
        fill_maps(net)
    for number in range(3):
        train_step(net, number, optimizer)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    wanted = [train_step(net, number, optimizer) for number in range(3, 7)]
    saved = torch.load(file, weights_only=True)
    resumed, other_optimizer = start(seed=5)
    resumed.load_state_dict(saved["net"])
    other_optimizer.load_state_dict(saved["optimizer"])
    actual = [train_step(resumed, number, other_optimizer) for number in range(3, 7)]
    for ours, theirs in zip(actual, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    ours, theirs = flatten(resumed.state_dict()), flatten(net.state_dict())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def flatten(state, prefix=""):
    """All tensors of a state, those of banks and streams included."""
    out = {}
    for key, value in state.items():
        out |= flatten(value, f"{prefix}{key}/") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


@pytest.mark.parametrize("name", STYLES)
def test_a_seed_decides_everything_and_the_global_streams_stay_where_they_are(name):
    nets = [styled(STYLES[name], seed=0) for _ in range(2)]
    # The same weights with other draws.
    other = styled(STYLES[name], seed=0)
    other.streams = ldstyle.seeding.Streams(1)
    for net in (*nets, other):
        fill_maps(net)
    streams = global_streams()
    runs = [[train_step(net, number)[0] for number in range(4)] for net in (*nets, other)]
    assert streams == global_streams()
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))


class Usual(Toy):
    """A toy with batch statistics and dropout, which move and draw in training."""

    def __init__(self):
        super().__init__()
        self.stage1.append(nn.BatchNorm2d(8))
        self.stage3.append(nn.Dropout(0.3))


@pytest.mark.parametrize("name", STYLES)
def test_gates_that_never_open_make_training_plain_training_bit_for_bit(name):
    style = replace(STYLES[name], gate_prob=0.0)
    net, plain = styled(style, build=Usual), seeded(Usual).train()
    fill_maps(net)
    states = []
    for network in (net.backbone, plain):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            for number in range(3):
                images, context = make_images(6, seed=number), make_context(6, seed=number)
                output = StyledOutput(plain(images), torch.zeros(())) if network is plain else net(images, context)
                optimizer.zero_grad()
                objective(output, context.present, diversity_weight=0.0).backward()
                optimizer.step()
        states.append({**network.state_dict(), **{f"{n}.grad": p.grad for n, p in network.named_parameters()}})
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[1])


@pytest.mark.parametrize("operator", ["mixstyle", "efdmix", "csu"])
@pytest.mark.parametrize("attention", ["llam", "gradcam", "uniform"])
def test_during_warm_up_a_network_is_its_global_twin(operator, attention):
    style = label_decoupled(operator, attention, warmup_epochs=3)
    local = styled(style, stages=("stage1",))
    fill_maps(local)
    twin = styled(GlobalConfig(style.operator, gate_prob=1.0), stages=("stage1",))
    images = make_images()
    for epoch, same in ((1, True), (3, True), (4, False)):
        local.streams, twin.streams = ldstyle.seeding.Streams(0), ldstyle.seeding.Streams(0)
        outputs = [net(images, make_context(epoch=epoch)).logits for net in (local, twin)]
        assert torch.equal(*outputs) == same


def test_the_gate_fires_each_module_by_itself_at_its_rate():
    net = styled(replace(label_decoupled("csu", "uniform"), gate_prob=0.3))
    images, context = make_images(1), make_context(1)
    with torch.no_grad():
        fired = torch.stack([net(images, context).diagnostics["fired"] for _ in range(400)])
    shares = [(fired == count).float().mean().item() for count in range(3)]
    assert shares == pytest.approx([0.49, 0.42, 0.09], abs=0.07)


@pytest.mark.parametrize("stages", [STAGES, STAGES[::-1]])
class TestOrderOfStages:
    def test_results_are_reported_under_their_own_name(self, stages):
        net = styled(label_decoupled("mixstyle", "llam"), stages=stages)
        output = net(make_images(), make_context())
        grids = {name: tuple(attn.shape[2:]) for name, attn in output.attention.items()}
        assert grids == {"stage1": (8, 12), "stage2": (4, 6)}
        assert {"clamped/stage1", "clamped/stage2"} <= output.diagnostics.keys()
        for name, attn in output.attention.items():
            # A softmax over the locations divides by a sum of them, and they are added up once more.
            rounding = bound(2 * attn[0, 0].numel() + 8, dtype=torch.float32)
            whole = make_context().present.float()
            torch.testing.assert_close(attn.sum(dim=(2, 3)), whole, rtol=0, atol=rounding, msg=name)

    def test_only_the_first_module_to_fire_remembers_styles(self, stages):
        net = styled(label_decoupled("mixstyle", "uniform", bank_size=5), stages=stages)
        net(make_images(), make_context())
        sizes = {point.name: len(module.bank) for point, module in zip(net.points, net.styles, strict=True)}
        assert sizes["stage1"] > 0
        assert sizes["stage2"] == 0


def test_a_later_module_remembers_styles_while_earlier_gates_are_shut():
    net = styled(label_decoupled("mixstyle", "uniform", bank_size=5, gate_prob=0.5))
    for number in range(40):
        before = [len(module.bank) for module in net.styles]
        fired = net(make_images(seed=number), make_context(seed=number)).diagnostics["fired"]
        grown = [len(module.bank) > size for module, size in zip(net.styles, before, strict=True)]
        if grown[1]:
            assert fired == 1
            assert not grown[0]
            return
    pytest.fail("the second module never fired alone")


def test_diversity_is_the_mean_over_the_insertion_points_whether_or_not_gates_open():
    open_, shut = (styled(label_decoupled("csu", "llam", gate_prob=p), stages=("stage1",)) for p in (1.0, 0.0))
    images, context = make_images(), make_context()
    assert torch.equal(open_(images, context).diversity, shut(images, context).diversity)
    both = styled(label_decoupled("csu", "llam", gate_prob=0.0))
    output = both(images, context)
    parts = [ldstyle.functional.attention_diversity(attn, context.present) for attn in output.attention.values()]
    assert torch.equal(output.diversity, (parts[0] + parts[1]) / 2)
    assert output.diversity.requires_grad


def test_copies_of_one_image_are_never_partners():
    context = make_context(4, domains=2, present=torch.ones(4, LABELS, dtype=torch.bool))
    context = replace(context, domain=torch.tensor([0, 1, 0, 1]), original=torch.tensor([7, 7, 8, 8]))
    for style in (label_decoupled("mixstyle", "llam"), STYLES["crossdomain"]):
        net = styled(style)
        for _ in range(10):
            batch, _, _ = net._prepare(context)
            assert batch.partner.tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("style", [label_decoupled("mixstyle", "llam", gate_prob=1.0), STYLES["mixstyle"]])
def test_copies_of_one_image_are_never_partners_on_the_global_path(style):
    context = make_context(4, domains=2, present=torch.ones(4, LABELS, dtype=torch.bool))
    net, plain = styled(style), styled(style)
    mended = 0
    for _ in range(20):
        partner = net._prepare(replace(context, original=torch.tensor([7, 7, 8, 8])))[0].global_partner
        assert all(partner[i] != copy for i, copy in enumerate([1, 0, 3, 2]))
        assert partner.sort().values.tolist() == [0, 1, 2, 3]
        # The draws of later batches do not depend on it.
        mended += not torch.equal(partner, plain._prepare(context)[0].global_partner)
    assert 0 < mended < 20


class TestBadInput:
    def test_training_needs_a_context(self):
        with pytest.raises(
            ValueError, match=r"`labels` and `domain` must be given in training mode; got None. Call net\(images"
        ):
            styled(LLAM_EFDMIX)(make_images())

    def test_presence_must_fit_the_batch_and_the_labels(self):
        net = styled(LLAM_EFDMIX)
        with pytest.raises(ValueError, match=r"`labels` .* must have shape \(B, L\) = \(6, 3\).*got \(5, 3\)"):
            net(make_images(6), make_context(5))
        with pytest.raises(ValueError, match=r"= \(6, 3\) to match the images and num_labels; got \(6, 4\)"):
            net(make_images(6), make_context(6, labels=4))

    def test_a_context_names_the_field_that_is_wrong(self):
        good = make_context()
        for changes, error, message in (
            ({"present": good.present.float()}, TypeError, r"`present` must be a bool tensor.*got torch.float32"),
            ({"present": good.present[0]}, TypeError, r"`present` must be a bool tensor of shape \(B, L\)"),
            (
                {"domain": good.domain[:3]},
                ValueError,
                r"`domain` must have shape \(6,\) to match `present`; got",
            ),
            ({"domain": good.domain.int()}, TypeError, r"`domain` must be int64; got torch.int32. Use domain.long\(\)"),
            ({"index": good.index.float()}, TypeError, "`index` must be int64; got torch.float32"),
            ({"flips": good.flips[:, :1]}, ValueError, r"`flips` must have shape \(6, 2\)"),
            ({"flips": good.flips.int()}, TypeError, "`flips` must be bool"),
            ({"original": good.index.int()}, TypeError, "`original` must be int64"),
            ({"epoch": 0}, ValueError, "`epoch` must count from 1; got 0"),
        ):
            with pytest.raises(error, match=message):
                replace(good, **changes)

    @pytest.mark.parametrize("style", [STYLES["efdmix-gradcam"], STYLES["online"]])
    @pytest.mark.parametrize("gate_prob", [0.0, 0.9])
    def test_cached_attention_needs_the_numbers_of_the_samples_from_the_first_step(self, style, gate_prob):
        net = styled(replace(style, gate_prob=gate_prob))
        with pytest.raises(ValueError, match=r"`index` must be given when attention is cached; got None"):
            net(make_images(), make_context(epoch=1, index=None))
        outside = torch.tensor([0, 1, 2, 3, 4, SAMPLES])
        with pytest.raises(IndexError, match=rf"`index` must be .*num_samples = {SAMPLES}.*; got {SAMPLES}\."):
            net(make_images(), make_context(epoch=1, index=outside))

    def test_other_attention_needs_no_numbers(self):
        assert styled(LLAM_EFDMIX)(make_images(), make_context(index=None, flips=None)).logits.isfinite().all()

    def test_the_backbone_must_return_one_logit_per_label(self):
        with pytest.raises(ValueError, match=r"one logit per label, \(6, 3\); got \(6, 5\). Build it with num_cl"):
            styled(LLAM_EFDMIX, build=lambda: Toy(5))(make_images(), make_context())

    def test_cached_attention_needs_the_number_of_samples(self):
        with pytest.raises(ValueError, match="`num_samples` must be given for cached attention; got None"):
            styled(label_decoupled("csu", "gradcam"), samples=None)

    def test_unknown_stages_are_answered_with_those_there_are(self):
        with pytest.raises(ValueError, match=r"Stage 7 does not exist. This network has 0 = 'act1'.*4 = 'layer4'"):
            styled(LLAM_EFDMIX, build=lambda: timm.create_model("resnet18"), stages=(7,), image_size=(32, 64))
        with pytest.raises(ValueError, match=r"Submodule 'stage9' does not exist. Did you mean 'stage3'"):
            styled(LLAM_EFDMIX, stages=("stage9",))

    def test_at_least_one_stage_is_needed(self):
        with pytest.raises(ValueError, match="`stages` must name at least one insertion point; got none"):
            styled(LLAM_EFDMIX, stages=())

    def test_a_place_that_is_not_passed_is_named(self):
        net = styled(LLAM_EFDMIX)
        net.backbone.forward = lambda images: net.backbone.head(images.mean(dim=(2, 3)).repeat(1, 4))
        with pytest.raises(RuntimeError, match=r"must be passed once in a forward call; \['stage1', 'stage2'\] were"):
            net(make_images(), make_context())

    def test_a_place_that_is_passed_twice_is_named(self):
        net = styled(LLAM_EFDMIX)
        plain = Toy.forward
        net.backbone.forward = lambda images: plain(net.backbone, images) + plain(net.backbone, images)
        with pytest.raises(RuntimeError, match="must be passed once in a forward call; 'stage1' is twice"):
            net(make_images(), make_context())

    def test_an_error_in_the_backbone_leaves_no_hooks_behind(self):
        net = styled(STYLES["online"])
        with pytest.raises(RuntimeError, match="channels"):
            net(make_images()[:, :2], make_context())
        assert not any(module._forward_hooks for module in net.modules())
        assert net(make_images(), make_context()).logits.isfinite().all()


def test_processes_that_share_a_batch_restyle_it_as_one_would():
    style = label_decoupled("csu", "llam")  # no partner, which would be chosen among the rows of a process
    images, context = make_images(6).double(), make_context(6)
    whole = styled(style).double()(images, context)
    for rank in range(2):
        net, rows = styled(style).double(), slice(3 * rank, 3 * rank + 3)
        net.distribute(rank=rank, world=2, gather=lambda tensor: tensor)
        part = replace(context, present=context.present[rows], domain=context.domain[rows], index=None, flips=None)
        # Four layers with sums of at most 96 terms, and two divisions by deviations of at least 1e-3.
        rounding = bound(6 * 96, scale=1000)
        torch.testing.assert_close(net(images[rows], part).logits, whole.logits[rows], rtol=0, atol=rounding)


def test_processes_that_share_a_batch_fill_their_banks_from_all_of_it():
    for style in (STYLES["banked-llam"], replace(STYLES["online"], gate_prob=0.0)):
        net = styled(style, stages=("stage1",))
        net.distribute(rank=0, world=2, gather=lambda part: torch.cat([part, part + 1 if part.ndim == 1 else part]))
        context = make_context(2, present=torch.ones(2, LABELS, dtype=torch.bool), index=torch.tensor([3, 5]))
        net.backbone.head.bias.data += 100
        net(make_images(2), context)
        if net.cams is None:
            assert len(net.styles[0].bank) == 4 * LABELS
        else:
            everything = torch.ones(SAMPLES, LABELS, dtype=torch.bool)
            usable = net.cams.lookup(torch.arange(SAMPLES), None, everything).usable
            assert usable.any(dim=1).nonzero()[:, 0].tolist() == [3, 4, 5, 6]


def test_global_mixstyle_in_a_network_follows_its_own_draws():
    net = styled(GlobalConfig(MixStyleConfig(0.5), gate_prob=1.0), stages=("stage1",))
    images, context = make_images(), make_context()
    kept = []
    net.backbone.stage2.register_forward_pre_hook(lambda _m, args: kept.append(args[0]))
    net(images, context)
    net.streams = ldstyle.seeding.Streams(0)
    batch, draws, _ = net._prepare(context)
    feats = net.backbone.stage1(images)
    wanted = ldstyle.functional.mixstyle(feats, batch.global_partner, draws[0].global_.lam[:, 0])
    assert torch.equal(kept[0], wanted)
    assert sorted(batch.global_partner.tolist()) == list(range(6))


def test_the_image_size_is_only_needed_where_the_backbone_does_not_know_it():
    assert IMAGE_SIZE != (224, 224)
    net = ldstyle.attach(seeded(Toy), LLAM_EFDMIX, stages=STAGES, num_labels=LABELS)
    assert [(point.channels, point.stride) for point in net.points] == [(8, 2), (10, 4)]
