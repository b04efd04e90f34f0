"""Per-label decomposition and recomposition of a feature map (Eqs. 2 and 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from ldstyle.functional._blend import BlendAffine, PoolShifted, densities, parts
from ldstyle.functional._checks import check_attn, check_feats, check_maps, check_shape
from ldstyle.functional._precision import at_least_single
from ldstyle.types import Moments


def label_moments(feats: Tensor, attn: Tensor, *, eps: float = 1e-6) -> Moments:
    """Pool mean μ_l = Σ ā_l F and deviation σ_l = (Σ ā_l F² − μ_l² + ε)^½ over each label's region (Eq. 2).

    Computed in float32 (float64 stays) and shifted by the channel mean before squaring: E[F²] − μ² would lose a tenth
    of σ where σ is a thousandth of μ.

    Args:
        feats: Feature map, (B, C, H, W).
        attn: Unit-mass maps, (B, L, H, W).
        eps: Added to the variance inside the root.

    Returns:
        Moments, (B, L, C). A label without mass has the channel mean and deviation √ε, both finite.
    """
    return pool_regions(feats, attn, eps=eps)[0]


def pool_regions(feats: Tensor, attn: Tensor, *, eps: float = 1e-6) -> tuple[Moments, Tensor]:
    """Return the moments of :func:`label_moments`, and the maps for :func:`recompose`, and nothing else, to use.

    Both then share one gradient as large as the maps instead of holding one each.
    """
    check_attn(attn, feats)
    with torch.autocast(feats.device.type, enabled=False):
        flat = at_least_single(feats).flatten(2)  # (B, C, HW)
        maps = attn.flatten(2).to(flat.dtype)  # (B, L, HW)
        centre = flat.mean(dim=2, keepdim=True)  # (B, C, 1)
        if flat.requires_grad and torch.is_grad_enabled():
            shifted = flat - centre
            offset, square = maps @ shifted.transpose(1, 2), maps @ shifted.square().transpose(1, 2)  # (B, L, C)
        else:
            offset, square, maps = PoolShifted.apply(flat, maps, centre)
            attn = maps.view(attn.shape) if attn.dtype == maps.dtype else attn
        variance = square - offset.square()
        return Moments(offset + centre.transpose(1, 2), (variance.clamp(min=0) + eps).sqrt()), attn


def blend_weights(attn: Tensor, *, background: float) -> tuple[Tensor, Tensor]:
    """Share every place out between the labels and the identity (Eq. 3).

    Maps are read as densities D_l = H·W·a_l (a uniform map has density 1): weight_l = D_l / Z and residual = b / Z
    with Z = Σ_l D_l + b.

    Args:
        attn: Unit-mass maps, (B, L, H, W).
        background: The identity's density b >= 0.

    Returns:
        Weights (B, L, H, W) and residual (B, 1, H, W), which sum to one. Where Z = 0 the residual is one.
    """
    check_maps(attn)
    density, total = densities(attn, background=background)
    covered = total > 0
    safe = torch.where(covered, total, 1.0)
    return density / safe, torch.where(covered, background / safe, 1.0)


def gain_and_shift(old: Moments, new: Moments, *, max_gain: float) -> tuple[Tensor, Tensor]:
    """Write T(F) − F = gain · F + shift for the change of moments ``old`` → ``new``; both are 0 where they agree."""
    if max_gain < 1:
        raise ValueError(f"`max_gain` must be at least 1; got {max_gain}.")
    gain = (new.std / old.std).clamp(1 / max_gain, max_gain) - 1
    return gain, (new.mean - old.mean) - gain * old.mean


def recompose(
    feats: Tensor, attn: Tensor, old: Moments, new: Moments, *, background: float, max_gain: float = 10.0
) -> Tensor:
    """Restyle each label's region and blend the results by attention: F + Σ_l weight_l (T_l(F) − F) (Eq. 3).

    T_l(F) = σ̂_l (F − μ_l) / σ_l + μ̂_l. The residual share keeps the identity; see ``docs/deviations.md``.

    Args:
        feats: Feature map, (B, C, H, W).
        attn: Unit-mass maps, (B, L, H, W); all-zero maps mark absent labels.
        old: Moments of ``feats``, (B, L, C).
        new: Perturbed moments, (B, L, C). ``new == old`` returns ``feats``, bit for bit.
        background: The identity's density b >= 0.
        max_gain: Bound on ``new.std / old.std`` and its inverse.

    Returns:
        Restyled feature map, (B, C, H, W).
    """
    check_attn(attn, feats)
    expected = (*attn.shape[:2], feats.shape[1])
    for name, value in (("old.mean", old.mean), ("old.std", old.std), ("new.mean", new.mean), ("new.std", new.std)):
        check_shape(value, expected, name=name, meaning="(B, L, C)")
    gain, shift = gain_and_shift(old, new, max_gain=max_gain)
    with torch.autocast(feats.device.type, enabled=False):
        mixed: Tensor = BlendAffine.apply(feats, attn, gain.to(feats.dtype), shift.to(feats.dtype), background)
        return mixed


def relative_change(before: Tensor, after: Tensor) -> Tensor:
    """Measure the strength of an augmentation: ‖F̂ − F‖ / ‖F − mean F‖ with the mean of each channel.

    Args:
        before: Feature map F, (B, C, H, W).
        after: Restyled map F̂, (B, C, H, W).

    Returns:
        Ratio of each sample, (B,), without gradient; 0 for a constant map.
    """
    check_feats(before)
    check_shape(after, tuple(before.shape), name="after", meaning="that of `before`")
    ratios = []
    with torch.no_grad(), torch.autocast(before.device.type, enabled=False):
        for part in parts(len(before)):
            old, new = at_least_single(before[part]).flatten(2), at_least_single(after[part]).flatten(2)
            spread = old.var(dim=2, correction=0).sum(dim=1) * old.shape[2]
            change = (new - old).square_().sum(dim=(1, 2))
            ratios.append(torch.where(spread > 0, change / torch.where(spread > 0, spread, 1.0), 0.0).sqrt())
    return torch.cat(ratios)
