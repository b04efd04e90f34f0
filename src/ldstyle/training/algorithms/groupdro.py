"""Group DRO: domains weighed by their loss, the worst most (Sagawa et al., ICLR 2020)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ldstyle.functional import reweigh_domains
from ldstyle.runs.algorithms import GroupDroConfig
from ldstyle.runs.processes import Processes
from ldstyle.training.algorithms.base import Algorithm
from ldstyle.types import StyleContext


class GroupDro(Algorithm):
    """Weighs the mean classification loss of each domain; the weights follow the losses of the global batch.

    Args:
        config: Settings.
        num_domains: Number of source domains.
        processes: The processes of the run.

    Attributes:
        domain_weights: Weights of the domains, (S,), of sum one; saved with the run.
    """

    weighs_domains: ClassVar[bool] = True
    domain_weights: Tensor

    def __init__(self, config: GroupDroConfig, num_domains: int, processes: Processes) -> None:
        super().__init__()
        self.config, self._processes = config, processes
        self.register_buffer("domain_weights", torch.full((num_domains,), 1 / num_domains))

    def average(self, losses: Tensor, known: Tensor | None, context: StyleContext) -> Tensor:
        """Move weight to the domains of higher loss, then average the domains' losses by it."""
        mask = torch.ones_like(losses) if known is None else known.to(losses, non_blocking=True)
        member = F.one_hot(context.domain, len(self.domain_weights)).to(losses, non_blocking=True)  # (B, S)
        sums, counts = member.T @ (losses * mask).sum(dim=1), member.T @ mask.sum(dim=1)  # (S,)
        total, count = (self._processes.gather(value.detach()[None]).sum(dim=0) for value in (sums, counts))
        with torch.no_grad():
            means = total / count.clamp(min=1)
            new = reweigh_domains(self.domain_weights, means, step_size=self.config.step_size)
            self.domain_weights.copy_(new)
        # The gradients of several processes are averaged, so that each counts its part as many times as there are.
        return self._processes.world * (new * sums / count.clamp(min=1)).sum()
