"""A global style module: one style per image, as published."""

from __future__ import annotations

from torch import Tensor, nn

from ldstyle.config import (
    CSUConfig,
    CSULiteConfig,
    DSUConfig,
    EFDMixConfig,
    GlobalConfig,
    GlobalOperator,
    MixStyleConfig,
)
from ldstyle.functional import csu, dsu, efdmix, mixstyle, perturb_moments
from ldstyle.functional.global_styles import global_moments, restyle
from ldstyle.nn.draws import Draw, Mixing, Perturbation, StyleDraws, Uncertainty


def apply_global(operator: GlobalOperator, feats: Tensor, partner: Tensor, draw: Draw) -> Tensor:
    """Apply a global operator with given draws.

    Args:
        operator: Which operator, with its settings.
        feats: Feature map, (B, C, H, W).
        partner: Partner of each sample, (B,) int64.
        draw: The operator's draws.

    Returns:
        Restyled map, (B, C, H, W).
    """
    match operator, draw:
        case MixStyleConfig(), Mixing(lam):
            return mixstyle(feats, partner, lam[:, 0])
        case EFDMixConfig(), Mixing(lam):
            return efdmix(feats, partner, lam[:, 0])
        case CSULiteConfig(strength=strength), Perturbation(noise, common):
            own = global_moments(feats.detach())
            return restyle(feats, own, perturb_moments(own, *_on(feats, noise, common), strength=strength))
        case CSUConfig(), Uncertainty(factor, noise_mean, noise_std):
            return csu(feats, *_on(feats, factor, noise_mean, noise_std))
        case DSUConfig(), Uncertainty(_, noise_mean, noise_std):
            return dsu(feats, *_on(feats, noise_mean, noise_std))
        case _:
            raise TypeError(f"{type(draw).__name__} draws do not belong to {type(operator).__name__}.")


class GlobalStyle(nn.Module):
    """Mix or perturb the statistics of whole images; the identity outside training.

    Args:
        config: The method's settings.
    """

    def __init__(self, config: GlobalConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, feats: Tensor, partner: Tensor, draws: StyleDraws) -> Tensor:
        """Restyle a map (B, C, H, W) towards each sample's partner (B,) with given draws."""
        return apply_global(self.config.operator, feats, partner, draws.global_) if self.training else feats

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.config.operator}, gate_prob={self.config.gate_prob:g}, pairing={self.config.pairing!r}"


def _on(feats: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    return tuple(value.to(feats.device, non_blocking=True) for value in values)
