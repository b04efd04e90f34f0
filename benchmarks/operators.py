"""Cost of style augmentation relative to plain training, measured side by side in one process.

    python benchmarks/operators.py [--quick] [--rounds N] [--only modules|refresh|steps]

Prints ratios of medians over interleaved rounds: whole training steps against ERM, the modules alone against a naive
loop, peak extra memory in maps of the stage, and the cost of refreshing cached attention.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import timm
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import ldstyle
from ldstyle.config import (
    CSULiteConfig,
    EFDMixConfig,
    GlobalConfig,
    GradCamConfig,
    LabelDecoupledConfig,
    LabelOperator,
    LLAMConfig,
    MixStyleConfig,
    StyleConfig,
    background_weight,
)
from ldstyle.cpu.memory import keep_freed_memory
from ldstyle.functional import (
    blend_weights,
    effective_lambda,
    match_partners,
    objective,
    unit_mass,
)
from ldstyle.nn.banks import CachedMaps
from ldstyle.nn.draws import Mixing, StyleDraws
from ldstyle.nn.label_decoupled import LabelDecoupledStyle, Region
from ldstyle.types import PairedContext, StyleContext

LABELS = 6
TOP_RATIO = 0.34
WARM_UP = 3  # rounds of whole steps until the process has all the pages it needs; a page costs more than its arithmetic
LABEL_PRIORS = (0.46, 0.43, 0.44, 0.24, 0.80, 0.08)  # Table 1, pooled over the three domains


class PublishedEFDMix(nn.Module):
    """Global EFDMix as its authors describe it: sort, argsort of the order, gather."""

    def forward(self, feats: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
        """Mix sorted values of all places."""
        flat = feats.flatten(2)
        values, order = flat.sort(dim=-1)
        rank = order.argsort(dim=-1)
        copied = values[partner].gather(-1, rank)
        mixed = flat + (copied - flat.detach()) * (1 - lam)[:, None, None]
        return mixed.view(feats.shape)


def naive_mixstyle(feats: Tensor, attn: Tensor, partner: Tensor, lam: Tensor, background: float) -> Tensor:
    """LD-MixStyle with one restyled map per label."""
    weights, residual = blend_weights(attn, background=background)
    mixed = residual * feats
    for label in range(attn.shape[1]):
        map_ = attn[:, label, None]  # (B, 1, H, W)
        mean = (map_ * feats.detach()).sum(dim=(2, 3), keepdim=True)
        std = ((map_ * feats.detach() ** 2).sum(dim=(2, 3), keepdim=True) - mean**2 + 1e-6).clamp(min=1e-6).sqrt()
        share = lam[:, label, None, None, None]
        new_mean = share * mean + (1 - share) * mean[partner].detach()
        new_std = share * std + (1 - share) * std[partner].detach()
        mixed = mixed + weights[:, label, None] * (new_std * (feats - mean) / std + new_mean)
    return mixed


def naive_efdmix(feats: Tensor, attn: Tensor, partner: Tensor, lam: Tensor, background: float) -> Tensor:
    """LD-EFDMix with one change map per label."""
    weights, _ = blend_weights(attn, background=background)
    flat = feats.flatten(2)
    channels, places = flat.shape[1:]
    top = max(1, int(TOP_RATIO * places))
    mixed = flat
    for label in range(attn.shape[1]):
        chosen = attn[:, label].flatten(1).topk(top).indices.sort().values[:, None].expand(-1, channels, -1)
        values, order = flat.detach().gather(2, chosen).sort(dim=-1, stable=True)
        rank = order.argsort(dim=-1)
        change = (values[partner].gather(-1, rank) - values.gather(-1, rank)) * (1 - lam[:, label, None, None])
        field = torch.zeros_like(flat).scatter(2, chosen, change)
        mixed = mixed + weights[:, label].flatten(1)[:, None] * field
    return mixed.view(feats.shape)


def draw_batch(batch: int, size: int) -> tuple[Tensor, StyleContext]:
    """Return images and a context with the label frequencies of the benchmark."""
    generator = torch.Generator().manual_seed(0)
    present = torch.rand(batch, LABELS, generator=generator) < torch.tensor(LABEL_PRIORS)
    images = torch.randn(batch, 3, size, size, generator=generator)
    domain = torch.arange(batch) % 2
    return images, StyleContext(present, domain, torch.arange(batch), torch.zeros(batch, 2, dtype=torch.bool), 99)


def variants() -> dict[str, StyleConfig | None]:
    """Return every method whose step is timed; all modules fire on every batch."""
    operators: dict[str, LabelOperator] = {
        "MixStyle": MixStyleConfig(),
        "EFDMix": EFDMixConfig(top_ratio=TOP_RATIO),
        "CSU": CSULiteConfig(),
    }
    found: dict[str, StyleConfig | None] = {"ERM": None}
    for name, operator in operators.items():
        found[name] = GlobalConfig(operator, gate_prob=1.0)
    for suffix, attention in (("", LLAMConfig()), ("-GC", GradCamConfig())):
        for name, operator in operators.items():
            found[f"LD-{name}{suffix}"] = LabelDecoupledConfig(operator, attention, gate_prob=1.0, warmup_epochs=5)
    return found


def build_step(style: StyleConfig | None, images: Tensor, context: StyleContext, name: str) -> Callable[[], None]:
    """Return a function that makes one forward and backward pass of a fresh network."""
    torch.manual_seed(0)
    backbone = timm.create_model(name, num_classes=LABELS).train()
    if style is None:
        target = context.present.float()

        def plain() -> None:
            backbone.zero_grad(set_to_none=True)
            nn.functional.binary_cross_entropy_with_logits(backbone(images), target).backward()

        return plain
    net = ldstyle.attach(backbone, style, stages=(1, 2), num_labels=LABELS, num_samples=len(images)).train()
    if net.cams is not None:
        side = images.shape[-1] // 32
        maps = torch.rand(len(images), LABELS, side, side, generator=torch.Generator().manual_seed(1))
        net.cams.store(torch.arange(len(images)), maps, context.present)

    def styled() -> None:
        net.zero_grad(set_to_none=True)
        objective(net(images, context), context.present, diversity_weight=0.1).backward()

    return styled


def build_published_efdmix(images: Tensor, context: StyleContext, name: str) -> Callable[[], None]:
    """Return a training step with the published EFDMix after stages 1 and 2."""
    torch.manual_seed(0)
    backbone = timm.create_model(name, num_classes=LABELS).train()
    mix, target = PublishedEFDMix(), context.present.float()
    partner, lam = torch.randperm(len(images)), torch.rand(len(images))
    for stage in ("layer1", "layer2"):
        backbone.get_submodule(stage).register_forward_hook(lambda _m, _a, output: mix(output, partner, lam))

    def step() -> None:
        backbone.zero_grad(set_to_none=True)
        nn.functional.binary_cross_entropy_with_logits(backbone(images), target).backward()

    return step


class Inputs:
    """What one module at a stage of C×H×W is given, the same for any module."""

    def __init__(self, batch: int, labels: int, shape: tuple[int, int, int]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.feats = torch.rand(batch, *shape, generator=generator).requires_grad_()
        present = torch.rand(batch, labels, generator=generator) < torch.tensor(
            [LABEL_PRIORS[label % LABELS] for label in range(labels)]
        )
        domain = torch.arange(batch) % 2
        partner = match_partners(present, domain, torch.rand(batch, generator=generator))
        self.batch = PairedContext(present, domain, epoch=99, partner=partner, global_partner=partner)
        self.lam = torch.rand(batch, labels, generator=generator)
        self.draws = StyleDraws(Mixing(self.lam[:, :1]), Mixing(self.lam))
        self.attn = unit_mass(torch.rand(batch, labels, *shape[1:], generator=generator), present).requires_grad_()
        self.cached = CachedMaps(torch.rand(batch, labels, 7, 7, generator=generator).half(), present)
        self.grad = torch.randn(batch, *shape, generator=generator)


def build_path(kind: str, given: Inputs) -> Callable[[], None]:
    """Return forward and backward of the per-label path alone, under given attention, ours or the naive one."""
    feats, attn, partner = given.feats, given.attn, given.batch.partner
    lam = effective_lambda(given.lam, given.batch.present, partner)
    background = background_weight("paper", feats.shape[2] * feats.shape[3])

    def ours(operator: LabelOperator) -> Callable[[], Tensor]:
        config = LabelDecoupledConfig(operator, LLAMConfig(), background="paper")
        module = LabelDecoupledStyle(config, feats.shape[1], attn.shape[1])
        return lambda: module.restyle(feats, Region(attn, None), given.batch, given.draws)[0]

    forward: dict[str, Callable[[], Tensor]] = {
        "LD-MixStyle": ours(MixStyleConfig()),
        "LD-EFDMix": ours(EFDMixConfig(top_ratio=TOP_RATIO)),
        "naive LD-MixStyle": lambda: naive_mixstyle(feats, attn, partner, lam, background),
        "naive LD-EFDMix": lambda: naive_efdmix(feats, attn, partner, lam, background),
    }

    def step() -> None:
        forward[kind]().backward(given.grad)
        feats.grad = attn.grad = None

    return step


def build_module(operator: LabelOperator, attention: LLAMConfig | GradCamConfig, given: Inputs) -> Callable[[], None]:
    """Return forward and backward of a whole module: attention, its diversity loss and the per-label path."""
    feats, labels = given.feats, given.attn.shape[1]
    module = LabelDecoupledStyle(LabelDecoupledConfig(operator, attention), feats.shape[1], labels).train()

    def step() -> None:
        styled = module(feats, given.batch, given.draws, given.cached)
        if styled.diversity is None:
            styled.feats.backward(given.grad)
        else:
            torch.autograd.backward([styled.feats, styled.diversity], [given.grad, torch.tensor(0.1)])
        feats.grad = None
        module.zero_grad(set_to_none=True)

    return step


class Cost(NamedTuple):
    """Median seconds on the clock, and of CPU time, which other users of the machine disturb less."""

    wall: float
    cpu: float


def measure(step: Callable[[], None]) -> Cost:
    """Return the cost of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def interleave(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, Cost]:
    """Return the median cost of each step over interleaved rounds, after one round of warm-up.

    The order is drawn again for each round: what a step costs depends on the memory that the one before it left.
    """
    times: dict[str, list[Cost]] = {name: [] for name in steps}
    order, dice = list(steps.items()), random.Random(0)
    for turn in range(rounds + 1):
        dice.shuffle(order)
        for name, step in order:
            cost = measure(step)
            if turn:
                times[name].append(cost)
    return {
        name: Cost(*(statistics.median(part) for part in zip(*values, strict=True))) for name, values in times.items()
    }


