"""Algorithms that change the optimization: SAGM (Wang et al., CVPR 2023) and ERM++ (Teterwak et al., WACV 2025)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ldstyle.nn import StyledNet
from ldstyle.nn.backbones.probe import evaluating
from ldstyle.nn.banks import StyleBank
from ldstyle.runs.algorithms import ErmPlusPlusConfig, SagmConfig
from ldstyle.runs.backbone import backbone_parameters
from ldstyle.runs.processes import OnHost
from ldstyle.training.algorithms.base import Algorithm
from ldstyle.training.swad import Weights, include_weights
from ldstyle.types import StyleContext

EPS = 1e-12
"""Added to the norm of the gradient of SAGM."""


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


class ErmPlusPlus(Algorithm):
    """Trains the head first, and predicts with the running mean of the weights.

    After each step, a pass of the averaged network over the step's batch in training mode updates its own BatchNorm
    statistics. (The authors' code also averages those of the intermediate networks, which are too large: a variance is
    convex in the weights.)

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
        self._statistics: Weights = {}
        self._count = 0
        self._seen: tuple[Fabric, Tensor] | None = None

    def backward(
        self, fabric: Fabric, model: nn.Module, images: Tensor, truth: OnHost[StyleContext], *, done: float
    ) -> dict[str, Tensor]:
        """Drop the gradient of the backbone in the first steps; the optimizer then leaves it alone."""
        scalars = super().backward(fabric, model, images, truth, done=done)
        self._seen = fabric, images
        if done < self.config.head_ratio:
            for parameter in self._frozen_first:
                parameter.grad = None
        return scalars

    @torch.no_grad()
    def after_step(self, net: nn.Module, *, done: float, settled: bool) -> None:
        """Add the weights to their running mean, and update its BatchNorm statistics by the step's batch."""
        seen, self._seen = self._seen, None
        if not self._averages or not settled or done <= self.config.average_ratio:
            return
        current, buffers = dict(net.named_parameters()), _statistics(net)
        self._mean = {name: value.to(current[name].device) for name, value in self._mean.items()}
        self._mean = include_weights(self._mean, current, self._count)
        if not self._count:
            self._statistics = {name: buffer.clone() for name, buffer in buffers.items()}
        self._count += 1
        if seen is not None and buffers:
            fabric, images = seen
            backbone = net.backbone if isinstance(net, StyledNet) else net
            with self.predicting(net), evaluating(backbone), fabric.autocast():
                for module in backbone.modules():
                    if isinstance(module, _BatchNorm):
                        module.train()
                backbone(images)
                self._statistics = {name: buffer.clone() for name, buffer in buffers.items()}

    @contextmanager
    def predicting(self, net: nn.Module) -> Iterator[None]:
        """Give the network the mean of its weights, once there is one."""
        if not self._count:
            yield
            return
        current = {**dict(net.named_parameters()), **_statistics(net)}
        training = {name: value.detach().clone() for name, value in current.items()}
        _write(current, {**self._mean, **self._statistics})
        try:
            yield
        finally:
            _write(current, training)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the running mean, for resuming."""
        mean, statistics = (
            {name: value.clone() for name, value in values.items()} for values in (self._mean, self._statistics)
        )
        return {"mean": mean, "statistics": statistics, "count": self._count}

    def set_extra_state(self, state: Any) -> None:
        """Continue with the running mean of a checkpoint."""
        self._mean, self._statistics = (
            {name: value.clone() for name, value in state[part].items()} for part in ("mean", "statistics")
        )
        self._count = state["count"]


def _statistics(net: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of a network's BatchNorm, by name."""
    return {
        key: buffer
        for name, module in net.named_modules()
        if isinstance(module, _BatchNorm)
        for key, buffer in module.named_buffers(prefix=name)
    }


@torch.no_grad()
def _write(current: dict[str, Tensor], values: Weights) -> None:
    for name, value in values.items():
        current[name].copy_(value)
