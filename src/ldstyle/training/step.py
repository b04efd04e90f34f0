"""One step's forward pass: augmentation, the network, and the objective."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ldstyle.data.loading.augmentation import Augmentation, Draws
from ldstyle.data.loading.pool import Batch, Pool
from ldstyle.functional import label_losses, objective
from ldstyle.nn import StyledNet
from ldstyle.nn.backbones.layout import logits_of
from ldstyle.runs.processes import OnHost, Processes
from ldstyle.training.algorithms.base import Algorithm, LabelLoss
from ldstyle.types import StyleContext, StyledOutput

KNOWN = "#"
"""Ending of the scalar that counts the steps in which another is known."""


class StyledLoss(nn.Module):
    """A network and its objective in one forward pass, which is what data-parallel training wraps.

    Args:
        net: Styled network, or a plain backbone.
        algorithm: What the step does beyond its style; ``None`` for nothing.
        label_loss: Loss of each label; ``None`` is the binary cross-entropy.
    """

    def __init__(self, net: nn.Module, algorithm: Algorithm | None = None, label_loss: LabelLoss | None = None) -> None:
        super().__init__()
        self.net = net
        self.algorithm, self.label_loss = algorithm or Algorithm(), label_loss
        self.weights = net.loss_weights if isinstance(net, StyledNet) else {"diversity_weight": 0.0}

    def forward(self, images: Tensor, held: OnHost[StyleContext]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss (Eq. 13) and the scalars to log, for augmented images (B, 3, S, S)."""
        context = held.value
        backbone = self.net.backbone if isinstance(self.net, StyledNet) else self.net
        with self.algorithm.watch(backbone, images) as penalty_of:
            if isinstance(self.net, StyledNet):
                output = self.net(images, context)
            else:
                logits = logits_of(self.net(images))
                output = StyledOutput(logits, logits.new_zeros(()))
        loss = objective(
            output,
            context.present,
            known=context.known,
            classification=self._classification(output.logits, context),
            **self.weights,
        )
        scalars = _scalars(output, learned=self.weights["diversity_weight"] > 0)
        penalty = penalty_of(context)
        if penalty is not None:
            loss = loss + penalty
            scalars["penalty"] = penalty.detach()
        return loss, {"loss": loss.detach(), **scalars}

    def _classification(self, logits: Tensor, context: StyleContext) -> Tensor | None:
        """Return the classification loss, or ``None`` for the mean binary cross-entropy of plain labels."""
        if self.label_loss is None and context.soft is None and not self.algorithm.weighs_domains:
            return None
        labels = context.present if context.soft is None else context.soft
        loss = label_losses if self.label_loss is None else self.label_loss
        weight = context.known if context.weight is None else context.weight
        return self.algorithm.average(loss(logits, labels), weight, context)


def _scalars(output: StyledOutput, *, learned: bool) -> dict[str, Tensor]:
    scalars = {"diversity": output.diversity.detach()} if learned else {}
    scalars |= {name: output.diagnostics[name] for name in ("fired", "labels_mixed") if name in output.diagnostics}
    if output.grounding is not None:
        scalars["grounding"] = output.grounding.detach()
    clamped = [count for name, count in output.diagnostics.items() if name.startswith("clamped")]
    # Steps without a count add nothing; the key is there from the first count on.
    scalars |= {"clamped": torch.stack(clamped).sum()} if clamped else {}
    for name, value in output.diagnostics.items():
        if name.startswith(("strength/", "locations/")):
            # Known in some steps only, so that the mean over the epoch needs their number.
            scalars |= {name: value.nan_to_num(), f"{name}{KNOWN}": (~value.isnan()).float()}
    return scalars


class BatchSource:
    """Turns sample numbers into augmented batches on the device.

    Draws are made for the global batch and each process keeps its rows, so that N processes draw what one would.

    Args:
        pool: The training samples.
        augmentation: Flips and jitter.
        generator: The run's stream for augmentation.
        processes: The processes of the run.
    """

    def __init__(
        self, pool: Pool, augmentation: Augmentation, generator: np.random.Generator, processes: Processes
    ) -> None:
        self._pool, self._augmentation, self._generator, self._processes = pool, augmentation, generator, processes
        self._has_unknown = bool((pool.labels < 0).any())
        self._has_copies = bool((pool.original != np.arange(len(pool))).any())

    def load(self, rows: np.ndarray, *, epoch: int) -> tuple[Tensor, OnHost[StyleContext]]:
        """Return augmented images (B, 3, S, S) on the device, and their labels and domains."""
        batch = self._pool.gather(rows)
        images = batch.images
        if self._processes.device.type == "cuda":
            images = images.pin_memory()
        draws = self._draws(len(rows))
        augmented = self._augmentation.apply(images.to(self._processes.device, non_blocking=True), draws)
        return augmented, OnHost(self._context(batch, draws.flips, epoch))

    def _draws(self, count: int) -> Draws:
        rank, world = self._processes.rank, self._processes.world
        whole = self._augmentation.draw(count * world, self._generator)
        mine = slice(rank * count, (rank + 1) * count)
        return Draws(whole.flips[mine], whole.factors[:, mine], whole.order)

    def _context(self, batch: Batch, flips: Tensor, epoch: int) -> StyleContext:
        original = torch.from_numpy(self._pool.original)[batch.index] if self._has_copies else None
        known = batch.known if self._has_unknown else None
        return StyleContext(batch.present, batch.domain, batch.index, flips, epoch, original, known)
