"""Memory-saving forms of the functions of this package, and the switch between them and the plain ones.

A fresh map costs more than its arithmetic, so these forms work through the batch in parts, keep little for the backward
pass and compute the rest again there. Values and gradients are those of the plain forms; second derivatives are not
provided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from ldstyle.functional._checks import at_least_single

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN = ContextVar("plain", default=False)


@contextmanager
def plain_forms() -> Iterator[None]:
    """Use the plain forms inside the block: second derivatives exist, memory grows with the number of labels.

    Example:
        >>> import ldstyle.functional as LF
        >>> feats = torch.rand(2, 3, 4, 4, requires_grad=True)
        >>> with LF.plain_forms():
        ...     mixed = LF.efdmix(feats, torch.tensor([1, 0]), torch.tensor([0.3, 0.3]))
        >>> (slopes,) = torch.autograd.grad(mixed.square().sum(), feats, create_graph=True)
        >>> slopes.requires_grad
        True
    """
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def choose(fast: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Pair a plain form with its memory-saving one, which runs except in `plain_forms` and under `torch.compile`."""

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(plain)
        def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling() or _PLAIN.get():
                return plain(*args, **kwargs)
            return fast(*args, **kwargs)

        return chosen

    return decorate


def single_backward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the ``backward`` of an autograd function that has no second derivative."""

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "`create_graph` must be False for the memory-saving forms of ldstyle.functional, which have no second "
                "derivative; got True. Run the forward pass inside `with ldstyle.functional.plain_forms():`. Published "
                "CSU has none in either form."
            )
        return backward(ctx, *grads)

    return checked


def parts(batch: int) -> Iterator[slice]:
    """Cut a batch into at most eight parts; an empty one is a part of itself."""
    step = max(1, -(-batch // 8))
    return (slice(start, start + step) for start in range(0, max(1, batch), step))


# Attention


def masked_softmax(logits: Tensor, present: Tensor) -> Tensor:
    """Softmax over the last dimension of (B, L, HW), zero for absent labels, as one tensor instead of two."""
    maps: Tensor = _MaskedSoftmax.apply(logits, present)
    return maps


class _MaskedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, present: Tensor) -> Tensor:
        maps = logits.softmax(dim=-1).mul_(present[:, :, None])
        ctx.save_for_backward(maps)
        return maps

    @staticmethod
    @single_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (maps,) = ctx.saved_tensors
        # The derivative of a softmax in terms of its result, so a map of zeros passes nothing on.
        return torch.ops.aten._softmax_backward_data(grad, maps, -1, maps.dtype), None


def similarities(flat: Tensor) -> Tensor:
    """Inner products ⟨a_l, a_k⟩ of maps (B, L, HW), (B, L, L)."""
    inner = flat @ flat.detach().transpose(1, 2)
    # Symmetric, so the other half of the gradient is added here, where it is small, not to another tensor of maps.
    return inner + inner.transpose(1, 2) - inner.detach()


# Decomposition and recomposition


def shifted_sums(flat: Tensor, maps: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Σ ā (F − c) and Σ ā (F − c)², (B, L, C), with the shifted map made in parts."""
    if flat.requires_grad and torch.is_grad_enabled():
        shifted = flat - centre
        return maps @ shifted.transpose(1, 2), maps @ shifted.square().transpose(1, 2)
    sums: tuple[Tensor, Tensor] = _ShiftedSums.apply(flat, maps, centre)
    return sums


class _ShiftedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, maps: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(flat, centre)
        offset, square = (maps.new_empty(*maps.shape[:2], flat.shape[1]) for _ in range(2))
        for part in parts(len(flat)):
            shifted = (flat[part] - centre[part]).transpose(1, 2)
            torch.bmm(maps[part], shifted, out=offset[part])
            torch.bmm(maps[part], shifted.square_(), out=square[part])
            del shifted  # before the next part makes its own
        return offset, square

    @staticmethod
    @single_backward
    def backward(ctx: Any, grad_offset: Tensor, grad_square: Tensor) -> tuple[None, Tensor, None]:
        flat, centre = ctx.saved_tensors
        grad_maps = grad_offset.new_empty(*grad_offset.shape[:2], flat.shape[2])
        for part in parts(len(flat)):
            shifted = flat[part] - centre[part]
            torch.bmm(grad_offset[part], shifted, out=grad_maps[part])
            grad_maps[part].baddbmm_(grad_square[part], shifted.square_())
            del shifted
        return None, grad_maps, None


def blend_affine(feats: Tensor, attn: Tensor, gain: Tensor, shift: Tensor, *, background: float) -> Tensor:
    """F + F · Σ_l w_l gain_l + Σ_l w_l shift_l with the weights w of Eq. 3; the result is the only new map."""
    mixed: Tensor = _BlendAffine.apply(feats, attn, gain, shift, background)
    return mixed


