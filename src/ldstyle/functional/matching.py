"""Label-wise exact distribution matching at the top-K places (Eq. 10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ldstyle.functional._checks import check_attn, check_feats, check_partner, check_shape
from ldstyle.functional.decomposition import blend_weights
from ldstyle.functional.sorting import sorted_values, stable_order


class _Group(NamedTuple):
    """Samples restyled for one label: they are distinct, so their changes never collide."""

    label: int
    rows: Tensor  # (P,) samples
    partners: Tensor  # (P,)
    places: Tensor  # (P, K) places of the samples, ascending
    partner_places: Tensor  # (P, K)
    share: Tensor  # (P,) 1 − λ̃


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
    """Mix the sorted values at each label's top-K places with the partner's, rank by rank (Eq. 10).

    v̂ = λ̃ v_i + (1 − λ̃) v_j on the values sorted per channel, put back in rank order, blended by attention as in
    Eq. 3. Straight-through: the gradient to ``feats`` is one, to the partner zero; ``attn`` learns through the blend.

    Args:
        feats: Feature map, (B, C, H, W).
        attn: Unit-mass maps, (B, L, H, W).
        partner: Partner of each sample, (B,) int64.
        lam: Effective coefficients λ̃, (B, L). Labels at one are untouched. Kept on the host, ``lam``, ``partner``
            and ``whole_map`` cost the device no synchronisation.
        top_ratio: Share ρ of the places that is matched, K = max(1, floor(ρ H W)).
        background: The identity's density b >= 0.
        whole_map: True where all H·W places are matched for a label, (B, L) bool.
        ranking: Maps that choose the top-K places where they differ from those that blend, (B, L, H, W): a sample that
            matches whole maps can still be a partner at its own places. By default ``attn``.

    Returns:
        Restyled feature map, (B, C, H, W).
    """
    check_attn(attn, feats)
    check_partner(partner, feats.shape[0])
    check_shape(lam, tuple(attn.shape[:2]), name="lam", meaning="(B, L)")
    if not 0 < top_ratio <= 1:
        raise ValueError(f"`top_ratio` must be in (0, 1]; got {top_ratio}.")
    if whole_map is not None:
        check_shape(whole_map, tuple(attn.shape[:2]), name="whole_map", meaning="(B, L)")
    weights, _ = blend_weights(attn, background=background)
    if ranking is not None:
        check_shape(ranking, tuple(attn.shape), name="ranking", meaning="that of `attn`")
    places = (attn if ranking is None else ranking).detach()
    groups = tuple(_plan(places, partner, lam, whole_map, top_ratio=top_ratio))
    mixed: Tensor = _BlendMatched.apply(feats, weights, groups)
    return mixed


def _plan(
    attn: Tensor, partner: Tensor, lam: Tensor, whole_map: Tensor | None, *, top_ratio: float
) -> Iterator[_Group]:
    """Group the pairs that change something by label, in parts that keep the working memory below one map."""
    batch, _, height, width = attn.shape
    places = height * width
    top = max(1, int(top_ratio * places + 1e-6))  # 0.29 · 100 is 28.999... in floating point
    whole = torch.zeros_like(lam, dtype=torch.bool) if whole_map is None else whole_map.to(lam.device)
    active = lam < 1
    # One ranking serves both sides of every pair; ascending places make the later sort stable by position.
    # Equal attention goes by place, on every device alike: a cached map may have fewer than K positive places.
    ranked = stable_order(-attn.flatten(2))[..., :top].sort(dim=-1).values  # (B, L, K)
    everywhere = torch.arange(places, device=attn.device)
    part = max(1, batch // 8)
    for full in (False, True):
        chosen = (active & (whole == full)).T.nonzero()  # (P, 2) label, sample: sorted by label
        for label in chosen[:, 0].unique_consecutive().tolist():
            for rows in chosen[chosen[:, 0] == label, 1].split(part):
                partners = partner.to(rows.device)[rows]
                share = (1 - lam[rows, label]).to(attn.device, non_blocking=True)
                own, theirs = (index.to(attn.device, non_blocking=True) for index in (rows, partners))
                if full:
                    own_places = partner_places = everywhere.expand(len(rows), places)
                else:
                    own_places, partner_places = ranked[own, label], ranked[theirs, label]
                yield _Group(label, own, theirs, own_places, partner_places, share)


def match_values(own: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Return the change (1 − λ)(v_j − v_i) of each value, with ranks matched along the last dimension.

    Args:
        own: Values of the samples, (P, C, K), without gradient.
        other: Values of the partners, (P, C, K), without gradient.
        share: 1 − λ, (P,).

    Returns:
        Change at the samples' places, (P, C, K).
    """
    order = stable_order(own)
    change = sorted_values(other).sub_(own.gather(-1, order)).mul_(share[:, None, None].to(own.dtype))
    return torch.empty_like(change).scatter_(-1, order, change)


def _changes(feats: Tensor, group: _Group) -> Tensor:
    """Return the unweighted change of a group's values, (P, C, K)."""
    channels = feats.shape[1]
    own = feats[group.rows].gather(2, group.places[:, None].expand(-1, channels, -1))
    other = feats[group.partners].gather(2, group.partner_places[:, None].expand(-1, channels, -1))
    return match_values(own, other, group.share)


class _BlendMatched(torch.autograd.Function):
    """F + Σ_l weight_l · change_l, where the changes are constants and only the weights learn.

    A function of its own keeps the memory independent of the number of labels: changes are kept for the backward pass
    while they fit into one map and are computed again otherwise.
    """

    @staticmethod
    def forward(ctx: Any, feats: Tensor, weights: Tensor, groups: tuple[_Group, ...]) -> Tensor:
        check_feats(feats)
        flat = feats.detach().flatten(2)  # (B, C, HW)
        mixed = flat.clone()
        kept: list[Tensor] | None = [] if ctx.needs_input_grad[1] else None
        room = flat.numel()
        for group in groups:
            change = _changes(flat, group)  # (P, C, K)
            room -= change.numel()
            if kept is not None:
                kept = [*kept, change] if room >= 0 else None
            share = weights[group.rows, group.label].flatten(1).gather(1, group.places)  # (P, K)
            field = flat.new_zeros(len(group.rows), *flat.shape[1:])
            field.scatter_(2, group.places[:, None].expand_as(change), (change * share[:, None]).to(flat.dtype))
            mixed.index_add_(0, group.rows, field)
        ctx.groups, ctx.kept, ctx.shape = groups, kept, weights.shape
        ctx.weights_dtype = weights.dtype
        ctx.save_for_backward(*(() if kept is not None or not ctx.needs_input_grad[1] else (feats,)))
        return mixed.view(feats.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if not ctx.needs_input_grad[1]:
            return grad, None, None
        flat = None if ctx.kept is not None else ctx.saved_tensors[0].detach().flatten(2)
        slopes = grad.flatten(2)
        grad_weights = torch.zeros(ctx.shape, dtype=ctx.weights_dtype, device=grad.device).flatten(2)
        for position, group in enumerate(ctx.groups):
            change = ctx.kept[position] if flat is None else _changes(flat, group)
            there = slopes[group.rows].gather(2, group.places[:, None].expand_as(change))
            inner = (there * change).sum(dim=1).to(ctx.weights_dtype)  # (P, K)
            grad_weights[group.rows, group.label] = torch.zeros_like(grad_weights[group.rows, group.label]).scatter_(
                1, group.places, inner
            )
        return grad, grad_weights.view(ctx.shape), None
