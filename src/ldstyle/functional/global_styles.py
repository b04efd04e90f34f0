"""The published global operators: one style per image (MixStyle, EFDMix, CSU, DSU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ldstyle.functional import _fast, _fast_matching
from ldstyle.functional._checks import at_least_single, check_feats, check_partner, check_shape
from ldstyle.functional.operators import matched_change, mix_moments
from ldstyle.types import Moments


def global_moments(feats: Tensor, *, eps: float = 1e-6) -> Moments:
    """Pool mean and deviation of each channel over the whole map: Eq. 2 with a uniform map.

    Args:
        feats: Feature map, (B, C, H, W).
        eps: Added to the (biased) variance inside the root.

    Returns:
        Moments of one label, (B, 1, C), float32 (float64 stays).
    """
    check_feats(feats)
    with torch.autocast(feats.device.type, enabled=False):
        flat = at_least_single(feats).flatten(2)
        variance, mean = torch.var_mean(flat, dim=2, correction=0)  # (B, C)
        return Moments(mean[:, None], (variance + eps).sqrt()[:, None])


def restyle(feats: Tensor, old: Moments, new: Moments) -> Tensor:
    """Renormalize the whole map from ``old`` to ``new``, (B, 1, C); equal moments return ``feats``, bit for bit."""
    gain = new.std / old.std  # (B, 1, C)
    shift = (new.mean - old.mean) - (gain - 1) * old.mean
    # As in `recompose`, both terms nearly cancel where the mean exceeds the deviation: round their sum only.
    single = at_least_single(feats)
    gain, shift = (value[:, 0, :, None, None].to(single.dtype) for value in (gain, shift))
    return torch.addcmul(shift, single, gain).to(feats.dtype)


def mixstyle(feats: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    """Interpolate global moments with the partner's (MixStyle; Eq. 9 with one style per image).

    Args:
        feats: Feature map, (B, C, H, W); its statistics carry no gradient.
        partner: Partner of each sample, (B,) int64.
        lam: Coefficient λ of the sample's own statistics, (B,).

    Returns:
        Restyled feature map, (B, C, H, W).

    Example:
        >>> feats = torch.tensor([[1.0, 3.0], [10.0, 14.0]]).view(2, 1, 1, 2)
        >>> mixstyle(feats, torch.tensor([1, 0]), torch.tensor([0.0, 1.0])).round().flatten(1).tolist()
        [[10.0, 14.0], [10.0, 14.0]]
    """
    batch, _, _, _ = check_feats(feats)
    check_partner(partner, batch)
    check_shape(lam, (batch,), name="lam", meaning="(B,)")
    own = global_moments(feats.detach())
    partner = partner.to(feats.device, non_blocking=True)
    other = Moments(own.mean[partner], own.std[partner])
    return restyle(feats, own, mix_moments(own, other, lam[:, None].to(feats.device, non_blocking=True)))


def efdmix(feats: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    """Mix the sorted values of each channel with the partner's (EFDMix; Eq. 10 over the whole map).

    The gradient is the published one: it passes straight through the sample's own values and, by 1 − λ, to the
    partner's value of the same rank.

    Args:
        feats: Feature map, (B, C, H, W).
        partner: Partner of each sample, (B,) int64.
        lam: Coefficient λ of the sample's own values, (B,).

    Returns:
        Restyled feature map, (B, C, H, W).

    Example:
        >>> feats = torch.tensor([[1.0, 2.0], [30.0, 10.0]]).view(2, 1, 1, 2)
        >>> efdmix(feats, torch.tensor([1, 0]), torch.tensor([0.0, 1.0])).flatten(1).tolist()
        [[10.0, 30.0], [30.0, 10.0]]
    """
    batch, _, _, _ = check_feats(feats)
    check_partner(partner, batch)
    check_shape(lam, (batch,), name="lam", meaning="(B,)")
    return _efdmix(feats, partner.to(feats.device, non_blocking=True), lam.to(feats.device, non_blocking=True))


@_fast.choose(_fast_matching.efdmix)
def _efdmix(feats: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    """Match all values of each channel by rank."""
    single = at_least_single(feats)  # rounded once, at the end
    flat = single.flatten(2)  # (B, C, HW)
    everywhere = torch.arange(flat.shape[2], device=feats.device).expand(len(flat), -1)
    return (single + matched_change(flat, everywhere, partner, (1 - lam).to(flat.dtype)).view_as(feats)).to(feats.dtype)


def csu(feats: Tensor, factor: Tensor, noise_mean: Tensor, noise_std: Tensor) -> Tensor:
    """Perturb global moments along the batch covariance of the statistics (CSU as published).

    With Σ = Xᵀ X / B the covariance of the centred statistics X (B, C): μ̃ = μ + f · ξ Σ^½, and σ̃ likewise. As
    published, the gradient passes through the covariance too.

    Args:
        feats: Feature map, (B, C, H, W).
        factor: Strength f per sample, Beta-distributed, (B,).
        noise_mean: Standard normal draws for the means, (B, C).
        noise_std: Standard normal draws for the deviations, (B, C).

    Returns:
        Restyled feature map, (B, C, H, W).

    Example:
        >>> feats, noise = torch.rand(2, 3, 4, 4), torch.ones(2, 3)
        >>> torch.equal(csu(feats, torch.zeros(2), noise, noise), feats)  # a factor of zero is the identity
        True
    """
    batch, channels, _, _ = check_feats(feats)
    check_shape(factor, (batch,), name="factor", meaning="(B,)")
    single = at_least_single(feats)  # so that the gradients of both its uses are added before they are rounded
    own = global_moments(single)
    scale = factor.to(own.mean)[:, None]
    moved = []
    for value, noise, name in ((own.mean, noise_mean, "noise_mean"), (own.std, noise_std, "noise_std")):
        check_shape(noise, (batch, channels), name=name, meaning="(B, C)")
        spread = _covariance_root_product(noise.to(own.mean), value[:, 0])
        moved.append(value + (scale * spread)[:, None])
    return restyle(single, own, Moments(*moved)).to(feats.dtype)


def dsu(feats: Tensor, noise_mean: Tensor, noise_std: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Perturb global moments by the batch deviation of the statistics (DSU).

    Args:
        feats: Feature map, (B, C, H, W).
        noise_mean: Standard normal draws for the means, (B, C).
        noise_std: Standard normal draws for the deviations, (B, C).
        eps: Added to the variance over the batch inside the root.

    Returns:
        Restyled feature map, (B, C, H, W). A batch of one has no deviation to draw from and stays as it is.

    Example:
        >>> feats, noise = torch.rand(2, 3, 4, 4), torch.zeros(2, 3)
        >>> torch.equal(dsu(feats, noise, noise), feats)
        True
    """
    batch, channels, _, _ = check_feats(feats)
    single = at_least_single(feats)
    own = global_moments(single)
    moved = []
    for value, noise, name in ((own.mean, noise_mean, "noise_mean"), (own.std, noise_std, "noise_std")):
        check_shape(noise, (batch, channels), name=name, meaning="(B, C)")
        if batch < 2:
            return feats
        deviation = (value.var(dim=0, keepdim=True) + eps).sqrt()  # (1, 1, C)
        moved.append(value + noise.to(value)[:, None] * deviation)
    return restyle(single, own, Moments(*moved)).to(feats.dtype)