def ratio(cost: Cost, base: Cost) -> str:
    """Show a cost relative to another, on the clock and in CPU time."""
    return f"{cost.wall / base.wall:6.3f}  (CPU time {cost.cpu / base.cpu:.3f})"


def peak_extra_bytes(step: Callable[[], None]) -> int:
    """Return the largest sum of tensors that one call of ``step`` holds at a time beyond those that were there."""
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    assert record.profiler is not None
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return int(max(itertools.accumulate(event.nbytes() for event in events)))


def report_steps(
    name: str, batch: int, size: int, rounds: int, methods: list[str] | None, *, warm_up: int = WARM_UP
) -> None:
    """Print the ratios of whole training steps, each to a plain step made directly before it."""
    keep_freed_memory()  # as `fit` does
    images, context = draw_batch(batch, size)
    steps = {label: build_step(style, images, context, name) for label, style in variants().items()}
    steps["EFDMix (as published)"] = build_published_efdmix(images, context, name)
    plain = steps.pop("ERM")
    steps = {label: steps[label] for label in methods or steps}
    print(f"\nTraining step, {name}, {size} px, B = {batch}, L = {LABELS}, modules after stages 1 and 2, all firing")
    pairs: dict[str, list[Cost]] = {label: [] for label in steps}
    order, dice = list(steps.items()), random.Random(0)
    for turn in range(rounds + warm_up):
        dice.shuffle(order)
        for label, step in order:
            base, cost = measure(plain), measure(step)
            if turn >= warm_up:
                pairs[label].append(Cost(cost.wall / base.wall, cost.cpu / base.cpu))
    for label, ratios in pairs.items():
        wall, cpu = (sorted(part) for part in zip(*ratios, strict=True))
        middle = f"{statistics.median(wall):6.3f}  (CPU time {statistics.median(cpu):.3f})"
        print(f"  {label:<24} {middle}  from {wall[0]:.3f} to {wall[-1]:.3f}", flush=True)


