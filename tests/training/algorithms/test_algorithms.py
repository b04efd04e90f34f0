"""Each algorithm by itself: what it does to a batch, a loss, a gradient or the weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.tolerance import bound
from torch import Tensor, nn

from ldstyle import functional as LF
from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.nn import analyse_head
from ldstyle.nn.backbones.insertion import resolve_points
from ldstyle.runs.algorithms import (
    AsymmetricConfig,
    CoralConfig,
    CrossEntropyConfig,
    ErmPlusPlusConfig,
    FactConfig,
    FocalConfig,
    GroupDroConfig,
    LossConfig,
    MiroConfig,
    MixupConfig,
    SagmConfig,
)
from ldstyle.runs.backbone import create_network
from ldstyle.runs.config import OptimizerConfig
from ldstyle.runs.processes import OnHost
from ldstyle.seeding import Streams
from ldstyle.training.algorithms import build_loss
from ldstyle.training.algorithms.base import Algorithm
from ldstyle.training.algorithms.mixing import Fact, Mixup
from ldstyle.training.algorithms.objectives import Coral, GroupDro, Miro
from ldstyle.training.algorithms.optimization import ErmPlusPlus, Sagm
from ldstyle.training.build import build_optimizer
from ldstyle.training.loop import set_learning_rates
from ldstyle.training.step import StyledLoss
from ldstyle.types import StyleContext

AUGMENTATION = Augmentation(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
FABRIC: Any = SimpleNamespace(backward=lambda loss: loss.backward(), autocast=nullcontext)


def processes(rank: int = 0, world: int = 1, gather: Callable[[Tensor], Tensor] = lambda value: value) -> Any:
    return SimpleNamespace(rank=rank, world=world, gather=gather, device=torch.device("cpu"))


def batch(count: int = 6, *, seed: int = 0, known: bool = False) -> tuple[Tensor, StyleContext]:
    """Normalised images of pixels in [0, 1], two domains, three labels."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.rand(count, 3, 48, 48, generator=generator)
    images = (pixels - torch.tensor(AUGMENTATION.mean)[:, None, None]) / torch.tensor(AUGMENTATION.std)[:, None, None]
    present = torch.rand(count, 3, generator=generator) < 0.5
    annotated = torch.rand(count, 3, generator=generator) < 0.7 if known else None
    return images, StyleContext(present, torch.arange(count) % 2, torch.arange(count), epoch=1, known=annotated)


def backbone(name: str = "test_resnet") -> nn.Module:
    return create_network(name, num_labels=3, seed=1)


def test_fact_mixes_amplitudes_of_pixels_and_leaves_the_rest_alone() -> None:
    images, truth = batch()
    mixed, told = Fact(FactConfig(), AUGMENTATION, processes()).mix(images, OnHost(truth), Streams(3))
    changed = (mixed != images).flatten(1).any(dim=1)
    assert 0 < changed.sum() < len(images), "the seed should open some gates and shut others"
    assert told.value is truth
    pixels = mixed * torch.tensor(AUGMENTATION.std)[:, None, None] + torch.tensor(AUGMENTATION.mean)[:, None, None]
    edge = bound(4, dtype=torch.float32)  # clamped before it was normalised
    assert -edge <= pixels.min() < pixels.max() <= 1 + edge

    generator = Streams(3)["fact"]
    priority, share, gate = (torch.from_numpy(generator.random(6).astype(np.float32)) for _ in range(3))
    partner = LF.match_partners(torch.ones(6, 1) > 0, truth.domain, priority)
    assert (truth.domain[partner] != truth.domain).all()
    plain = batch()[0] * torch.tensor(AUGMENTATION.std)[:, None, None] + torch.tensor(AUGMENTATION.mean)[:, None, None]
    wanted = LF.mix_amplitudes(plain, partner, torch.where(gate < 0.5, 1 - share, 1.0)).clamp(0, 1)
    # Two transforms over 48 · 48 pixels, by halves, and back to the normalised scale: sums of 2 log2(48²) values.
    tolerance = bound(4 * 23 + 10, scale=4, dtype=torch.float32)
    torch.testing.assert_close(pixels, wanted, atol=tolerance, rtol=0)


