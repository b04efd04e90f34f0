"""Algorithms that mix images: FACT (Xu et al., CVPR 2021) and mixup (Zhang et al., ICLR 2018)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.functional import match_partners, mix_amplitudes, mix_samples
from ldstyle.nn.draws import Rows, random_partners
from ldstyle.runs.algorithms import FactConfig, MixupConfig
from ldstyle.runs.processes import OnHost, Processes
from ldstyle.seeding import Streams
from ldstyle.training.algorithms.base import Algorithm
from ldstyle.types import StyleContext


class Fact(Algorithm):
    """Mixes the amplitudes of images with those of another domain's; labels stay as they are.

    Args:
        config: Settings.
        augmentation: How images were normalised: amplitudes are mixed on the scale of the pixels.
        processes: The processes of the run.
    """

    def __init__(self, config: FactConfig, augmentation: Augmentation, processes: Processes) -> None:
        super().__init__()
        self.config, self._processes = config, processes
        self._mean, self._std = (
            torch.tensor(values, device=processes.device)[:, None, None]
            for values in (augmentation.mean, augmentation.std)
        )

    def mix(self, images: Tensor, truth: OnHost[StyleContext], streams: Streams) -> tuple[Tensor, OnHost[StyleContext]]:
        """Mix amplitudes; an image that is not mixed keeps its values, bit for bit."""
        generator, rows = streams["fact"], Rows(len(images), self._processes.rank, self._processes.world)
        priority, draw, gate = (rows.take(generator.random) for _ in range(3))
        partner = _foreign_partners(truth.value, priority)
        lam = torch.where(gate < self.config.gate_prob, 1 - self.config.strength * draw, 1.0)
        pixels = images * self._std + self._mean  # in [0, 1]
        mixed = (mix_amplitudes(pixels, partner, lam).clamp(0, 1) - self._mean) / self._std
        kept = (lam == 1) | (partner == torch.arange(len(images)))
        return torch.where(kept.to(images.device)[:, None, None, None], images, mixed), truth


class Mixup(Algorithm):
    """Mixes images and labels by a coefficient per image, which weighs a label annotated for one image only.

    Args:
        config: Settings.
        processes: The processes of the run.
    """

    def __init__(self, config: MixupConfig, processes: Processes) -> None:
        super().__init__()
        self.config, self._processes = config, processes

    def mix(self, images: Tensor, truth: OnHost[StyleContext], streams: Streams) -> tuple[Tensor, OnHost[StyleContext]]:
        """Mix images and labels with those of a partner."""
        generator, rows = streams["mixup"], Rows(len(images), self._processes.rank, self._processes.world)
        alpha, context = self.config.alpha, truth.value
        priority, lam = rows.take(generator.random), rows.take(lambda shape: generator.beta(alpha, alpha, shape))
        crossdomain = self.config.pairing == "crossdomain"
        partner = _foreign_partners(context, priority) if crossdomain else random_partners(priority, context.original)
        mixed = mix_samples(images, partner, lam)
        present = context.present.to(lam)
        if context.known is None:
            return mixed, OnHost(replace(context, soft=mix_samples(present, partner, lam)))
        # λ ℓ(z, y) + (1 − λ) ℓ(z, y') without the unknown terms: losses are linear in the labels.
        weight = mix_samples(context.known.to(lam), partner, lam)
        soft = mix_samples(present, partner, lam) / weight.masked_fill(weight == 0, 1.0)  # unknown is not present
        soft = soft.clamp(max=1)  # a quotient of equals may be rounded up
        known = context.known | context.known[partner]
        return mixed, OnHost(replace(context, soft=soft, known=known, weight=weight))


def _foreign_partners(context: StyleContext, priority: Tensor) -> Tensor:
    """Pair each sample with one of another domain, whatever its labels, (B,) on the host."""
    original = None if context.original is None else context.original.cpu()
    return match_partners(torch.ones_like(context.present.cpu()), context.domain.cpu(), priority, original=original)
