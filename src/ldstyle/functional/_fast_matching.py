"""Memory-saving forms of exact distribution matching, EFDMix on whole images and per label; see `_fast`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ldstyle.functional._checks import at_least_single
from ldstyle.functional._fast import parts, single_backward

_SIGN_FREE = 0x7FFFFFFF
_LOW_HALF = 0xFFFFFFFF


def stable_order(values: Tensor) -> Tensor:
    """Return the indices of ``torch.sort(values, stable=True)`` along the last dimension, without gradient.

    On the CPU, float32 values are packed with their position into one integer, which makes every key unique: NumPy's
    vectorized sort then gives the stable order about five times faster than `torch.sort`.
    """
    if values.device.type != "cpu" or values.dtype != torch.float32:
        return torch.sort(values, dim=-1, stable=True).indices
    # Adding zero turns -0.0 into 0.0: equal as floats, different as bit patterns.
    bits = (values + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & _SIGN_FREE)  # integers in the order of the floats
    keys = ordered.to(torch.int64).bitwise_left_shift_(32)
    keys |= torch.arange(values.shape[-1])
    keys.numpy().sort(axis=-1)
    return keys.bitwise_and_(_LOW_HALF)


def sorted_values(values: Tensor) -> Tensor:
    """Return the values in ascending order along the last dimension, without gradient."""
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        return torch.sort(values, dim=-1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=-1))


def match_values(own: Tensor, other: Tensor, step: Tensor) -> Tensor:
    """Return the change (1 − λ)(v_j − v_i) of values (P, C, K), ranks matched; ``step`` is 1 − λ, (P,)."""
    order = stable_order(own)
    change = sorted_values(other).sub_(own.gather(-1, order)).mul_(step[:, None, None].to(own.dtype))
    return torch.empty_like(change).scatter_(-1, order, change)


def matched_ranks(own: Tensor, other: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """Return the partner's rank at the quantile of each own rank, and which own ranks have one.

    Args:
        own: Number of own values n_i of each pair, (P,).
        other: Number of the partner's values n_j, (P,).
        ranks: Number of ranks K, at least n_i and n_j.

    Returns:
        ⌊(r + ½) n_j / n_i⌋ for each rank r, (P, K) int64, and whether r < n_i and n_j > 0, (P, K) bool.

    Example:
        >>> matched_ranks(torch.tensor([2]), torch.tensor([4]), 4)
        (tensor([[1, 3, 3, 3]]), tensor([[ True,  True, False, False]]))
    """
    rank = torch.arange(ranks, device=own.device).expand(len(own), -1)
    own, other = own[:, None], other[:, None]
    same = ((2 * rank + 1) * other).div(2 * own.clamp(min=1), rounding_mode="floor").clamp(max=ranks - 1)
    return same, (rank < own) & (other > 0)


def match_covered(own: Tensor, other: Tensor, step: Tensor, covered: Tensor, partner_covered: Tensor) -> Tensor:
    """`match_values` of the covered values alone, (P, K) bool each, at equal quantiles; zero elsewhere."""
    own = own.masked_fill(~covered[:, None], torch.inf)
    order = stable_order(own)
    rank, matched = matched_ranks(covered.sum(dim=1), partner_covered.sum(dim=1), own.shape[-1])
    others = sorted_values(other.masked_fill(~partner_covered[:, None], torch.inf))
    change = others.gather(-1, rank[:, None].expand_as(own)).sub_(own.gather(-1, order))
    change = change.mul_(step[:, None, None].to(own.dtype)).masked_fill_(~matched[:, None], 0.0)
    return torch.empty_like(change).scatter_(-1, order, change)


def efdmix(feats: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    """Mix the sorted values of each channel with the partner's; each sample is sorted once, for both of its roles."""
    mixed: Tensor = _MatchWhole.apply(feats, partner, (1 - lam).to(torch.promote_types(feats.dtype, torch.float32)))
    return mixed


