"""Algorithms that change the objective: CORAL, MIRO and Group DRO.

CORAL (Sun and Saenko, 2016) and MIRO (Cha et al., ECCV 2022) add a penalty on features, Group DRO (Sagawa et al., ICLR
2020) weighs the domains.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ldstyle.functional import covariance_distance, feature_likelihood, reweigh_domains
from ldstyle.functional._checks import at_least_single
from ldstyle.nn.backbones.head import Head
from ldstyle.nn.backbones.insertion import InsertionPoint
from ldstyle.nn.backbones.layout import capture
from ldstyle.runs.algorithms import CoralConfig, GroupDroConfig, MiroConfig
from ldstyle.runs.processes import Processes
from ldstyle.training.algorithms.base import Algorithm, Penalty
from ldstyle.types import StyleContext

FLOOR = 1e-5
"""Least variance of a channel of MIRO."""


class Coral(Algorithm):
    """Adds the weighted distance between the domains' pooled features to the loss.

    Args:
        config: Settings.
        head: Where the last feature map is.
    """

    def __init__(self, config: CoralConfig, head: Head) -> None:
        super().__init__()
        self.config, self._head = config, head

    @contextmanager
    def watch(self, backbone: nn.Module, images: Tensor) -> Iterator[Penalty]:
        """Compare the domains by the pooled last map, which a linear classifier reads."""
        point = self._head.point
        with capture(backbone, [point], images) as captured:
            yield lambda context: self._penalty(captured[point.name], context)

    def _penalty(self, feats: Tensor, context: StyleContext) -> Tensor:
        return self.config.weight * covariance_distance(at_least_single(feats).mean(dim=(2, 3)), context.domain)


class Miro(Algorithm):
    """Adds the weighted likelihood of the pretrained features, summed over the insertion points, to the loss.

    The frozen copy is made when this is built, before a checkpoint is loaded. It is no submodule, so that it is neither
    trained, nor saved, nor exported. Its BatchNorm normalises as that of the network does, in training by the batch:
    otherwise the two would differ at equal weights, and the penalty would train the network to undo that.

    Args:
        config: Settings.
        backbone: The plain backbone with its initial weights; it is copied.
        points: Where features are compared.
        device: Where the run computes.
    """

    lr_ratio: ClassVar[float] = 10.0

    def __init__(
        self, config: MiroConfig, backbone: nn.Module, points: Sequence[InsertionPoint], device: torch.device
    ) -> None:
        super().__init__()
        self.config, self._points = config, tuple(points)
        self._frozen = (copy.deepcopy(backbone).to(device).eval().requires_grad_(False),)  # hidden from the parameters
        for module in _batchnorms(self._frozen[0]):
            module.track_running_stats = False  # in training too, the copy stays as it is: checkpoints do not hold it
        start = torch.tensor(config.variance - FLOOR).expm1().log()  # the inverse of softplus
        self.raw_variances = nn.ParameterList(torch.full((point.channels,), float(start)) for point in points)

    @contextmanager
    def watch(self, backbone: nn.Module, images: Tensor) -> Iterator[Penalty]:
        """Compare the features of both networks for the same images; at a point, style follows the comparison."""
        for own, frozen in zip(_batchnorms(backbone), _batchnorms(self._frozen[0]), strict=True):
            frozen.train(own.training)
        with capture(backbone, self._points, images) as feats:
            yield lambda context: self._penalty(feats, images, context)

    def _penalty(self, feats: dict[str, Tensor], images: Tensor, _context: StyleContext) -> Tensor:
        with torch.no_grad(), capture(self._frozen[0], self._points, images) as frozen:
            self._frozen[0](images)
        likelihoods = [
            feature_likelihood(feats[point.name], frozen[point.name], raw_variance, floor=FLOOR)
            for point, raw_variance in zip(self._points, self.raw_variances, strict=True)
        ]
        return self.config.weight * torch.stack(likelihoods).sum()


def _batchnorms(network: nn.Module) -> Iterator[_BatchNorm]:
    return (module for module in network.modules() if isinstance(module, _BatchNorm))


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