def _covariance_root_product(noise: Tensor, statistics: Tensor) -> Tensor:
    """Multiply noise (B, C) by the symmetric root of the covariance of ``statistics`` (B, C).

    (XᵀX)^½ = Xᵀ (XXᵀ)^-½ X: the eigenproblem has the size of the batch, not of the channels.
    """
    centred = (statistics - statistics.mean(dim=0)) / statistics.shape[0] ** 0.5
    wide = centred.double()
    middle: Tensor = _InverseRoot.apply(wide @ wide.T)
    product: Tensor = noise.double() @ wide.T @ middle @ wide
    return product.to(noise.dtype)


class _InverseRoot(torch.autograd.Function):
    """G^-½ of a Gram matrix G = XXᵀ, zero in the directions that X does not span.

    The gradient is the divided difference of λ^-½, which needs no distinct eigenvalues, unlike that of `eigh`. Its
    entries outside the span are left out: behind Xᵀ · X they have no effect.
    """

    @staticmethod
    def forward(ctx: Any, gram: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(gram)
        # Directions the batch does not span (at least one, the mean) have eigenvalues of rounding size.
        spanned = values > values[-1:] * 1e-10  # a slice, which an empty batch has too
        inverse_root = torch.where(spanned, values, 1.0).rsqrt() * spanned
        ctx.save_for_backward(vectors, inverse_root)
        root: Tensor = vectors * inverse_root @ vectors.T
        return root

    @staticmethod
    @_fast.single_backward
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        vectors, inverse_root = ctx.saved_tensors
        # −1 / (√λ_i √λ_j (√λ_i + √λ_j)), written with p = λ^-½ so that p = 0 gives 0.
        product = inverse_root[:, None] * inverse_root[None]
        total = inverse_root[:, None] + inverse_root[None]
        slopes = -product.square() / torch.where(total > 0, total, 1.0)
        result: Tensor = vectors @ (vectors.T @ grad @ vectors * slopes) @ vectors.T
        return result