@pytest.mark.parametrize("config", [FactConfig(gate_prob=0.0), FactConfig(strength=0.0)])
def test_fact_without_strength_is_the_identity(config: FactConfig) -> None:
    images, truth = batch()
    assert torch.equal(Fact(config, AUGMENTATION, processes()).mix(images, OnHost(truth), Streams(3))[0], images)


def test_two_processes_make_the_draws_of_one() -> None:
    """The second process keeps the second half of the coefficients; partners are found within a part."""
    images, truth = batch(4)
    part = processes(rank=1, world=2)
    labels = Mixup(MixupConfig(), part).mix(images, OnHost(truth), Streams(0))[1].value.soft
    generator = Streams(0)["mixup"]
    priority, lam = generator.random(8), generator.beta(0.2, 0.2, 8)
    order = torch.from_numpy(priority[4:].astype(np.float32))
    partner = LF.match_partners(torch.ones(4, 1) > 0, truth.domain, order)
    wanted = LF.mix_samples(truth.present.float(), partner, torch.from_numpy(lam[4:].astype(np.float32)))
    assert labels is not None
    torch.testing.assert_close(labels, wanted)


@pytest.mark.parametrize("pairing", ["crossdomain", "random"])
def test_mixup_leaves_copies_of_one_image_apart(pairing: Any) -> None:
    images, truth = batch(2)
    truth = replace(truth, original=torch.tensor([3, 3]))
    for seed in range(8):
        mixed = Mixup(MixupConfig(pairing=pairing), processes()).mix(images, OnHost(truth), Streams(seed))[0]
        assert torch.equal(mixed, images)


@pytest.mark.parametrize("pairing", ["crossdomain", "random"])
def test_mixup_mixes_labels_as_images(pairing: Any) -> None:
    images, truth = batch(known=True)
    mixed, told = Mixup(MixupConfig(pairing=pairing), processes()).mix(images, OnHost(truth), Streams(1))
    labels, known, weight, own = told.value.soft, told.value.known, told.value.weight, truth.known
    assert labels is not None
    assert known is not None
    assert weight is not None
    assert own is not None
    truth = replace(truth, present=truth.present & own)
    assert ((labels >= 0) & (labels <= 1)).all()
    # A few operations in float32 on values up to 4. The coefficient is a projection on a difference of more than 0.5 in
    # the root mean square, and is multiplied by differences up to 8.
    error = bound(6, scale=4, dtype=torch.float32)
    for row in range(len(images)):
        matches = []
        for other in range(len(images)):
            step = (mixed[row] - images[row]).double()
            whole = (images[other] - images[row]).double()
            rest = (step * whole).sum() / whole.square().sum().clamp(min=1e-9)
            if torch.allclose(step, rest * whole, rtol=0, atol=(1 + 2 * 8) * error):
                matches.append((other, rest))
        (other, rest), *_ = [match for match in matches if match[0] != row] or matches
        present, annotated = truth.present.double(), own.double()
        wanted = annotated[row] + rest * (annotated[other] - annotated[row])
        torch.testing.assert_close(weight[row].double(), wanted, atol=3 * error, rtol=0)
        mixture = present[row] + rest * (present[other] - present[row])
        torch.testing.assert_close(labels[row].double() * wanted, mixture, atol=6 * error, rtol=0)
        if rest > 1e-3:
            assert torch.equal(known[row], own[row] | own[other])
            assert pairing == "random" or truth.domain[other] != truth.domain[row]


