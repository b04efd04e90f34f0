"""Per-label operators: mixed moments, values matched by rank, perturbed moments (Eqs. 9 to 11)."""

from __future__ import annotations

import torch
from torch import Tensor

from ldstyle.functional import _fast, _fast_matching
from ldstyle.functional._checks import at_least_single, check_attn, check_background, check_partner, check_shape
from ldstyle.functional.decomposition import blend_weights
from ldstyle.types import Moments


def mix_moments(own: Moments, other: Moments, lam: Tensor) -> Moments:
    """Interpolate moments: λ̃ own + (1 − λ̃) other (Eq. 9).

    Args:
        own: Moments of the samples, (B, L, C).
        other: Moments of their partners, (B, L, C).
        lam: Effective coefficients λ̃, (B, L). One returns ``own``, bit for bit.

    Returns:
        Mixed moments, (B, L, C).

    Example:
        >>> own = Moments(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
        >>> other = Moments(torch.full((1, 1, 1), 4.0), torch.full((1, 1, 1), 3.0))
        >>> mix_moments(own, other, torch.tensor([[0.25]]))
        Moments(mean=tensor([[[3.]]]), std=tensor([[[2.5000]]]))
    """
    check_shape(lam, tuple(own.mean.shape[:2]), name="lam", meaning="(B, L)")
    check_shape(other.mean, tuple(own.mean.shape), name="other.mean", meaning="(B, L, C)")
    step = (1 - lam).to(own.mean)[..., None]
    # Written as a step towards the other, which is exactly zero at λ̃ = 1 and for equal moments.
    return Moments(own.mean + step * (other.mean - own.mean), own.std + step * (other.std - own.std))


def mix_topk_values(
    feats: Tensor,
    attn: Tensor,
    partner: Tensor,
    lam: Tensor,
    *,
    top_ratio: float,
    background: float,
    whole_map: Tensor | None = None,
    ranking: Tensor | None = None,
) -> Tensor:
    """Mix the sorted values at each label's top-K locations with the partner's, rank by rank (Eq. 10).

    v̂ = λ̃ v_i + (1 − λ̃) v_j on the values sorted per channel, put back in rank order, blended by attention as in
    Eq. 3. Straight-through: the gradient to ``feats`` is one, to the partner zero; ``attn`` learns through the blend.

    Args:
        feats: Feature map, (B, C, H, W).
        attn: Unit-mass maps, (B, L, H, W).
        partner: Partner of each sample, (B,) int64.
        lam: Effective coefficients λ̃, (B, L). Labels at one are untouched. Kept on the host, ``lam``, ``partner``
            and ``whole_map`` cost the device no synchronisation.
        top_ratio: Fraction ρ of the locations that is matched, K = max(1, floor(ρ H W)). Locations without attention
            never are: where a map has fewer than K others, these are matched with the partner's at equal quantiles.
        background: The identity's density b >= 0.
        whole_map: True where all H·W locations are matched for a label, (B, L) bool.
        ranking: Maps that choose the top-K locations where they differ from those that blend, (B, L, H, W): a sample
            that matches whole maps can still be a partner at its own locations. By default ``attn``.

    Returns:
        Restyled feature map, (B, C, H, W).

    Example:
        >>> feats = torch.tensor([[1.0, 2.0], [30.0, 10.0]]).view(2, 1, 1, 2)
        >>> attn, partner = torch.full((2, 1, 1, 2), 0.5), torch.tensor([1, 0])
        >>> lam = torch.tensor([[0.0], [1.0]])
        >>> mix_topk_values(feats, attn, partner, lam, top_ratio=1.0, background=0.0).flatten(1).tolist()
        [[10.0, 30.0], [30.0, 10.0]]
    """
    check_attn(attn, feats)
    check_partner(partner, feats.shape[0])
    check_shape(lam, tuple(attn.shape[:2]), name="lam", meaning="(B, L)")
    if not 0 < top_ratio <= 1:
        raise ValueError(f"`top_ratio` must be in (0, 1]; got {top_ratio}.")
    if whole_map is not None:
        check_shape(whole_map, tuple(attn.shape[:2]), name="whole_map", meaning="(B, L)")
    if ranking is not None:
        check_shape(ranking, tuple(attn.shape), name="ranking", meaning="that of `attn`")
    check_background(background)
    locations = attn.shape[2] * attn.shape[3]
    top = max(1, int(top_ratio * locations + 1e-6))  # 0.29 · 100 is 28.999... in floating point
    ranking = (attn if ranking is None else ranking).detach()
    return _mix_topk(feats, attn, ranking, partner, lam, whole_map, top=top, background=background)