class _MatchWhole(torch.autograd.Function):
    """F_i + (1 − λ_i)(values of F_j in the rank order of F_i − F_i), differentiable in F_i and F_j."""

    @staticmethod
    def forward(ctx: Any, feats: Tensor, partner: Tensor, step: Tensor) -> Tensor:
        flat = feats.detach().flatten(2)  # (B, C, HW)
        # In 16 bits, which number the locations of most maps, the orders take half a map until the backward pass.
        numbers = torch.int16 if flat.shape[-1] <= torch.iinfo(torch.int16).max else torch.int32
        orders = torch.empty(flat.shape, dtype=numbers, device=flat.device)
        for part in parts(len(flat)):
            orders[part] = stable_order(flat[part]).to(numbers)
        ctx.save_for_backward(orders, partner, step)
        result = torch.empty_like(feats)
        for part in parts(len(flat)):
            own, other = orders[part].long(), partner[part]
            # Half precision is rounded once, in the result.
            values, others = at_least_single(flat[part]), at_least_single(flat[other].gather(-1, orders[other].long()))
            change = others.sub_(values.gather(-1, own)).mul_(step[part, None, None])
            change = torch.empty_like(change).scatter_(-1, own, change)
            result[part] = values.add(change).view(result[part].shape)
        return result

    @staticmethod
    @single_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        orders, partner, step = ctx.saved_tensors
        slopes = grad.flatten(2)
        result = slopes.to(step.dtype, copy=True, memory_format=torch.contiguous_format)
        for part in parts(len(slopes)):
            own, theirs = orders[part].long(), orders[partner[part]].long()
            ranked = slopes[part].gather(-1, own) * step[part, None, None]
            result.index_add_(0, partner[part], torch.empty_like(ranked).scatter_(-1, theirs, ranked))
        return result.view(grad.shape).to(grad.dtype), None, None


class _Group(NamedTuple):
    """Samples restyled for one label: they are distinct, so their changes never collide."""

    label: int
    rows: Tensor  # (P,) samples
    partners: Tensor  # (P,)
    at: Tensor  # (P, K) locations of the samples, ascending
    partner_at: Tensor  # (P, K)
    step: Tensor  # (P,) 1 − λ̃
    covered: Tensor | None = None  # (P, K) bool, locations with attention; None if all have it
    partner_covered: Tensor | None = None  # (P, K) bool


