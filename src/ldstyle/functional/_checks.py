"""Shape, type and precision rules of the functional core; none of them reads a tensor's values."""

from __future__ import annotations

import torch
from torch import Tensor


def check_feats(feats: Tensor) -> tuple[int, int, int, int]:
    """Return (B, C, H, W) of a feature map, or raise with the expected shape."""
    if feats.ndim != 4 or not feats.is_floating_point():
        raise ValueError(
            f"`feats` must be a floating-point map of shape (B, C, H, W); got {feats.dtype} of shape "
            f"{tuple(feats.shape)}."
        )
    batch, channels, height, width = feats.shape
    return batch, channels, height, width


def check_maps(attn: Tensor, *, name: str = "attn") -> tuple[int, int, int, int]:
    """Return (B, L, H, W) of a stack of maps, or raise with the expected shape."""
    if attn.ndim != 4 or not attn.is_floating_point():
        raise ValueError(
            f"`{name}` must be a floating-point tensor of shape (B, L, H, W); got {attn.dtype} of shape "
            f"{tuple(attn.shape)}."
        )
    batch, labels, height, width = attn.shape
    return batch, labels, height, width


def check_attn(attn: Tensor, feats: Tensor) -> None:
    """Check that maps have the locations of a feature map."""
    batch, _, height, width = check_feats(feats)
    _, labels, _, _ = check_maps(attn)
    expected = (batch, labels, height, width)
    if tuple(attn.shape) != expected:
        way_out = " Use resize_maps() first." if attn.shape[0] == batch else ""
        raise ValueError(
            f"`attn` must have shape (B, L, H, W) = {expected} to match `feats`; got {tuple(attn.shape)}.{way_out}"
        )


def check_present(present: Tensor, batch: int, labels: int | None = None) -> None:
    """Check a presence mask."""
    if present.dtype != torch.bool:
        raise TypeError(f"`present` must be bool; got {present.dtype}. Use labels == 1.")
    fits = present.ndim == 2 and present.shape[0] == batch and (labels is None or present.shape[1] == labels)
    if not fits:
        wanted = "L" if labels is None else labels
        raise ValueError(f"`present` must have shape (B, L) = ({batch}, {wanted}); got {tuple(present.shape)}.")


def check_shape(value: Tensor, expected: tuple[int, ...], *, name: str, meaning: str) -> None:
    """Check one tensor against the only shape it may have."""
    if tuple(value.shape) != expected:
        raise ValueError(f"`{name}` must have shape {meaning} = {expected}; got {tuple(value.shape)}.")


def check_partner(partner: Tensor, batch: int) -> None:
    """Check a partner index."""
    if partner.dtype != torch.int64:
        raise TypeError(f"`partner` must be int64; got {partner.dtype}. Use match_partners() or partner.long().")
    check_shape(partner, (batch,), name="partner", meaning="(B,)")


def check_background(background: float) -> None:
    """Check the identity's density."""
    if not background >= 0:  # NaN too
        raise ValueError(f"`background` must not be negative; got {background}.")


def check_temperature(temperature: float) -> None:
    """Check the sharpness of attention."""
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive; got {temperature}.")


def at_least_single(value: Tensor) -> Tensor:
    """Return the tensor in float32, or unchanged in float64: the precision of statistics and maps."""
    return value if value.dtype == torch.float64 else value.float()
