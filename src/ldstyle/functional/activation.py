"""Class activation maps without a backward pass (Eq. 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from ldstyle.functional._checks import check_feats
from ldstyle.functional._precision import at_least_single


def class_activation_maps(feats: Tensor, head_weight: Tensor) -> Tensor:
    """Project the last feature map onto each label's classifier weights: Σ_c W_lc F_c (Eq. 6).

    Behind global average pooling and one linear layer the gradient of logit l is W_l / HW at every place, so the ReLU
    of this map divided by HW is Grad-CAM; and its spatial mean plus the bias is the logit.

    Args:
        feats: Last feature map, (B, C, H, W).
        head_weight: Weight of the linear classifier, (L, C).

    Returns:
        Raw maps in float32 (float64 stays), (B, L, H, W); negative values included.
    """
    _, channels, height, width = check_feats(feats)
    if head_weight.ndim != 2 or head_weight.shape[1] != channels:
        raise ValueError(
            f"`head_weight` must have shape (L, C) with C = {channels} to match `feats`; got "
            f"{tuple(head_weight.shape)}."
        )
    with torch.autocast(feats.device.type, enabled=False):
        flat = at_least_single(feats).flatten(2)
        return (head_weight.to(flat.dtype) @ flat).view(-1, len(head_weight), height, width)
