"""Pooling and blending per label, without building one map per label or any map that is not a result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class BlendAffine(torch.autograd.Function):
    """F + F · Σ_l w_l gain_l + Σ_l w_l shift_l with the weights w of Eq. 3.

    Each branch of Eq. 3 is affine in F, so the coefficients are blended, not the branches: the (B, L, C, H, W) tensor
    would be 616 MB in float32 at ResNet-50 stage 1 with B = 32, L = 6. Fresh maps cost more than arithmetic, so the
    forward pass allocates its result alone and the backward pass one map; what is as large as the attention is
    worked through in parts of the batch, so the memory hardly depends on the number of labels.
    """

    @staticmethod
    def forward(ctx: Any, feats: Tensor, attn: Tensor, gain: Tensor, shift: Tensor, background: float) -> Tensor:
        """Blend for maps (B, L, H, W) and coefficients (B, L, C) of the feature map's dtype."""
        ctx.save_for_backward(feats, attn, gain, shift)
        ctx.background = background
        mixed = _empty_like(feats)
        for part in parts(len(feats)):
            rows, target = _rows(feats[part]), _rows(mixed[part])
            places = _places(attn[part], background, feats.dtype)[0]
            _field(places, gain[part], out=target)
            torch.addcmul(rows, target, rows, out=target)
            _add_field(target, places, shift[part])
        return mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of feature map, attention and coefficients."""
        feats, attn, gain, shift = ctx.saved_tensors
        needs_feats, needs_attn, needs_gain, needs_shift, _ = ctx.needs_input_grad
        grad_attn = torch.empty_like(attn) if needs_attn else None
        grad_gain = torch.empty_like(gain) if needs_gain else None
        grad_shift = torch.empty_like(shift) if needs_shift else None
        for part in parts(len(feats)) if needs_attn or needs_gain or needs_shift else ():
            slopes = _rows(grad[part])  # (P, HW, C)
            places, total = _places(attn[part], ctx.background, feats.dtype)
            if grad_shift is not None:
                torch.bmm(places, slopes, out=grad_shift[part])
            if grad_gain is not None or grad_attn is not None:
                products = slopes * _rows(feats[part])
                if grad_gain is not None:
                    torch.bmm(places, products, out=grad_gain[part])
                if grad_attn is not None:
                    inner = torch.bmm(gain[part], products.transpose(1, 2)).baddbmm_(
                        shift[part], slopes.transpose(1, 2)
                    )
                    grad_attn[part] = _density_slopes(inner, places, total).view(grad_attn[part].shape)
                    del inner
                del products
            del places, total  # before the next part makes its own
        if not needs_feats:
            return None, grad_attn, grad_gain, grad_shift, None
        grad_feats = _empty_like(grad)  # last, when the products are gone
        for part in parts(len(feats)):
            slopes, target = _rows(grad[part]), _rows(grad_feats[part])
            _field(_places(attn[part], ctx.background, feats.dtype)[0], gain[part], out=target)
            torch.addcmul(slopes, target, slopes, out=target)
        return grad_feats, grad_attn, grad_gain, grad_shift, None


class PoolShifted(torch.autograd.Function):
    """Σ ā (F − c) and Σ ā (F − c)² for a constant map F and centres c.

    The shifted map is made in parts of the batch, here and again in the backward pass: memory that was just used is
    ten times faster than a fresh map. The maps are handed on for the blending to use, whose gradient then arrives here
    and is added to in place: with many labels a second one would be a good part of a feature map. So nothing else may
    use them.
    """

    @staticmethod
    def forward(ctx: Any, flat: Tensor, attn: Tensor, centre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pool a map (B, C, HW) under maps (B, L, HW); centres are (B, C, 1), the results (B, L, C)."""
        ctx.save_for_backward(flat, centre)
        offset, square = (attn.new_empty(*attn.shape[:2], flat.shape[1]) for _ in range(2))
        for part in parts(len(flat)):
            shifted = (flat[part] - centre[part]).transpose(1, 2)
            torch.bmm(attn[part], shifted, out=offset[part])
            torch.bmm(attn[part], shifted.square_(), out=square[part])
            del shifted  # before the next part makes its own
        return offset, square, attn

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_offset: Tensor, grad_square: Tensor, grad_attn: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the attention."""
        flat, centre = ctx.saved_tensors
        for part in parts(len(flat)):
            shifted = flat[part] - centre[part]
            slopes = torch.bmm(grad_offset[part], shifted)
            grad_attn[part] += slopes.baddbmm_(grad_square[part], shifted.square_())
            del shifted, slopes
        return None, grad_attn, None


def parts(batch: int) -> Iterator[slice]:
    """Cut a batch into at most eight parts."""
    step = -(-batch // 8)
    return (slice(start, start + step) for start in range(0, batch, step))


def densities(attn: Tensor, *, background: float) -> tuple[Tensor, Tensor]:
    """Return D_l = H·W·a_l, (B, L, H, W), and Z = Σ_l D_l + b, (B, 1, H, W), of Eq. 3."""
    if background < 0:
        raise ValueError(f"`background` must not be negative; got {background}.")
    density = attn * (attn.shape[2] * attn.shape[3])
    return density, density.sum(dim=1, keepdim=True) + background


def _places(attn: Tensor, background: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the weights of Eq. 3, (P, L, HW), and Z, (P, 1, HW), infinite where nothing covers a place."""
    density, total = densities(attn, background=background)
    total = torch.where(total > 0, total, torch.inf)
    return density.div_(total).flatten(2).to(dtype), total.flatten(2)


def _density_slopes(inner: Tensor, places: Tensor, total: Tensor) -> Tensor:
    """Pass slopes with respect to the weights w = D / Z on to the attention, D = HW · a, in place."""
    inner = inner.to(total.dtype)
    common = (inner * places).sum(dim=1, keepdim=True)
    return inner.sub_(common).mul_(inner.shape[2] / total)


def _empty_like(feats: Tensor) -> Tensor:
    """Allocate a dense map in the memory order of ``feats``, whose places form one dimension."""
    last = feats.stride(1) == 1 and feats.shape[1] > 1
    order = torch.channels_last if last else torch.contiguous_format
    return torch.empty(feats.shape, dtype=feats.dtype, device=feats.device, memory_format=order)


def _rows(feats: Tensor) -> Tensor:
    """View a map as (B, HW, C), whichever way it lies in memory."""
    return feats.flatten(2).transpose(1, 2)


def _channels_first(rows: Tensor) -> bool:
    return rows.stride(1) == 1


def _field(places: Tensor, coefficients: Tensor, *, out: Tensor) -> None:
    """Spread coefficients over places into rows (P, HW, C)."""
    if _channels_first(out):
        torch.bmm(coefficients.transpose(1, 2), places, out=out.transpose(1, 2))
    else:
        torch.bmm(places.transpose(1, 2), coefficients, out=out)


def _add_field(rows: Tensor, places: Tensor, coefficients: Tensor) -> None:
    """Add spread coefficients in place."""
    if _channels_first(rows):
        rows.transpose(1, 2).baddbmm_(coefficients.transpose(1, 2), places)
    else:
        rows.baddbmm_(places.transpose(1, 2), coefficients)