def test_mixup_weighs_the_loss_of_each_image_of_a_pair_where_its_label_is_known() -> None:
    images, truth = batch(known=True)
    assert truth.known is not None
    truth = replace(truth, known=truth.known & ~((truth.domain == 0)[:, None] & torch.tensor([True, False, False])))
    assert truth.known is not None
    truth = replace(truth, present=truth.present & truth.known)
    algorithm, net = Mixup(MixupConfig(alpha=1.0), processes()), backbone().eval()
    mixed, told = algorithm.mix(images, OnHost(truth), Streams(2))
    loss, _ = StyledLoss(net, algorithm)(mixed, told)
    generator = Streams(2)["mixup"]
    priority, lam = generator.random(6), generator.beta(1.0, 1.0, 6)
    partner = LF.match_partners(torch.ones(6, 1) > 0, truth.domain, torch.from_numpy(priority.astype(np.float32)))
    logits, total, weights = net(mixed).double(), 0.0, 0.0
    for row in range(6):
        for other, part in ((row, lam[row]), (int(partner[row]), 1 - lam[row])):
            for label in range(3):
                if truth.known[other, label]:
                    sign = 1.0 if truth.present[other, label] else -1.0
                    total += part * nn.functional.softplus(-sign * logits[row, label]).item()
                    weights += part
    assert loss.item() == pytest.approx(total / weights, rel=bound(60, scale=4, dtype=torch.float32))
    # The first label is known in the second domain alone, and is trained in all its images' mixtures.
    assert told.value.weight is not None
    assert (told.value.weight[truth.domain == 0, 0] > 0).any()


def test_unknown_labels_take_no_part_in_any_loss() -> None:
    images, truth = batch(known=True)
    known = truth.known
    assert known is not None
    flipped = replace(truth, present=truth.present ^ ~known)
    net = backbone().eval()
    losses = {}
    for name, config in (("bce", CrossEntropyConfig(True)), ("focal", FocalConfig()), ("asl", AsymmetricConfig())):
        pool: Any = SimpleNamespace(labels=np.array([[1, 0, 1], [0, 0, 1], [0, 1, 0]]), vocabulary=("a", "b", "c"))
        model = StyledLoss(net, None, build_loss(config, pool))
        first, second = (model(images, OnHost(context))[0] for context in (truth, flipped))
        assert first == second
        losses[name] = first.item()
        changed = model(images, OnHost(replace(flipped, known=None)))[0]
        assert changed != first
    assert len(set(losses.values())) == 3


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (CrossEntropyConfig(class_balanced=True), [2.0, 0.5, 1.0, 1.0]),
        (CrossEntropyConfig(), [1.0, 1.0, 1.0, 1.0]),
        (FocalConfig(alpha=0.25, class_balanced=True), [0.5, 0.125, 0.25, 0.25]),
    ],
)
def test_class_balance_is_absent_by_present_of_the_known_labels(config: LossConfig, weights: list[float]) -> None:
    labels = np.array([[1, 1, -1, 0], [0, 1, -1, 0], [0, 0, -1, 0]])  # the last label is never present
    pool: Any = SimpleNamespace(labels=labels, vocabulary=("a", "b", "c", "d"))
    loss = build_loss(config, pool)
    assert loss is not None
    assert loss.positive_weight.tolist() == pytest.approx(weights)


def test_coral_adds_the_distance_of_what_the_classifier_reads() -> None:
    images, truth = batch()
    net = backbone().eval()
    algorithm = Coral(CoralConfig(weight=3.0), analyse_head(net, image_size=(48, 48)))
    loss, scalars = StyledLoss(net, algorithm)(images, OnHost(truth))
    pooled = net.forward_head(net.forward_features(images), pre_logits=True)  # type: ignore[operator]
    wanted = 3 * LF.covariance_distance(pooled, truth.domain)
    torch.testing.assert_close(scalars["penalty"], wanted.detach())
    plain = StyledLoss(net)(images, OnHost(truth))[0]
    torch.testing.assert_close(loss, plain + wanted)
    stem = next(net.parameters())
    found, bare, expected = (
        torch.autograd.grad(value, stem, retain_graph=True)[0] for value in (loss, plain, plain + wanted)
    )
    torch.testing.assert_close(found, expected)
    assert (found - bare).norm() > 0.1 * bare.norm()


