"""Per-label decomposition and recomposition of a feature map (Eqs. 1 to 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from ldstyle.functional import _fast
from ldstyle.functional._checks import (
    at_least_single,
    check_attn,
    check_background,
    check_feats,
    check_maps,
    check_present,
    check_shape,
)
from ldstyle.types import Moments


def unit_mass(attn: Tensor, present: Tensor) -> Tensor:
    """Bring every present label's map to mass one: a_l / Σ_hw a_l (Eq. 1).

    A validity mask replaces the paper's ε, so the result does not depend on a map's scale.

    Args:
        attn: Non-negative maps, (B, L, H, W).
        present: Label presence, (B, L) bool.

    Returns:
        Maps of mass 1 in float32 (float64 stays), (B, L, H, W); all zero where the label is absent or the map has no
        mass.

    Example:
        >>> unit_mass(torch.tensor([[[[1.0, 3.0]]]]), torch.tensor([[True]]))
        tensor([[[[0.2500, 0.7500]]]])
    """
    batch, labels, _, _ = check_maps(attn)
    check_present(present, batch, labels)
    attn = at_least_single(attn)
    mass = attn.sum(dim=(2, 3), keepdim=True)  # (B, L, 1, 1)
    valid = present[:, :, None, None] & (mass > 0)
    # Both branches stay finite: a masked division would still send NaN gradients back.
    return torch.where(valid, attn, 0.0) / torch.where(valid, mass, 1.0)


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

    Example:
        >>> feats, attn = torch.tensor([[[[1.0, 3.0]]]]), torch.full((1, 1, 1, 2), 0.5)
        >>> label_moments(feats, attn, eps=0.0)
        Moments(mean=tensor([[[2.]]]), std=tensor([[[1.]]]))
    """
    check_attn(attn, feats)
    with torch.autocast(feats.device.type, enabled=False):
        flat = at_least_single(feats).flatten(2)  # (B, C, HW)
        centre = flat.mean(dim=2, keepdim=True)  # (B, C, 1)
        offset, square = _shifted_sums(flat, attn.flatten(2).to(flat.dtype), centre)  # (B, L, C)
        variance = (square - offset.square()).clamp(min=0)
        return Moments(offset + centre.transpose(1, 2), (variance + eps).sqrt())


