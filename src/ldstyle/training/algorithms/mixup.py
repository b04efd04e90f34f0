"""Mixup: images and their labels mixed (Zhang et al., ICLR 2018)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ldstyle.functional import mix_samples
from ldstyle.nn.draws import Rows, random_partners
from ldstyle.runs.algorithms import MixupConfig
from ldstyle.runs.processes import OnHost, Processes
from ldstyle.seeding import Streams
from ldstyle.training.algorithms.base import Algorithm
from ldstyle.training.algorithms.fact import foreign_partners
from ldstyle.types import StyleContext


class Mixup(Algorithm):
    """Mixes images and labels by a coefficient per image; a mixed label is known where both are.

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
        partner = foreign_partners(context, priority) if crossdomain else random_partners(priority, context.original)
        labels = mix_samples(context.present.to(lam), partner, lam)
        known = None if context.known is None else context.known & context.known[partner]
        return mix_samples(images, partner, lam), OnHost(replace(context, soft=labels, known=known))
