"""Label-wise exact distribution matching at the top-K places (Eq. 10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ldstyle.functional._blend import densities, parts
from ldstyle.functional._checks import check_attn, check_feats, check_partner, check_shape
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
    if ranking is not None:
        check_shape(ranking, tuple(attn.shape), name="ranking", meaning="that of `attn`")
    places = (attn if ranking is None else ranking).detach()
    groups = tuple(_plan(places, partner, lam, whole_map, top_ratio=top_ratio))
    mixed: Tensor = _BlendMatched.apply(feats, attn, background, groups)
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
    ranked = torch.empty(*attn.shape[:2], top, dtype=torch.int32, device=attn.device)  # (B, L, K)
    for some in parts(batch):  # the indices of a full sort are as large as a feature map where labels are many
        ranked[some] = stable_order(-attn[some].flatten(2))[..., :top].sort(dim=-1).values
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
                    own_places, partner_places = ranked[own, label].long(), ranked[theirs, label].long()
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
    """F + Σ_l w_l · change_l with the weights w of Eq. 3, where the changes are constants and only the weights learn.

    A function of its own keeps the memory independent of the number of labels: changes are kept for the backward pass
    if they fit into one map and are computed again otherwise, and the weights are computed again from the attention.
    """

    @staticmethod
    def forward(ctx: Any, feats: Tensor, attn: Tensor, background: float, groups: tuple[_Group, ...]) -> Tensor:
        check_feats(feats)
        flat = feats.detach().flatten(2)  # (B, C, HW)
        mixed = flat.clone()
        scale = _scale(attn, background)
        learns = ctx.needs_input_grad[1]
        keep = learns and flat.shape[1] * sum(group.places.numel() for group in groups) <= flat.numel()
        kept = []
        for group in groups:
            change = _changes(flat, group)  # (P, C, K)
            if keep:
                kept.append(change)
            field = flat.new_zeros(len(group.rows), *flat.shape[1:])
            change = (change * _weights(attn, scale, group)[:, None]).to(flat.dtype)
            field.scatter_(2, group.places[:, None].expand_as(change), change)
            mixed.index_add_(0, group.rows, field)
        ctx.groups, ctx.kept, ctx.background = groups, kept if keep else None, background
        if learns:
            ctx.save_for_backward(attn, *(() if keep else (feats,)))
        return mixed.view(feats.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        if not ctx.needs_input_grad[1]:
            return grad, None, None, None
        attn, *rest = ctx.saved_tensors
        flat = rest[0].detach().flatten(2) if rest else None
        slopes, scale = grad.flatten(2), _scale(attn, ctx.background)
        # Through w_l = D_l / Z every label's density takes part in every other's weight: `common` is that share.
        grad_attn, common = torch.zeros_like(attn).flatten(2), torch.zeros_like(scale)
        for position, group in enumerate(ctx.groups):
            change = ctx.kept[position] if flat is None else _changes(flat, group)
            there = slopes[group.rows].gather(2, group.places[:, None].expand_as(change))
            inner = (there * change).sum(dim=1).to(attn.dtype)  # (P, K)
            spread = torch.zeros_like(scale[group.rows])
            grad_attn[group.rows, group.label] = spread.scatter(1, group.places, inner)
            common.index_add_(0, group.rows, spread.scatter_(1, group.places, inner * _weights(attn, scale, group)))
        return grad, grad_attn.sub_(common[:, None]).mul_(scale[:, None]).view(attn.shape), None, None


def _scale(attn: Tensor, background: float) -> Tensor:
    """Return H·W / Z of Eq. 3, (B, HW), zero where nothing covers a place."""
    total = torch.cat([densities(attn[part], background=background)[1] for part in parts(len(attn))]).flatten(1)
    return (attn.shape[2] * attn.shape[3]) / torch.where(total > 0, total, torch.inf)


def _weights(attn: Tensor, scale: Tensor, group: _Group) -> Tensor:
    """Return the weights of Eq. 3 at a group's places, (P, K)."""
    return (attn[group.rows, group.label].flatten(1) * scale[group.rows]).gather(1, group.places)