class _BlendAffine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, feats: Tensor, attn: Tensor, gain: Tensor, shift: Tensor, background: float) -> Tensor:
        ctx.save_for_backward(feats, attn, gain, shift)
        ctx.background = background
        mixed = _empty_like(feats)
        for part in parts(len(feats)):
            rows, target = _rows(feats[part]), _rows(mixed[part])
            weights = _weights(attn[part], background, feats.dtype)[0]
            _spread(weights, gain[part], out=target)
            torch.addcmul(rows, target, rows, out=target)
            _add_spread(target, weights, shift[part])
        return mixed

    @staticmethod
    @single_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        feats, attn, gain, shift = ctx.saved_tensors
        needs_feats, needs_attn, needs_gain, needs_shift, _ = ctx.needs_input_grad
        grad_attn = torch.empty_like(attn) if needs_attn else None
        grad_gain = torch.empty_like(gain) if needs_gain else None
        grad_shift = torch.empty_like(shift) if needs_shift else None
        for part in parts(len(feats)) if needs_attn or needs_gain or needs_shift else ():
            slopes = _rows(grad[part])  # (P, HW, C)
            weights, total = _weights(attn[part], ctx.background, feats.dtype)
            if grad_shift is not None:
                torch.bmm(weights, slopes, out=grad_shift[part])
            if grad_gain is not None or grad_attn is not None:
                products = slopes * _rows(feats[part])
                if grad_gain is not None:
                    torch.bmm(weights, products, out=grad_gain[part])
                if grad_attn is not None:
                    inner = torch.bmm(gain[part], products.transpose(1, 2)).baddbmm_(
                        shift[part], slopes.transpose(1, 2)
                    )
                    grad_attn[part] = _density_slopes(inner, weights, total).view(grad_attn[part].shape)
                    del inner
                del products
            del weights, total  # before the next part makes its own
        if not needs_feats:
            return None, grad_attn, grad_gain, grad_shift, None
        grad_feats = _empty_like(grad)  # last, when the products are gone
        for part in parts(len(feats)):
            slopes, target = _rows(grad[part]), _rows(grad_feats[part])
            _spread(_weights(attn[part], ctx.background, feats.dtype)[0], gain[part], out=target)
            torch.addcmul(slopes, target, slopes, out=target)
        return grad_feats, grad_attn, grad_gain, grad_shift, None


def _weights(attn: Tensor, background: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the weights of Eq. 3, (P, L, HW), and Z, (P, 1, HW), infinite where nothing covers a location."""
    density = attn * (attn.shape[2] * attn.shape[3])
    total = density.sum(dim=1, keepdim=True) + background
    total = torch.where(total > 0, total, torch.inf)
    return density.div_(total).flatten(2).to(dtype), total.flatten(2)


def _density_slopes(inner: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Pass slopes with respect to the weights w = D / Z on to the attention, D = HW · a, in place."""
    inner = inner.to(total.dtype)
    common = (inner * weights).sum(dim=1, keepdim=True)
    return inner.sub_(common).mul_(inner.shape[2] / total)


def _empty_like(feats: Tensor) -> Tensor:
    """Allocate a dense map in the memory order of ``feats``, whose locations form one dimension."""
    last = feats.stride(1) == 1 and feats.shape[1] > 1
    order = torch.channels_last if last else torch.contiguous_format
    return torch.empty(feats.shape, dtype=feats.dtype, device=feats.device, memory_format=order)


def _rows(feats: Tensor) -> Tensor:
    """View a map as (B, HW, C), in either memory format."""
    return feats.flatten(2).transpose(1, 2)


def _spread(weights: Tensor, coefficients: Tensor, *, out: Tensor) -> None:
    """Spread coefficients over locations into rows (P, HW, C)."""
    if out.stride(1) == 1:
        torch.bmm(coefficients.transpose(1, 2), weights, out=out.transpose(1, 2))
    else:
        torch.bmm(weights.transpose(1, 2), coefficients, out=out)


def _add_spread(rows: Tensor, weights: Tensor, coefficients: Tensor) -> None:
    """Add spread coefficients in place."""
    if rows.stride(1) == 1:
        rows.transpose(1, 2).baddbmm_(coefficients.transpose(1, 2), weights)
    else:
        rows.baddbmm_(weights.transpose(1, 2), coefficients)


def change_ratio(before: Tensor, after: Tensor) -> Tensor:
    """‖F̂ − F‖ / ‖F − mean F‖ of each sample, (B,), with the difference made in parts."""
    return torch.cat([_change_ratio(before[part], after[part]) for part in parts(len(before))])


def _change_ratio(before: Tensor, after: Tensor) -> Tensor:
    before, after = at_least_single(before), at_least_single(after)
    mean = before.mean(dim=2, keepdim=True)
    spread = (before - mean).square_().sum(dim=(1, 2))  # half the time of var(), whose sums are not vectorised
    change = (after - before).square_().sum(dim=(1, 2))
    return change_of_spread(change, spread, mean, before.shape[2])


def change_of_spread(change: Tensor, spread: Tensor, mean: Tensor, locations: int) -> Tensor:
    """√(change / spread), (B,); 0 where the spread is no more than the rounding of the means, (B, C, 1)."""
    rounding = (16 * torch.finfo(mean.dtype).eps * mean).square().sum(dim=(1, 2)) * locations
    varied = spread > rounding
    return torch.where(varied, change / torch.where(varied, spread, 1.0), 0.0).sqrt()