def test_coral_pools_in_single_precision() -> None:
    images, truth = batch()
    net = backbone().eval()
    algorithm = Coral(CoralConfig(weight=1.0), analyse_head(net, image_size=(48, 48)))
    feats = net.forward_features(images).detach().bfloat16()  # type: ignore[operator]
    wanted = LF.covariance_distance(feats.float().mean(dim=(2, 3)), truth.domain)
    assert torch.equal(algorithm._penalty(feats, truth), wanted)


def test_miro_measures_the_distance_to_the_weights_it_was_built_with() -> None:
    images, truth = batch()
    net = backbone().eval()
    points = resolve_points(net, (1, 2, 3, 4), image_size=(48, 48))
    algorithm = Miro(MiroConfig(weight=0.5), net, points, torch.device("cpu"))
    model = StyledLoss(net, algorithm).eval()
    at_start = model(images, OnHost(truth))[1]["penalty"]
    wanted = 0.5 * 4 * np.log(0.1) / 2  # in float32, from a raw variance that is rounded
    assert at_start.item() == pytest.approx(wanted, abs=bound(40, scale=4, dtype=torch.float32))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.1)
    loss, scalars = model(images, OnHost(truth))
    assert scalars["penalty"] > at_start
    loss.backward()
    assert all(raw.grad is not None and raw.grad.abs().min() > 0 for raw in algorithm.raw_variances)
    assert set(algorithm.state_dict()) == {f"raw_variances.{number}" for number in range(4)}
    assert sum(p.numel() for p in algorithm.parameters()) == sum(point.channels for point in points)


@pytest.mark.parametrize("training", [True, False])
def test_miro_has_its_least_penalty_at_the_weights_it_was_built_with(training: bool) -> None:
    images, truth = batch()
    net = backbone().train(training)
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    norms[0].eval()  # as if frozen by the user
    points = resolve_points(net, (1, 2, 3, 4), image_size=(48, 48))
    algorithm = Miro(MiroConfig(weight=0.5), net, points, torch.device("cpu"))
    buffers, kept = (
        {name: value.clone() for name, value in one.named_buffers()} for one in (net, algorithm._frozen[0])
    )
    penalty = StyledLoss(net, algorithm)(images, OnHost(truth))[1]["penalty"]
    wanted = 0.5 * 4 * np.log(0.1) / 2
    assert penalty.item() == pytest.approx(wanted, abs=bound(40, scale=4, dtype=torch.float32))
    once = backbone().train(training)
    next(module for module in once.modules() if isinstance(module, nn.BatchNorm2d)).eval()
    once(images)
    assert buffers.keys() == dict(once.named_buffers()).keys()
    for name, value in once.named_buffers():
        assert torch.equal(net.get_buffer(name), value)  # the frozen pass leaves no trace in the network
    assert all(torch.equal(algorithm._frozen[0].get_buffer(name), value) for name, value in kept.items())


def test_the_parameters_of_an_algorithm_have_a_learning_rate_of_their_own() -> None:
    net, config = backbone(), OptimizerConfig(backbone_lr=1e-3, head_lr=5e-3, epochs=4, min_lr=0.0)
    points = resolve_points(net, (1, 2), image_size=(48, 48))
    algorithm = Miro(MiroConfig(), net, points, torch.device("cpu"))
    optimizer = build_optimizer(net, config, algorithm)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 5e-3, 1e-2]
    assert optimizer.param_groups[2]["params"] == list(algorithm.parameters())
    set_learning_rates(optimizer, config, 3, added=algorithm.lr_ratio)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([5e-4, 2.5e-3, 5e-3])
    assert len(build_optimizer(net, config, Algorithm()).param_groups) == 2