def mix_topk(
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
    """Mix the sorted values at each label's top-K locations with the partner's, for the pairs that change alone."""
    groups = tuple(_plan(ranking, partner, lam, whole_map, top=top))
    mixed: Tensor = _BlendMatched.apply(feats, attn, background, groups)
    return mixed


def _plan(attn: Tensor, partner: Tensor, lam: Tensor, whole_map: Tensor | None, *, top: int) -> Iterator[_Group]:
    """Group the pairs that change something by label, in parts that keep the working memory below one map."""
    batch, locations = len(attn), attn.shape[2] * attn.shape[3]
    whole = torch.zeros_like(lam, dtype=torch.bool) if whole_map is None else whole_map.to(lam.device)
    active = lam < 1
    # One ranking serves both sides of every pair.
    ranked = torch.empty(*attn.shape[:2], top, dtype=torch.int32, device=attn.device)  # (B, L, K)
    covered = torch.empty_like(ranked, dtype=torch.bool)
    for some in parts(batch):  # the indices of a full sort are as large as a feature map where labels are many
        flat = attn[some].flatten(2)
        ranked[some] = stable_order(-flat)[..., :top].sort(dim=-1).values
        covered[some] = flat.gather(-1, ranked[some].long()) > 0
    everywhere = torch.arange(locations, device=attn.device)
    part = max(1, batch // 8)
    for full in (False, True):
        chosen = (active & (whole == full)).T.nonzero()  # (P, 2) label, sample: sorted by label
        for label in chosen[:, 0].unique_consecutive().tolist():
            for rows in chosen[chosen[:, 0] == label, 1].split(part):
                partners = partner.to(rows.device)[rows]
                step = (1 - lam[rows, label]).to(attn.device, non_blocking=True)
                own, theirs = (index.to(attn.device, non_blocking=True) for index in (rows, partners))
                if full:
                    at = everywhere.expand(len(rows), locations)
                    yield _Group(label, own, theirs, at, at, step)
                    continue
                group = _Group(label, own, theirs, ranked[own, label].long(), ranked[theirs, label].long(), step)
                sides = covered[own, label], covered[theirs, label]
                # Learned maps are positive everywhere. Asking a GPU whether this one is would wait for it.
                everything = attn.device.type == "cpu" and all(bool(side.all()) for side in sides)
                yield group if everything else group._replace(covered=sides[0], partner_covered=sides[1])


def _changes(feats: Tensor, group: _Group) -> Tensor:
    """Return the unweighted change of a group's values, (P, C, K), float32 (float64 stays)."""
    channels = feats.shape[1]
    own, other = (
        at_least_single(feats[rows].gather(2, at[:, None].expand(-1, channels, -1)))
        for rows, at in ((group.rows, group.at), (group.partners, group.partner_at))
    )
    if group.covered is None or group.partner_covered is None:
        return match_values(own, other, group.step)
    return match_covered(own, other, group.step, group.covered, group.partner_covered)


class _BlendMatched(torch.autograd.Function):
    """F + Σ_l w_l · change_l with the weights w of Eq. 3, where the changes are constants and only the weights learn.

    Changes are kept for the backward pass if they fit into one map and are computed again otherwise; the weights are
    computed again from the attention. So the memory does not depend on the number of labels.
    """

    @staticmethod
    def forward(ctx: Any, feats: Tensor, attn: Tensor, background: float, groups: tuple[_Group, ...]) -> Tensor:
        flat = feats.detach().flatten(2)  # (B, C, HW)
        mixed = flat.to(
            torch.promote_types(flat.dtype, torch.float32), copy=True
        )  # the sum over labels is rounded once
        scale = _scale(attn, background)
        learns = ctx.needs_input_grad[1]
        keep = learns and flat.shape[1] * sum(group.at.numel() for group in groups) <= flat.numel()
        kept = []
        for group in groups:
            change = _changes(flat, group)  # (P, C, K)
            if keep:
                kept.append(change)
            field = mixed.new_zeros(len(group.rows), *flat.shape[1:])
            change = (change * _group_weights(attn, scale, group)[:, None]).to(mixed.dtype)
            field.scatter_(2, group.at[:, None].expand_as(change), change)
            mixed.index_add_(0, group.rows, field)
        ctx.groups, ctx.kept, ctx.background = groups, kept if keep else None, background
        if learns:
            ctx.save_for_backward(attn, *(() if keep else (feats,)))
        return mixed.view(feats.shape).to(feats.dtype)

    @staticmethod
    @single_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        if not ctx.needs_input_grad[1]:
            return grad, None, None, None
        attn, *rest = ctx.saved_tensors
        flat = rest[0].detach().flatten(2) if rest else None
        slopes, scale = grad.flatten(2), _scale(attn, ctx.background)
        # Through w_l = D_l / Z every label's density takes part in every other's weight: `common` is that part.
        grad_attn, common = torch.zeros_like(attn).flatten(2), torch.zeros_like(scale)
        for position, group in enumerate(ctx.groups):
            change = ctx.kept[position] if flat is None else _changes(flat, group)
            there = slopes[group.rows].gather(2, group.at[:, None].expand_as(change))
            inner = (there * change).sum(dim=1).to(attn.dtype)  # (P, K)
            spread = torch.zeros_like(scale[group.rows])
            grad_attn[group.rows, group.label] = spread.scatter(1, group.at, inner)
            common.index_add_(0, group.rows, spread.scatter_(1, group.at, inner * _group_weights(attn, scale, group)))
        return grad, grad_attn.sub_(common[:, None]).mul_(scale[:, None]).view(attn.shape), None, None


def _scale(attn: Tensor, background: float) -> Tensor:
    """Return H·W / Z of Eq. 3, (B, HW), zero where nothing covers a location."""
    locations = attn.shape[2] * attn.shape[3]
    totals = [(attn[part] * locations).sum(dim=1, keepdim=True) + background for part in parts(len(attn))]
    total = torch.cat(totals).flatten(1)
    return locations / torch.where(total > 0, total, torch.inf)


def _group_weights(attn: Tensor, scale: Tensor, group: _Group) -> Tensor:
    """Return the weights of Eq. 3 at a group's locations, (P, K)."""
    return (attn[group.rows, group.label].flatten(1) * scale[group.rows]).gather(1, group.at)
