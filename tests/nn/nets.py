"""Small networks, one setting of every style, and batches to train them on."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import torch
from torch import nn

import ldstyle
from ldstyle.config import (
    CSUConfig,
    CSULiteConfig,
    DSUConfig,
    EFDMixConfig,
    GlobalConfig,
    GradCamConfig,
    LabelDecoupledConfig,
    LLAMConfig,
    MixStyleConfig,
    UniformConfig,
)
from ldstyle.types import StyleContext

LABELS = 3
SAMPLES = 40
IMAGE_SIZE = (16, 24)
STAGES = ("stage1", "stage2")
LABEL_OPERATORS = {"mixstyle": MixStyleConfig(0.5), "efdmix": EFDMixConfig(0.5), "csu": CSULiteConfig(0.5)}
GLOBAL_OPERATORS = {**LABEL_OPERATORS, "csu_published": CSUConfig(), "dsu": DSUConfig()}
ATTENTIONS = {"llam": LLAMConfig(), "gradcam": GradCamConfig(refresh_every=2), "uniform": UniformConfig()}


def label_decoupled(operator: str, attention: str, **settings) -> LabelDecoupledConfig:
    defaults = {"gate_prob": 1.0, "warmup_epochs": 1} | settings
    return LabelDecoupledConfig(LABEL_OPERATORS[operator], ATTENTIONS[attention], **defaults)


LOCAL = {f"{o}-{a}": label_decoupled(o, a) for o in LABEL_OPERATORS for a in ATTENTIONS}
GLOBAL = {o: GlobalConfig(config, gate_prob=1.0) for o, config in GLOBAL_OPERATORS.items()}
STYLES = {
    **GLOBAL,
    "crossdomain": GlobalConfig(MixStyleConfig(), gate_prob=1.0, pairing="crossdomain"),
    **LOCAL,
    "banked-llam": label_decoupled("mixstyle", "llam", bank_size=4),
    "banked-gradcam": label_decoupled("mixstyle", "gradcam", bank_size=4),
    "banked-uniform": label_decoupled("mixstyle", "uniform", bank_size=4),
    "shared-coefficient": label_decoupled("efdmix", "llam", per_label=False),
    "any-partner": label_decoupled("mixstyle", "llam", label_matched=False),
    "online": replace(label_decoupled("efdmix", "gradcam"), attention=GradCamConfig("online"), gate_prob=0.3),
}


class Toy(nn.Module):
    """A network without batch statistics, with pooling and one linear layer behind its last map."""

    def __init__(self, labels: int = LABELS) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(8, 10, 3, stride=2, padding=1), nn.ReLU())
        self.stage3 = nn.Sequential(nn.Conv2d(10, 12, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Linear(12, labels)

    def forward(self, images):
        return self.head(self.stage3(self.stage2(self.stage1(images))).mean(dim=(2, 3)))


def seeded(build, seed: int = 0):
    """Build a network with the same weights each time, and leave the global stream alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def global_streams() -> tuple:
    """The state of the streams that belong to no one."""
    legacy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 - the stream that must not move
    return bytes(torch.get_rng_state().numpy()), bytes(legacy["key"]), legacy["pos"], random.getstate()


def styled(style, *, seed: int = 0, stages=STAGES, build=Toy, samples: int | None = SAMPLES, **settings):
    """Attach a style to a toy network whose weights do not depend on the style."""
    backbone = seeded(build, seed)
    defaults = {"num_labels": LABELS, "num_samples": samples, "image_size": IMAGE_SIZE} | settings
    return seeded(lambda: ldstyle.attach(backbone, style, stages=stages, seed=seed, **defaults)).train()


def make_images(batch: int = 6, *, seed: int = 0, size=IMAGE_SIZE):
    return torch.from_numpy(np.random.default_rng([seed, batch]).normal(size=(batch, 3, *size))).float()


def make_context(batch: int = 6, *, seed: int = 0, labels: int = LABELS, domains: int = 3, epoch: int = 9, **changes):
    rng = np.random.default_rng([seed, batch])
    fields = {
        "present": torch.from_numpy(rng.random((batch, labels)) < 0.7),
        "domain": torch.from_numpy(rng.integers(0, domains, batch)),
        "index": torch.from_numpy(rng.permutation(SAMPLES)[:batch]),
        "flips": torch.from_numpy(rng.random((batch, 2)) < 0.5),
        "epoch": epoch,
    }
    return StyleContext(**fields | changes)


def fill_maps(net, *, missing: float = 0.3, size=(2, 3), seed: int = 0) -> None:
    """Give a network's map bank entries of our own, some of them missing."""
    if net.cams is not None:
        rng = np.random.default_rng(seed)
        maps = torch.from_numpy(rng.uniform(0.05, 1, (net.cams.num_samples, net.num_labels, *size)))
        net.cams.store(torch.arange(len(maps)), maps, torch.from_numpy(rng.random(maps.shape[:2]) >= missing))


def train_step(net, number: int, optimizer=None, *, batch: int = 6, epoch: int = 9):
    """Take one step and return what it produced: logits, diversity and loss."""
    images, context = make_images(batch, seed=number), make_context(batch, seed=number, epoch=epoch)
    output = net(images, context)
    loss = ldstyle.functional.objective(output, context.present, diversity_weight=0.1)
    if optimizer is not None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return output.logits.detach(), output.diversity.detach(), loss.detach()
