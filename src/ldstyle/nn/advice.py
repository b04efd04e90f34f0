"""Warnings of mistakes in a custom training loop, each at most once."""

from __future__ import annotations

import sys
import warnings

from ldstyle.config import EFDMixConfig, GlobalConfig, GradCamConfig, MixStyleConfig, StyleConfig
from ldstyle.nn.banks import GradCamBank
from ldstyle.types import StyleContext


class Advice:
    """Warns of batches that a style cannot act on as intended.

    Args:
        style: The method's settings.
    """

    def __init__(self, style: StyleConfig) -> None:
        self._style = style
        self._given: set[str] = set()

    def check(self, context: StyleContext, cams: GradCamBank | None, *, epoch: int | None) -> None:
        """Check a training batch.

        Args:
            context: The batch.
            cams: Cached maps, if the style uses any.
            epoch: The epoch as the caller gave it.
        """
        self._check_domains(context)
        self._check_maps(context, cams)
        if epoch is None and not isinstance(self._style, GlobalConfig) and self._style.warmup_epochs:
            self._warn(
                "epoch",
                f"`epoch` is not given, so the warm-up of {self._style.warmup_epochs} epochs never ends and the "
                "per-label path never runs. Call net(images, labels=labels, domain=domain, epoch=epoch), from 1.",
            )

    def _check_domains(self, context: StyleContext) -> None:
        style, domain = self._style, context.domain
        paired = isinstance(style.operator, MixStyleConfig | EFDMixConfig) and (
            not isinstance(style, GlobalConfig) or style.pairing == "crossdomain"
        )
        # On a GPU, looking would make the device wait.
        if paired and len(domain) > 1 and domain.device.type == "cpu" and bool((domain == domain[0]).all()):
            self._warn(
                "domain",
                f"All {len(domain)} samples of a batch are of domain {int(domain[0])}, so no sample has a partner in "
                "another domain and the per-label path leaves this batch unchanged. Mix the domains in every batch.",
            )

    def _check_maps(self, context: StyleContext, cams: GradCamBank | None) -> None:
        style = self._style
        if cams is None or cams.filled or isinstance(style, GlobalConfig) or context.epoch <= style.warmup_epochs:
            return
        way_out = "store the maps of the training set with net.cams.store(index, maps, keep)"
        if isinstance(style.attention, GradCamConfig):
            if style.attention.refresh == "online":
                return
            way_out = "call net.refresh(batches) whenever net.refresh_due(epoch) is true after an epoch"
        self._warn(
            "maps",
            f"Cached attention has no maps in epoch {context.epoch}, after the warm-up of {style.warmup_epochs}, "
            f"so the global operator runs instead: {way_out}.",
        )

    def _warn(self, topic: str, message: str) -> None:
        if topic not in self._given:
            self._given.add(topic)
            warnings.warn(message, UserWarning, stacklevel=_caller_level())


def _caller_level() -> int:
    """Return the stack level, as seen by the calling function, of the code outside torch and this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "ldstyle"):
        frame, level = frame.f_back, level + 1
    return level
