"""Per-label operators on moments: interpolation and perturbation (Eqs. 9 and 11)."""

from __future__ import annotations

from torch import Tensor

from ldstyle.functional._checks import check_shape
from ldstyle.types import Moments


def mix_moments(own: Moments, other: Moments, lam: Tensor) -> Moments:
    """Interpolate moments: λ̃ own + (1 − λ̃) other (Eq. 9).

    Args:
        own: Moments of the samples, (B, L, C).
        other: Moments of their partners, (B, L, C).
        lam: Effective coefficients λ̃, (B, L). One returns ``own``, bit for bit.

    Returns:
        Mixed moments, (B, L, C).
    """
    check_shape(lam, tuple(own.mean.shape[:2]), name="lam", meaning="(B, L)")
    check_shape(other.mean, tuple(own.mean.shape), name="other.mean", meaning="(B, L, C)")
    share = (1 - lam).to(own.mean)[..., None]
    # Written as a step towards the other, which is exactly zero at λ̃ = 1 and for equal moments.
    return Moments(own.mean + share * (other.mean - own.mean), own.std + share * (other.std - own.std))


def perturb_moments(own: Moments, noise: Tensor, common: Tensor, *, strength: float, eps: float = 1e-6) -> Moments:
    """Shift moments by independent and channel-common noise (Eq. 11).

    ε_d = σ ξ and ε_c = σ̄ η with σ̄ the channel mean of σ: μ̃ = μ + β (ε_d + ε_c), σ̃ = max(σ + β |ε_d|, ε).

    Args:
        own: Moments of the samples, (B, L, C).
        noise: Standard normal ξ, (B, L, C).
        common: Standard normal η, (B, L); it moves all channels of a label together.
        strength: Strength β >= 0. Zero returns ``own``.
        eps: Lower bound of the new deviation.

    Returns:
        Perturbed moments, (B, L, C).
    """
    check_shape(noise, tuple(own.mean.shape), name="noise", meaning="(B, L, C)")
    check_shape(common, tuple(own.mean.shape[:2]), name="common", meaning="(B, L)")
    independent = own.std * noise.to(own.std)
    joint = own.std.mean(dim=-1, keepdim=True) * common.to(own.std)[..., None]
    mean = own.mean + strength * (independent + joint)
    return Moments(mean, (own.std + strength * independent.abs()).clamp(min=eps))