@_fast.choose(_fast.shifted_sums)
def _shifted_sums(flat: Tensor, maps: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Σ ā (F − c) and Σ ā (F − c)², (B, L, C), for features (B, C, HW), maps (B, L, HW) and centres (B, C, 1)."""
    shifted = flat - centre
    return torch.einsum("bln,bcn->blc", maps, shifted), torch.einsum("bln,bcn->blc", maps, shifted.square())


def blend_weights(attn: Tensor, *, background: float) -> tuple[Tensor, Tensor]:
    """Divide every location between the labels and the identity (Eq. 3).

    Maps are read as densities D_l = H·W·a_l (a uniform map has density 1): weight_l = D_l / Z and residual = b / Z
    with Z = Σ_l D_l + b.

    Args:
        attn: Unit-mass maps, (B, L, H, W).
        background: The identity's density b >= 0.

    Returns:
        Weights (B, L, H, W) and residual (B, 1, H, W), which sum to one. Where Z = 0 the residual is one.

    Example:
        >>> weights, residual = blend_weights(torch.full((1, 1, 1, 2), 0.5), background=1.0)
        >>> weights.tolist(), residual.tolist()
        ([[[[0.5, 0.5]]]], [[[[0.5, 0.5]]]])
    """
    check_maps(attn)
    check_background(background)
    density = attn * (attn.shape[2] * attn.shape[3])
    total = density.sum(dim=1, keepdim=True) + background
    covered = total > 0
    safe = torch.where(covered, total, 1.0)
    return density / safe, torch.where(covered, background / safe, 1.0)


def recompose(
    feats: Tensor, attn: Tensor, old: Moments, new: Moments, *, background: float, max_gain: float = 10.0
) -> Tensor:
    """Restyle each label's region and blend the results by attention: F + Σ_l weight_l (T_l(F) − F) (Eq. 3).

    T_l(F) = σ̂_l (F − μ_l) / σ_l + μ̂_l. The residual keeps the identity; see ``docs/deviations.md``.

    Args:
        feats: Feature map, (B, C, H, W).
        attn: Unit-mass maps, (B, L, H, W); all-zero maps mark absent labels.
        old: Moments of ``feats``, (B, L, C).
        new: Perturbed moments, (B, L, C). ``new == old`` returns ``feats``, bit for bit.
        background: The identity's density b >= 0.
        max_gain: Bound on ``new.std / old.std`` and its inverse.

    Returns:
        Restyled feature map, (B, C, H, W).

    Example:
        >>> feats, attn = torch.tensor([[[[1.0, 3.0]]]]), torch.full((1, 1, 1, 2), 0.5)
        >>> old = label_moments(feats, attn, eps=0.0)  # mean 2, std 1
        >>> recompose(feats, attn, old, Moments(old.mean + 10, 2 * old.std), background=0.0)
        tensor([[[[10., 14.]]]])
    """
    check_attn(attn, feats)
    expected = (*attn.shape[:2], feats.shape[1])
    for name, value in (("old.mean", old.mean), ("old.std", old.std), ("new.mean", new.mean), ("new.std", new.std)):
        check_shape(value, expected, name=name, meaning="(B, L, C)")
    if not max_gain >= 1:  # NaN too
        raise ValueError(f"`max_gain` must be at least 1; got {max_gain}.")
    check_background(background)
    gain = (new.std / old.std).clamp(1 / max_gain, max_gain) - 1  # (B, L, C)
    shift = (new.mean - old.mean) - gain * old.mean  # (B, L, C)
    with torch.autocast(feats.device.type, enabled=False):
        # Where the mean exceeds the deviation, the terms of F + F · gain + shift nearly cancel: round their sum only.
        single = at_least_single(feats)
        mixed = _blend_affine(single, attn, gain.to(single.dtype), shift.to(single.dtype), background=background)
        return mixed.to(feats.dtype)


@_fast.choose(_fast.blend_affine)
def _blend_affine(feats: Tensor, attn: Tensor, gain: Tensor, shift: Tensor, *, background: float) -> Tensor:
    """F + F · Σ_l w_l gain_l + Σ_l w_l shift_l with the weights w of Eq. 3.

    Each branch of Eq. 3 is affine in F, so the coefficients are blended, not the branches: the (B, L, C, H, W) tensor
    would be 616 MB in float32 at ResNet-50 stage 1 with B = 32, L = 6.
    """
    weights = blend_weights(attn, background=background)[0].to(feats.dtype)
    scale, offset = (torch.einsum("blhw,blc->bchw", weights, value) for value in (gain, shift))
    return feats + feats * scale + offset


def relative_change(before: Tensor, after: Tensor) -> Tensor:
    """Measure the strength of an augmentation: ‖F̂ − F‖ / ‖F − mean F‖ with the mean of each channel.

    Args:
        before: Feature map F, (B, C, H, W).
        after: Restyled map F̂, (B, C, H, W).

    Returns:
        Ratio of each sample, (B,), without gradient; 0 for a constant map.

    Example:
        >>> relative_change(torch.tensor([[[[1.0, 3.0]]]]), torch.tensor([[[[2.0, 4.0]]]]))
        tensor([1.])
    """
    check_feats(before)
    check_shape(after, tuple(before.shape), name="after", meaning="that of `before`")
    with torch.no_grad(), torch.autocast(before.device.type, enabled=False):
        return _change_ratio(before.flatten(2), after.flatten(2))


@_fast.choose(_fast.change_ratio)
def _change_ratio(before: Tensor, after: Tensor) -> Tensor:
    """‖F̂ − F‖ / ‖F − mean F‖ of each sample, (B,), for maps (B, C, HW)."""
    before, after = at_least_single(before), at_least_single(after)
    mean = before.mean(dim=2, keepdim=True)
    spread = (before - mean).square().sum(dim=(1, 2))
    change = (after - before).square().sum(dim=(1, 2))
    return _fast.change_of_spread(change, spread, mean, before.shape[2])
