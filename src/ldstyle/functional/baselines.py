"""Baselines from other publications: mixed images, aligned features, and weights of domains."""

from __future__ import annotations

from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from ldstyle.functional._checks import at_least_single, check_feats, check_partner, check_shape


def mix_samples(samples: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    """Mix each sample with its partner: λ x + (1 − λ) x_π (mixup; Zhang et al., ICLR 2018).

    Args:
        samples: Images or labels, (B, ...), floating-point.
        partner: Partner of each sample, (B,) int64.
        lam: Coefficient λ of the sample's own values, (B,).

    Returns:
        Mixed samples, (B, ...). λ = 1 and a self-partner return the sample's own values, bit for bit.

    Example:
        >>> mix_samples(torch.tensor([[0.0], [1.0]]), torch.tensor([1, 0]), torch.tensor([0.75, 1.0]))
        tensor([[0.2500],
                [1.0000]])
    """
    batch = len(samples)
    check_partner(partner, batch)
    check_shape(lam, (batch,), name="lam", meaning="(B,)")
    rest = (1 - lam).to(samples.device, samples.dtype, non_blocking=True).reshape(batch, *[1] * (samples.ndim - 1))
    return samples + rest * (samples[partner.to(samples.device, non_blocking=True)] - samples)


def mix_amplitudes(images: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    """Mix the Fourier amplitudes of images and keep their phases (amplitude mix of FACT; Xu et al., CVPR 2021).

    F̂ = [λ |F(x)| + (1 − λ) |F(x_π)|] exp(i arg F(x)), with F the 2-D Fourier transform of each channel.

    Args:
        images: Images, (B, C, H, W), floating-point.
        partner: Partner of each sample, (B,) int64.
        lam: Coefficient λ of the image's own amplitudes, (B,). The publication's λ weighs the partner's.

    Returns:
        Mixed images, (B, C, H, W). λ = 1 and a self-partner return the image's own values, bit for bit.

    Example:
        >>> images = torch.rand(2, 3, 8, 8)
        >>> mix_amplitudes(images, torch.tensor([1, 0]), torch.rand(2)).shape
        torch.Size([2, 3, 8, 8])
    """
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            f"`images` must be floating-point of shape (B, C, H, W); got {images.dtype} of shape {tuple(images.shape)}."
        )
    batch = len(images)
    check_partner(partner, batch)
    check_shape(lam, (batch,), name="lam", meaning="(B,)")
    kept = (lam == 1) | (partner == torch.arange(batch, device=partner.device)).to(lam.device)
    with torch.autocast(images.device.type, enabled=False):
        spectrum = torch.fft.rfft2(at_least_single(images))  # (B, C, H, W // 2 + 1)
        amplitude = mix_samples(spectrum.abs(), partner, lam)
        mixed = torch.fft.irfft2(torch.polar(amplitude, spectrum.angle()), s=images.shape[-2:])
    kept = kept.to(images.device, non_blocking=True)[:, None, None, None]
    return torch.where(kept, images, mixed.to(images.dtype))


def covariance_distance(pooled: Tensor, domain: Tensor) -> Tensor:
    """Compare mean and covariance of features between domains (Deep CORAL; Sun and Saenko, ECCV Workshops 2016).

    For every pair of domains ‖μ_a − μ_b‖² / C + ‖Σ_a − Σ_b‖²_F / C², averaged over the pairs; the means are compared
    too and the norms divided as in DomainBed.

    Args:
        pooled: Pooled features, (B, C).
        domain: Domain number of each sample, (B,) int64; the host is cheapest.

    Returns:
        Scalar. A domain with fewer than two samples has no covariance and takes no part; without a pair it is 0.

    Example:
        >>> pooled = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
        >>> covariance_distance(pooled, torch.tensor([0, 0, 1, 1])).item()
        0.0
    """
    if pooled.ndim != 2 or not pooled.is_floating_point():
        raise ValueError(
            f"`pooled` must be floating-point of shape (B, C); got {pooled.dtype} of shape {tuple(pooled.shape)}."
        )
    check_shape(domain, (len(pooled),), name="domain", meaning="(B,)")
    moments = []
    with torch.autocast(pooled.device.type, enabled=False):
        pooled = at_least_single(pooled)
        for number in domain.unique().tolist():
            rows = (domain == number).nonzero().flatten().to(pooled.device, non_blocking=True)
            if len(rows) > 1:
                mean = pooled[rows].mean(dim=0)
                centred = pooled[rows] - mean
                moments.append((mean, centred.T @ centred / (len(rows) - 1)))
        distances = [
            (one[0] - other[0]).square().mean() + (one[1] - other[1]).square().mean()
            for one, other in combinations(moments, 2)
        ]
        return torch.stack(distances).mean() if distances else pooled.new_zeros(())


def feature_likelihood(feats: Tensor, frozen: Tensor, raw_variance: Tensor, *, floor: float = 1e-5) -> Tensor:
    """Return the negative log-likelihood of pretrained features given the network's own (MIRO; Cha et al., ECCV 2022).

    The mean over all values of (log σ² + (f − f₀)² / σ²) / 2, with a variance σ² = softplus(b) + floor per channel.

    Args:
        feats: Features of the network in training, (B, C, H, W).
        frozen: Features of the frozen pretrained network, (B, C, H, W).
        raw_variance: Parameter b of each channel's variance, (C,).
        floor: Least variance.

    Returns:
        Scalar; constants are left out.

    Example:
        >>> feats = torch.zeros(2, 3, 4, 4)
        >>> feature_likelihood(feats, feats + 1, torch.zeros(3)) > feature_likelihood(feats, feats, torch.zeros(3))
        tensor(True)
    """
    _, channels, _, _ = check_feats(feats)
    check_shape(frozen, tuple(feats.shape), name="frozen", meaning="that of `feats`")
    check_shape(raw_variance, (channels,), name="raw_variance", meaning="(C,)")
    with torch.autocast(feats.device.type, enabled=False):
        variance = F.softplus(at_least_single(raw_variance)) + floor
        squares = (at_least_single(feats) - at_least_single(frozen)).square().mean(dim=(0, 2, 3))  # (C,)
        return (variance.log() + squares / variance).mean() / 2


def reweigh_domains(domain_weights: Tensor, losses: Tensor, *, step_size: float) -> Tensor:
    """Move weight to the domains of higher loss: q_d ∝ q_d exp(η ℓ_d) (group DRO; Sagawa et al., ICLR 2020).

    Args:
        domain_weights: Weights q of the domains, (S,), of sum one.
        losses: Loss ℓ of each domain, (S,); 0 for a domain that is not in the batch. It gets no gradient.
        step_size: Step size η; 0 returns the weights.

    Returns:
        New weights, (S,), of sum one.

    Example:
        >>> reweigh_domains(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 1.0]), step_size=0.1)
        tensor([0.5000, 0.5000])
    """
    check_shape(losses, tuple(domain_weights.shape), name="losses", meaning="(S,)")
    grown = domain_weights * (step_size * losses.detach().to(domain_weights.dtype)).exp()
    return grown / grown.sum()
