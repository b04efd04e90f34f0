"""ERM++: the head first, then all layers, and prediction by the running mean of the weights (Teterwak et al., 2025)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ldstyle.runs.algorithms import ErmPlusPlusConfig
from ldstyle.runs.backbone import backbone_parameters
from ldstyle.runs.processes import OnHost
from ldstyle.training.algorithms.base import Algorithm
from ldstyle.training.swad import Weights, include_weights
from ldstyle.types import StyleContext


class ErmPlusPlus(Algorithm):
    """Trains the head first and averages weights; BatchNorm's running statistics are averaged with them, as published.

    Args:
        config: Settings.
        net: The network.
        averages: Whether the weights are averaged here; dense averaging (SWAD) replaces it.
    """

    def __init__(self, config: ErmPlusPlusConfig, net: nn.Module, *, averages: bool) -> None:
        super().__init__()
        self.config, self._averages = config, averages
        self._frozen_first = tuple(backbone_parameters(net))
        self._mean: Weights = {}
        self._count = 0

    def backward(
        self, fabric: Fabric, model: nn.Module, images: Tensor, truth: OnHost[StyleContext], *, done: float
    ) -> dict[str, Tensor]:
        """Drop the gradient of the backbone in the first steps; the optimizer then leaves it alone."""
        scalars = super().backward(fabric, model, images, truth, done=done)
        if done < self.config.head_ratio:
            for parameter in self._frozen_first:
                parameter.grad = None
        return scalars

    @torch.no_grad()
    def after_step(self, net: nn.Module, *, done: float, settled: bool) -> None:
        """Add the weights to their running mean."""
        if not self._averages or not settled or done <= self.config.average_ratio:
            return
        current = _averaged(net)
        self._mean = {name: value.to(current[name].device) for name, value in self._mean.items()}
        self._mean = include_weights(self._mean, current, self._count)
        self._count += 1

    @contextmanager
    def predicting(self, net: nn.Module) -> Iterator[None]:
        """Give the network the mean of its weights, once there is one."""
        if not self._count:
            yield
            return
        current = _averaged(net)
        training = {name: value.detach().clone() for name, value in current.items()}
        _write(current, self._mean)
        try:
            yield
        finally:
            _write(current, training)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the running mean, for resuming."""
        return {"mean": {name: value.clone() for name, value in self._mean.items()}, "count": self._count}

    def set_extra_state(self, state: Any) -> None:
        """Continue with the running mean of a checkpoint."""
        self._mean, self._count = {name: value.clone() for name, value in state["mean"].items()}, state["count"]


def _averaged(net: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a network and the running statistics of its BatchNorm, by name."""
    named: dict[str, Tensor] = dict(net.named_parameters())
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm):
            statistics = module.named_buffers(prefix=name)
            named |= {key: buffer for key, buffer in statistics if buffer.is_floating_point()}
    return named


@torch.no_grad()
def _write(current: dict[str, Tensor], values: Weights) -> None:
    for name, value in values.items():
        current[name].copy_(value)
