"""SWAD: the average of all weights in a valley of the validation loss (Cha et al., NeurIPS 2021).

Training is cut into segments of equally many steps; the weights after every step of a segment are averaged, and the
loss at its end is its loss. The rule follows Algorithm 1 of the publication: the valley is contiguous and holds every
segment once. (The reference code starts up to ``n_tolerance - n_converge`` segments earlier and can count some twice.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import get_swa_multi_avg_fn

from ldstyle.nn.backbones.probe import evaluating

Weights: TypeAlias = dict[str, Tensor]

_running_mean = get_swa_multi_avg_fn()


class LossValley:
    """Decides from the losses alone which segments lie in the valley.

    The valley starts at the first segment whose loss is not undercut by the ``n_converge - 1`` after it. Their mean
    loss, raised by ``tolerance_ratio``, is the threshold. The valley ends before the first segment from which on
    ``n_tolerance`` losses in a row exceed it.

    Args:
        n_converge: Length of the window that detects the start.
        n_tolerance: Length of the window that detects the end.
        tolerance_ratio: How far above the mean loss at the start the threshold lies, as a fraction of it.
    """

    def __init__(self, *, n_converge: int = 3, n_tolerance: int = 6, tolerance_ratio: float = 0.3) -> None:
        for name, value in (("n_converge", n_converge), ("n_tolerance", n_tolerance)):
            if value < 1:
                raise ValueError(f"swad.{name} must be at least 1; got {value}.")
        if tolerance_ratio < 0:
            raise ValueError(f"swad.tolerance_ratio must not be negative; got {tolerance_ratio}.")
        self.n_converge, self.n_tolerance, self.tolerance_ratio = n_converge, n_tolerance, tolerance_ratio
        self.losses: list[float] = []
        self.start: int | None = None
        self.threshold = math.nan
        self.judged = 0
        self.ended = False

    @property
    def found(self) -> bool:
        """Whether a valley has started; :meth:`finish` may put the last segment in its place."""
        return self.start is not None and self.threshold < math.inf

    def update(self, loss: float) -> range:
        """Take the loss of the next segment and return the segments now known to lie in the valley.

        Each segment is returned at most once, in order. After the end nothing changes any more.
        """
        if not math.isfinite(loss):
            raise ValueError(f"`loss` must be finite; got {loss} for segment {len(self.losses)}.")
        if self.ended:
            return range(0)
        self.losses.append(loss)
        window = self.losses[-self.n_converge :]
        if self.start is None and len(window) == self.n_converge and window[0] == min(window):
            self.start = self.judged = len(self.losses) - self.n_converge
            self.threshold = math.fsum(window) / len(window) * (1 + self.tolerance_ratio)
        return self._judge(self.n_tolerance)

    def finish(self) -> range:
        """Return the remaining segments of the valley when training is over.

        The windows that detect the end are cut off at the last segment. If no valley has started, the last segment
        stands for it.
        """
        if not self.losses:
            raise ValueError("SWAD must have seen at least one validation loss; got none. Evaluate more often.")
        if self.start is None:
            self.start = self.judged = len(self.losses) - 1
            self.threshold = math.inf
        remaining = self._judge(1)
        self.ended = True
        return remaining

    def candidates(self) -> range:
        """Return the segments that may still turn out to lie in the valley."""
        if self.ended:
            return range(0)
        length = len(self.losses)
        first = max(0, length - max(1, self.n_converge - 1)) if self.start is None else self.judged
        return range(first, length)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers, for resuming."""
        names = ("losses", "start", "threshold", "judged", "ended")
        return {name: list(value) if isinstance(value := getattr(self, name), list) else value for name in names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        self.losses = list(state["losses"])
        self.start, self.threshold = state["start"], state["threshold"]
        self.judged, self.ended = state["judged"], state["ended"]

    def _judge(self, needed: int) -> range:
        """Judge all segments of the valley that are followed by enough losses, themselves included."""
        begin = self.judged
        while self.start is not None and not self.ended and self.judged + needed <= len(self.losses):
            if min(self.losses[self.judged : self.judged + self.n_tolerance]) > self.threshold:
                self.ended = True
            else:
                self.judged += 1
        return range(begin, self.judged)


class Swad:
    """Averages a network's parameters over the valley; see the module's text.

    Call :meth:`step` after every optimizer step, :meth:`close` after every validation and :meth:`write` in the end.

    Args:
        n_converge: See :class:`LossValley`.
        n_tolerance: See :class:`LossValley`.
        tolerance_ratio: See :class:`LossValley`.
    """

    def __init__(self, *, n_converge: int = 3, n_tolerance: int = 6, tolerance_ratio: float = 0.3) -> None:
        self.valley = LossValley(n_converge=n_converge, n_tolerance=n_tolerance, tolerance_ratio=tolerance_ratio)
        self.segment: Weights = {}
        self.steps = 0
        self.pending: dict[int, Weights] = {}
        self.average: Weights = {}
        self.segments = 0

    @property
    def ended(self) -> bool:
        """Whether the valley has ended, so that further training changes nothing."""
        return self.valley.ended

    @torch.no_grad()
    def step(self, backbone: nn.Module) -> None:
        """Add the parameters after a training step to the running segment."""
        if self.ended:
            return
        self.segment = include_weights(self.segment, dict(backbone.named_parameters()), self.steps)
        self.steps += 1

    def close(self, loss: float) -> None:
        """End the segment; ``loss`` is the mean over source domains of validation BCE, of the current weights."""
        if self.ended:
            return
        if not self.steps:
            raise ValueError("A SWAD segment must hold at least one step; got none. Call step() after every step.")
        # Waiting segments are on the host: with n_tolerance = 6 they would fill the device with six networks.
        self.pending[len(self.valley.losses)] = {name: value.cpu() for name, value in self.segment.items()}
        self.segment, self.steps = {}, 0
        self._take(self.valley.update(loss))

    @torch.no_grad()
    def write(self, backbone: nn.Module) -> int:
        """Write the average into a backbone's parameters.

        Steps after the last :meth:`close` take no part. BatchNorm's statistics are then those of other weights: call
        :func:`reestimate_batchnorm`.

        Returns:
            The number of segments averaged.
        """
        self._take(self.valley.finish())
        for name, parameter in backbone.named_parameters():
            parameter.copy_(self.average[name])
        return self.segments

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers and tensors, for resuming."""
        return {
            "valley": self.valley.state_dict(),
            "segment": dict(self.segment),
            "steps": self.steps,
            "pending": {segment: dict(weights) for segment, weights in self.pending.items()},
            "average": dict(self.average),
            "segments": self.segments,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken; its tensors are copied."""
        self.valley.load_state_dict(state["valley"])
        self.segment, self.steps = _copy(state["segment"]), state["steps"]
        self.pending = {segment: _copy(weights) for segment, weights in state["pending"].items()}
        self.average, self.segments = _copy(state["average"]), state["segments"]

    @torch.no_grad()
    def _take(self, segments: range) -> None:
        for segment in segments:
            self.average = include_weights(self.average, self.pending.pop(segment), self.segments)
            self.segments += 1
        kept = self.valley.candidates()
        self.pending = {segment: weights for segment, weights in self.pending.items() if segment in kept}


def reestimate_batchnorm(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace BatchNorm's running statistics by the plain average over batches.

    Only BatchNorm layers run in training mode, so dropout draws nothing and activations are those of inference. A
    plain backbone has no style modules: style is off.

    Args:
        network: Plain network that takes the batches. Modes and momenta are restored.
        batches: Images, (B, C, H, W). Not read if there is no BatchNorm.
    """
    layers = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    seen = 0
    with evaluating(network), torch.no_grad():
        try:
            for layer in layers:
                layer.train()
            for seen, images in enumerate(batches, start=1):
                if seen == 1:
                    _reset(layers)
                network(images)
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum
    if not seen:
        raise ValueError("`batches` must hold at least one batch of images; got none.")


def _reset(layers: Iterable[_BatchNorm]) -> None:
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average instead of an exponential one


def include_weights(average: Weights, weights: Mapping[str, Tensor], count: int) -> Weights:
    """Return the mean of ``count`` sets of weights and one more; the average is updated in place."""
    if not count:
        return {name: value.detach().clone() for name, value in weights.items()}
    current = [weights[name].detach() for name in average]
    _running_mean(list(average.values()), current, count)
    return average


def _copy(weights: Mapping[str, Tensor]) -> Weights:
    return {name: value.clone() for name, value in weights.items()}