@_fast.choose(_fast_matching.mix_topk)
def _mix_topk(
    feats: Tensor,
    attn: Tensor,
    ranking: Tensor,
    partner: Tensor,
    lam: Tensor,
    whole_map: Tensor | None,
    *,
    top: int,
    background: float,
) -> Tensor:
    """Add the weighted change of each label's top-K values."""
    values = at_least_single(feats).flatten(2)  # (B, C, HW); rounded once, at the end
    partner, step = partner.to(feats.device), (1 - lam).to(values)  # (B,), (B, L)
    flat = values.detach()
    weights = blend_weights(attn, background=background)[0].flatten(2)  # (B, L, HW)
    # Ties of attention go by position on every device.
    largest, ranked = (tensor[..., :top] for tensor in ranking.flatten(2).sort(dim=-1, descending=True, stable=True))
    covered = largest > 0  # (B, L, K): masks and cached maps may have fewer than K locations with attention
    everywhere = torch.arange(flat.shape[2], device=feats.device).expand(len(flat), -1)
    mixed = values
    for label in range(attn.shape[1]):
        change = matched_change(flat, ranked[:, label], partner, step[:, label], covered[:, label])
        if whole_map is not None:
            chosen = whole_map[:, label].to(feats.device)[:, None, None]
            change = torch.where(chosen, matched_change(flat, everywhere, partner, step[:, label]), change)
        mixed = mixed + (weights[:, label, None] * change).to(values.dtype)
    return mixed.view_as(feats).to(feats.dtype)


def matched_change(
    flat: Tensor, locations: Tensor, partner: Tensor, step: Tensor, covered: Tensor | None = None
) -> Tensor:
    """Return (1 − λ)(v_j − v_i) with the values of each pair matched by rank, zero outside the given locations.

    Args:
        flat: Features, (B, C, HW). The gradient reaches the partner's values alone.
        locations: Locations of each sample whose values are matched, (B, K).
        partner: Partner of each sample, (B,).
        step: 1 − λ, (B,).
        covered: Which of the locations count, (B, K) bool; by default all. Of n_i locations and the partner's n_j, rank
            r is matched with the partner's rank ⌊(r + ½) n_j / n_i⌋, the same quantile.

    Returns:
        Change, (B, C, HW).
    """
    covered = torch.ones_like(locations, dtype=torch.bool) if covered is None else covered
    # Ascending locations make the stable value sort go by position: post-ReLU maps are full of equal zeros.
    locations, order = locations.sort(dim=-1)
    at = locations[:, None].expand(-1, flat.shape[1], -1)  # (B, C, K)
    outside = ~covered.gather(1, order)[:, None]  # (B, 1, K)
    values, order = flat.gather(2, at).masked_fill(outside, torch.inf).sort(dim=-1, stable=True)
    rank, matched = _fast_matching.matched_ranks(covered.sum(dim=1), covered.sum(dim=1)[partner], locations.shape[1])
    others = values[partner].gather(2, rank[:, None].expand_as(values))
    # By rank; where nothing is matched, the difference of two infinities is left out.
    change = torch.where(matched[:, None], step[:, None, None] * (others - values.detach()), 0.0)
    change = torch.zeros_like(change).scatter(2, order, change)  # by location
    return torch.zeros_like(flat).scatter(2, at, change)


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

    Example:
        >>> own = Moments(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
        >>> perturb_moments(own, torch.full((1, 1, 1), 2.0), torch.tensor([[3.0]]), strength=0.5)
        Moments(mean=tensor([[[2.5000]]]), std=tensor([[[2.]]]))
    """
    check_shape(noise, tuple(own.mean.shape), name="noise", meaning="(B, L, C)")
    check_shape(common, tuple(own.mean.shape[:2]), name="common", meaning="(B, L)")
    independent = own.std * noise.to(own.std)
    joint = own.std.mean(dim=-1, keepdim=True) * common.to(own.std)[..., None]
    mean = own.mean + strength * (independent + joint)
    return Moments(mean, (own.std + strength * independent.abs()).clamp(min=eps))