def test_group_dro_weighs_domains_by_their_losses() -> None:
    _, truth = batch(5, known=True)
    assert truth.known is not None
    losses = torch.rand(5, 3, generator=torch.Generator().manual_seed(2), requires_grad=True)
    algorithm = GroupDro(GroupDroConfig(step_size=2.0), 3, processes())  # the third domain is not in the batch
    got = algorithm.average(losses, truth.known, truth)
    means = []
    for number in range(2):
        entries = [
            losses[i, k].item() for i in range(5) for k in range(3) if i % 2 == number and bool(truth.known[i, k])
        ]
        means.append(sum(entries) / len(entries))
    grown = np.array([np.exp(2 * means[0]), np.exp(2 * means[1]), 1.0]) / 3
    weights = grown / grown.sum()
    rounding = bound(40, scale=2, dtype=torch.float32)  # means of at most 9 losses, times 2 in an exponent
    np.testing.assert_allclose(algorithm.domain_weights.numpy(), weights, rtol=rounding)
    assert got.item() == pytest.approx(weights[0] * means[0] + weights[1] * means[1], rel=rounding)
    copy = GroupDro(GroupDroConfig(), 3, processes())
    copy.load_state_dict(algorithm.state_dict())
    assert torch.equal(copy.domain_weights, algorithm.domain_weights)


def test_group_dro_of_two_processes_has_the_loss_and_gradient_of_one() -> None:
    _, truth = batch(8)
    losses = torch.rand(8, 3, generator=torch.Generator().manual_seed(4), requires_grad=True)
    alone = GroupDro(GroupDroConfig(step_size=1.0), 2, processes())
    whole = alone.average(losses, None, truth)
    (slopes,) = torch.autograd.grad(whole, losses)
    parts, domains = losses.detach().split([3, 5]), truth.domain.split([3, 5])
    sums = [_sums(part, domain) for part, domain in zip(parts, domains, strict=True)]
    values, gradients = [], []
    for part, domain in zip(parts, domains, strict=True):
        gathered = iter([torch.stack([one[kind] for one in sums]) for kind in range(2)])
        shard = GroupDro(GroupDroConfig(step_size=1.0), 2, processes(world=2, gather=lambda _, g=gathered: next(g)))
        leaf = part.clone().requires_grad_()
        context = StyleContext(torch.ones(len(part), 3) > 0, domain, None, None, epoch=1)
        value = shard.average(leaf, None, context)
        values.append(value)
        gradients.append(torch.autograd.grad(value, leaf)[0])
        torch.testing.assert_close(shard.domain_weights, alone.domain_weights)
    torch.testing.assert_close(torch.stack(values).mean(), whole)
    torch.testing.assert_close(torch.cat(gradients) / 2, slopes)


def _sums(losses: Tensor, domain: Tensor) -> tuple[Tensor, Tensor]:
    sums = torch.stack([losses[domain == number].sum() for number in range(2)])
    return sums, torch.tensor([3.0 * int((domain == number).sum()) for number in range(2)])


