"""Random draws of one batch, made on the host before anything is applied.

Every draw is made for the whole global batch and each process keeps its rows, so that N processes draw what one would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ldstyle.config import (
    CSUConfig,
    CSULiteConfig,
    DSUConfig,
    EFDMixConfig,
    GlobalOperator,
    LabelDecoupledConfig,
    MixStyleConfig,
    StyleConfig,
)


class Mixing(NamedTuple):
    """Coefficients λ of the sample's own style, (B, L)."""

    lam: Tensor


class Perturbation(NamedTuple):
    """Standard normal ξ (B, L, C) and η (B, L) of Eq. 11."""

    noise: Tensor
    common: Tensor


class Uncertainty(NamedTuple):
    """Factor (B,) and standard normal draws (B, C) of CSU as published and of DSU, whose factor is one."""

    factor: Tensor
    noise_mean: Tensor
    noise_std: Tensor


Draw: TypeAlias = Mixing | Perturbation | Uncertainty


@dataclass(frozen=True)
class StyleDraws:
    """The random draws of one style module for one batch.

    Attributes:
        global_: Draw of the global path, with one style per image (L = 1).
        local: Draw of the per-label path.
        choice: Uniform numbers that choose entries of the style bank, (B, L).
    """

    global_: Draw
    local: Draw | None = None
    choice: Tensor | None = None


@dataclass(frozen=True)
class Rows:
    """The rows of the global batch that one process holds.

    Attributes:
        batch: Rows of this process.
        rank: Number of this process.
        world: Number of processes, all with as many rows.
    """

    batch: int
    rank: int = 0
    world: int = 1

    def take(self, draw: Callable[[tuple[int, ...]], np.ndarray], *shape: int) -> Tensor:
        """Draw for the global batch and keep this process's rows, float32 (batch, *shape)."""
        whole = draw((self.batch * self.world, *shape))[self.rank * self.batch : (self.rank + 1) * self.batch]
        return torch.from_numpy(np.ascontiguousarray(whole, dtype=np.float32))


def draw_style(
    style: StyleConfig, generator: np.random.Generator, rows: Rows, *, num_labels: int, channels: int
) -> StyleDraws:
    """Make all draws of one firing module for one batch."""
    global_ = _draw(style.operator, generator, rows, styles=1, channels=channels)
    if not isinstance(style, LabelDecoupledConfig):
        return StyleDraws(global_)
    local = _draw(style.operator, generator, rows, styles=num_labels if style.per_label else 1, channels=channels)
    if not style.per_label:
        local = type(local)(*(value.expand(-1, num_labels, *value.shape[2:]) for value in local))
    choice = rows.take(generator.random, num_labels) if style.bank_size else None
    return StyleDraws(global_, local, choice)


def _draw(operator: GlobalOperator, generator: np.random.Generator, rows: Rows, *, styles: int, channels: int) -> Draw:
    match operator:
        case MixStyleConfig(alpha=alpha) | EFDMixConfig(alpha=alpha):
            return Mixing(rows.take(lambda shape: generator.beta(alpha, alpha, shape), styles))
        case CSULiteConfig():
            noise = rows.take(generator.standard_normal, styles, channels)
            return Perturbation(noise, rows.take(generator.standard_normal, styles))
        case CSUConfig(alpha=alpha):
            factor = rows.take(lambda shape: generator.beta(alpha, alpha, shape))
        case DSUConfig():
            factor = torch.ones(rows.batch)
    noise_mean = rows.take(generator.standard_normal, channels)
    return Uncertainty(factor, noise_mean, rows.take(generator.standard_normal, channels))


def random_partners(priority: Tensor, original: Tensor | None) -> Tensor:
    """Pair the samples of a batch by a random permutation, in which no image is paired with its own copy.

    Args:
        priority: Distinct random numbers, (B,), whose order is the permutation.
        original: Number of the image that each sample was made from, (B,); ``None`` for a batch without copies.

    Returns:
        Partner of each sample, (B,) int64. A sample may be its own partner, and is where only copies are left.
    """
    partner = priority.argsort()
    if original is None:
        return partner
    itself = torch.arange(len(partner))
    copies = original[:, None] == original  # (B, B)
    copies[itself, itself] = False
    for sample in copies[itself, partner].nonzero().flatten().tolist():
        if not copies[sample, partner[sample]]:
            continue  # mended by an earlier exchange
        # Exchange partners with another sample, so that neither has a copy then; all other pairs stay.
        suitable = (~copies[sample, partner] & ~copies[itself, partner[sample]]).nonzero().flatten()
        if len(suitable):
            exchanged = torch.stack([itself[sample], suitable[0]])
            partner[exchanged] = partner[exchanged.flip(0)]
        else:
            partner[sample] = sample
    return partner