def report_modules(batch: int, shape: tuple[int, int, int], rounds: int) -> None:
    """Print the speed-up over the naive loop and the peak memory of the modules alone."""
    kinds = ("LD-MixStyle", "naive LD-MixStyle", "LD-EFDMix", "naive LD-EFDMix")
    given = Inputs(batch, LABELS, shape)
    medians = interleave({kind: build_path(kind, given) for kind in kinds}, rounds)
    print(f"\nPer-label path alone, forward + backward, map {shape}, B = {batch}")
    for kind in ("LD-MixStyle", "LD-EFDMix"):
        print(f"  naive loop / {kind:<11} {ratio(medians['naive ' + kind], medians[kind])}")
    map_bytes = given.grad.numel() * given.grad.element_size()
    print("\nPeak extra memory of a module with its attention, in maps of its stage (output and gradients included)")
    operators: dict[str, LabelOperator] = {"MixStyle": MixStyleConfig(), "EFDMix": EFDMixConfig(top_ratio=TOP_RATIO)}
    for suffix, attention in (("", LLAMConfig()), ("-GC", GradCamConfig())):
        for name, operator in operators.items():
            few, many = (
                peak_extra_bytes(build_module(operator, attention, Inputs(batch, labels, shape))) / map_bytes
                for labels in (6, 60)
            )
            print(f"  {'LD-' + name + suffix:<24} {few:6.2f} at L = 6, {many:6.2f} at L = 60", flush=True)


