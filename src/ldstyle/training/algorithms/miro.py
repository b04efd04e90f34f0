"""MIRO: features kept close to those of the frozen pretrained network (Cha et al., ECCV 2022)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ldstyle.functional import feature_likelihood
from ldstyle.nn.backbones.insertion import InsertionPoint
from ldstyle.nn.backbones.layout import capture
from ldstyle.runs.algorithms import MiroConfig
from ldstyle.training.algorithms.base import Algorithm, Penalty
from ldstyle.types import StyleContext

FLOOR = 1e-5
"""Least variance of a channel."""


class Miro(Algorithm):
    """Adds the weighted likelihood of the pretrained features, summed over the insertion points, to the loss.

    The frozen copy is made when this is built, before a checkpoint is loaded. It is no submodule, so that it is neither
    trained, nor saved, nor exported.

    Args:
        config: Settings.
        backbone: The plain backbone with its initial weights; it is copied.
        points: Where features are compared.
        device: Where the run computes.
    """

    def __init__(
        self, config: MiroConfig, backbone: nn.Module, points: Sequence[InsertionPoint], device: torch.device
    ) -> None:
        super().__init__()
        self.config, self._points = config, tuple(points)
        self._frozen = (copy.deepcopy(backbone).to(device).eval().requires_grad_(False),)  # hidden from the parameters
        start = torch.tensor(config.variance - FLOOR).expm1().log()  # the inverse of softplus
        self.raw_variances = nn.ParameterList(torch.full((point.channels,), float(start)) for point in points)

    @contextmanager
    def watch(self, backbone: nn.Module, images: Tensor) -> Iterator[Penalty]:
        """Compare the features of both networks for the same images; at a point, style follows the comparison."""
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
