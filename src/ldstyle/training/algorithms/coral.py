"""CORAL: mean and covariance of pooled features aligned between domains (Sun and Saenko, 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ldstyle.functional import covariance_distance
from ldstyle.functional._checks import at_least_single
from ldstyle.nn.backbones.head import Head
from ldstyle.nn.backbones.layout import capture
from ldstyle.runs.algorithms import CoralConfig
from ldstyle.training.algorithms.base import Algorithm, Penalty
from ldstyle.types import StyleContext


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