def report_refresh(name: str, batch: int, size: int, rounds: int) -> None:
    """Print what cached attention costs in addition to training."""
    keep_freed_memory()
    images, context = draw_batch(batch, size)
    silent = {
        refresh: LabelDecoupledConfig(EFDMixConfig(), GradCamConfig(refresh=refresh), gate_prob=0.0)
        for refresh in ("sweep", "online")
    }
    net = ldstyle.attach(
        timm.create_model(name, num_classes=LABELS),
        silent["sweep"],
        stages=(1, 2),
        num_labels=LABELS,
        num_samples=batch,
    ).train()
    steps = {refresh: build_step(style, images, context, name) for refresh, style in silent.items()}
    print(f"\nCached attention, {name}, {size} px, B = {batch}")
    medians = interleave(steps, rounds)
    print(f"  step with online refresh / without  {ratio(medians['online'], medians['sweep'])}")
    # Apart from the others, whose heap a pass without gradients would leave in another state.
    refresh = {"refresh": lambda: net.refresh([(images, context.present, torch.arange(batch))])}
    medians = interleave({"sweep": steps["sweep"], **refresh}, rounds)
    print(f"  sweep / forward + backward sweep    {ratio(medians['refresh'], medians['sweep'])}")


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small shapes, for a test of the script itself")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds per median")
    parser.add_argument("--only", choices=("modules", "refresh", "steps"), help="one of the three parts")
    parser.add_argument("--methods", nargs="+", help="methods whose steps are measured; all by default")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    rounds = 1 if arguments.quick else arguments.rounds
    name, batch, size = ("resnet18", 4, 64) if arguments.quick else ("resnet50", 32, 224)
    shape = (16, 14, 14) if arguments.quick else (256, 56, 56)
    parts: dict[str, Callable[[], None]] = {
        "modules": lambda: report_modules(batch, shape, rounds),
        "refresh": lambda: report_refresh(name, batch, size, rounds),
        "steps": lambda: report_steps(
            name, batch, size, rounds, arguments.methods, warm_up=1 if arguments.quick else WARM_UP
        ),
    }
    for part in [arguments.only] if arguments.only else parts:
        parts[part]()


if __name__ == "__main__":
    main()
