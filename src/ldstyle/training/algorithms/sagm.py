"""SAGM: sharpness-aware gradient matching, by a second pass at perturbed weights (Wang et al., CVPR 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ldstyle.nn import StyledNet
from ldstyle.nn.banks import StyleBank
from ldstyle.runs.algorithms import SagmConfig
from ldstyle.runs.processes import OnHost
from ldstyle.training.algorithms.base import Algorithm
from ldstyle.types import StyleContext

EPS = 1e-12
"""Added to the norm of the gradient."""


class Sagm(Algorithm):
    """Averages the gradients at the weights θ and at θ + (ρ / ‖g‖ − α) g, with g the gradient at θ.

    The second pass makes the draws of the first and leaves no trace: weights, BatchNorm's running statistics, style
    banks and streams are afterwards those after the first.

    Args:
        config: Settings.
        net: The network.
    """

    def __init__(self, config: SagmConfig, net: nn.Module) -> None:
        super().__init__()
        self.config, self._net = config, (net,)  # no submodule: the model has it already

    def backward(
        self, fabric: Fabric, model: nn.Module, images: Tensor, truth: OnHost[StyleContext], *, done: float
    ) -> dict[str, Tensor]:
        """Pass the batch twice and leave the mean of both gradients; the scalars are those of the first pass."""
        before = _Traces(self._net[0])
        scalars = super().backward(fabric, model, images, truth, done=done)
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        first = [_taken_gradient(parameter) for parameter in parameters]
        with _perturbed(parameters, first, self.config), before.replayed():
            loss, _ = model(images, truth)
            fabric.backward(loss)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, first, strict=True):
                second = torch.zeros_like(gradient) if parameter.grad is None else parameter.grad
                parameter.grad = second.add_(gradient).div_(2)
        return scalars


def _taken_gradient(parameter: nn.Parameter) -> Tensor:
    gradient, parameter.grad = parameter.grad, None
    assert gradient is not None
    return gradient.detach().clone()


@contextmanager
@torch.no_grad()
def _perturbed(parameters: list[nn.Parameter], gradients: list[Tensor], config: SagmConfig) -> Iterator[None]:
    """Move the weights along the gradient inside; on exit they are as they were, bit for bit."""
    weights = [parameter.detach().clone() for parameter in parameters]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
    scale = config.radius / (norm + EPS) - config.alpha
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.add_(gradient * scale)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.copy_(weight)


class _Traces:
    """Side effects of a forward pass on a network: draws of its streams, styles in banks, running statistics."""

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._banks = [module for module in net.modules() if isinstance(module, StyleBank)]
        self._buffers = [
            buffer for module in net.modules() if isinstance(module, _BatchNorm) for buffer in module.buffers()
        ]
        self._state = self._take()

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Let a pass inside start where the first one did; on exit the network is as it was on entry."""
        after = self._take()
        self._set(self._state)
        try:
            yield
        finally:
            self._set(after)

    def _take(self) -> tuple[Any, ...]:
        streams = self._net.streams.state_dict() if isinstance(self._net, StyledNet) else None
        return streams, [bank.get_extra_state() for bank in self._banks], [buffer.clone() for buffer in self._buffers]

    def _set(self, state: tuple[Any, ...]) -> None:
        streams, banks, buffers = state
        if isinstance(self._net, StyledNet):
            self._net.streams.load_state_dict(streams)
        for bank, entries in zip(self._banks, banks, strict=True):
            bank.set_extra_state(entries)
        with torch.no_grad():
            for buffer, value in zip(self._buffers, buffers, strict=True):
                buffer.copy_(value)