class Quartic(nn.Module):
    """A loss whose gradient changes from place to place, with BatchNorm to leave traces in."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
        self.unused = nn.Parameter(torch.ones(2))
        self.norm = nn.BatchNorm1d(3, dtype=torch.float64)

    def forward(self, images: Tensor, _truth: object) -> tuple[Tensor, dict[str, Tensor]]:
        loss = (self.norm(images) * self.weight).pow(4).sum()
        return loss, {"loss": loss.detach()}


def test_sagm_averages_the_gradients_of_both_passes_and_leaves_no_trace() -> None:
    images = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    net, once = Quartic(), Quartic()
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    config = SagmConfig(radius=0.3, alpha=0.01)
    scalars = Sagm(config, net).backward(FABRIC, net, images, OnHost(batch()[1]), done=0.0)
    once(images, None)[0].backward()
    used = [(name, p) for name, p in once.named_parameters() if p.grad is not None]
    first = [p.grad.clone() for _, p in used if p.grad is not None]
    norm = torch.cat([gradient.flatten() for gradient in first]).norm()
    moved = Quartic()
    with torch.no_grad():
        for (name, _), gradient in zip(used, first, strict=True):
            moved.get_parameter(name).add_((0.3 / norm - 0.01) * gradient)
    moved(images, None)[0].backward()
    for (name, _), gradient in zip(used, first, strict=True):
        wanted = (gradient + moved.get_parameter(name).grad) / 2  # type: ignore[operator]
        torch.testing.assert_close(net.get_parameter(name).grad, wanted, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), weights, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(net.buffers(), once.buffers(), strict=True))
    assert net.unused.grad is None
    assert scalars["loss"] == once(images, None)[0]


def test_erm_plus_plus_trains_the_head_first_and_predicts_with_the_mean() -> None:
    net = backbone()
    algorithm = ErmPlusPlus(ErmPlusPlusConfig(head_ratio=0.5, average_ratio=0.25), net, averages=True)
    images, truth = batch()
    head = {id(p) for p in net.get_classifier().parameters()}  # type: ignore[operator]
    for done, frozen in ((0.0, True), (0.49, True), (0.5, False)):
        net.zero_grad()
        algorithm.backward(FABRIC, StyledLoss(net), images, OnHost(truth), done=done)
        assert all((p.grad is None) == (frozen and id(p) not in head) for p in net.parameters())

    seen: list[dict[str, Tensor]] = []
    for step in range(1, 6):
        with torch.no_grad():
            for value in net.parameters():
                value.add_(0.01 * step)
        settled = step != 3
        algorithm.after_step(net, done=step / 8, settled=settled)
        if step / 8 > 0.25 and settled:
            seen.append({name: value.clone() for name, value in net.named_parameters()})
    assert len(seen) == 2
    training = {name: value.clone() for name, value in net.state_dict().items()}
    copy = ErmPlusPlus(ErmPlusPlusConfig(), net, averages=True)
    copy.load_state_dict(algorithm.state_dict())
    for one in (algorithm, copy):
        with one.predicting(net):
            for name, value in net.named_parameters():
                torch.testing.assert_close(value, (seen[0][name] + seen[1][name]) / 2)
        assert all(torch.equal(value, training[name]) for name, value in net.state_dict().items())


def test_the_mean_network_of_erm_plus_plus_sees_the_images_of_each_step() -> None:
    net, mirror = backbone().train(), backbone().train()
    algorithm = ErmPlusPlus(ErmPlusPlusConfig(head_ratio=0.0, average_ratio=0.2), net, averages=True)
    total: dict[str, Tensor] = {}
    for step in range(1, 5):
        images, truth = batch(seed=step)
        net.zero_grad()
        algorithm.backward(FABRIC, StyledLoss(net), images, OnHost(truth), done=(step - 1) / 4)
        with torch.no_grad():
            for value in net.parameters():
                value.sub_(0.1 * value.grad)
        before = {name: value.clone() for name, value in net.named_buffers()}
        algorithm.after_step(net, done=step / 4, settled=True)
        assert all(torch.equal(value, before[name]) for name, value in net.named_buffers())
        assert all(module.training for module in net.modules())
        if step == 1:
            mirror.load_state_dict(net.state_dict())  # a copy of the first network averaged, then shown each batch
        weights = {name: value.detach().clone() for name, value in net.named_parameters()}
        total = {name: value + total.get(name, 0.0) for name, value in weights.items()}
        with torch.no_grad():
            for name, value in mirror.named_parameters():
                value.copy_(total[name] / step)
            mirror(images)
    resumed = ErmPlusPlus(ErmPlusPlusConfig(), net, averages=True)
    resumed.load_state_dict(algorithm.state_dict())
    for one in (algorithm, resumed):
        with one.predicting(net):
            for name, value in net.named_buffers():
                torch.testing.assert_close(value, mirror.get_buffer(name), rtol=1e-4, atol=1e-5)


def test_erm_plus_plus_leaves_averaging_to_swad() -> None:
    net = backbone()
    algorithm = ErmPlusPlus(ErmPlusPlusConfig(), net, averages=False)
    algorithm.after_step(net, done=1.0, settled=True)
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    with algorithm.predicting(net):
        assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())


def test_an_algorithm_without_a_name_changes_nothing() -> None:
    images, truth = batch()
    algorithm, told = Algorithm(), OnHost(truth)
    mixed, same = algorithm.mix(images, told, Streams(0))
    assert mixed is images
    assert same is told
    assert not list(algorithm.parameters())
    assert not algorithm.state_dict()
