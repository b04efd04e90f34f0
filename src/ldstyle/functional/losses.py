"""Losses of single labels: cross-entropy, and its focal and asymmetric forms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ldstyle.functional._checks import at_least_single, check_shape


def label_losses(
    logits: Tensor,
    labels: Tensor,
    *,
    positive_weight: Tensor | float = 1.0,
    negative_weight: float = 1.0,
    gamma_positive: float = 0.0,
    gamma_negative: float = 0.0,
    margin: float = 0.0,
) -> Tensor:
    """Compute each label's loss y w₊ (1 − p)^γ₊ (−log p) + (1 − y) w₋ p_m^γ₋ (−log(1 − p_m)), p_m = max(p − m, 0).

    Without focusing and margin it is the binary cross-entropy; with γ₊ = γ₋ the focal loss (Lin et al., ICCV 2017);
    with γ₊ < γ₋ and a margin the asymmetric loss (Ridnik et al., ICCV 2021). It is linear in the labels, so that the
    loss of a mixed label is the mixture of the losses.

    Args:
        logits: Logits, (B, L).
        labels: Label presence as numbers in [0, 1], (B, L).
        positive_weight: Weight w₊ of present labels: one number, or one per label, (L,).
        negative_weight: Weight w₋ of absent labels.
        gamma_positive: Focusing exponent γ₊ of present labels.
        gamma_negative: Focusing exponent γ₋ of absent labels.
        margin: Probability m up to which an absent label costs nothing.

    Returns:
        Loss of each label, (B, L).

    Example:
        >>> label_losses(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
        tensor([[0.6931, 0.6931]])
    """
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(
            f"`logits` must be floating-point of shape (B, L); got {logits.dtype} of shape {tuple(logits.shape)}."
        )
    check_shape(labels, tuple(logits.shape), name="labels", meaning="(B, L)")
    if isinstance(positive_weight, Tensor):
        check_shape(positive_weight, (logits.shape[1],), name="positive_weight", meaning="(L,)")
    with torch.autocast(logits.device.type, enabled=False):
        logits = at_least_single(logits)
        truth = labels.to(logits.device, logits.dtype, non_blocking=True)
        # Powers by their logarithm: the slope of a power below one is infinite at zero.
        present = -F.logsigmoid(logits) * (gamma_positive * F.logsigmoid(-logits)).exp()
        absent = _absent(logits, gamma_negative, margin)
        return truth * positive_weight * present + (1 - truth) * negative_weight * absent


def _absent(logits: Tensor, gamma: float, margin: float) -> Tensor:
    if margin == 0:
        return F.softplus(logits) * (gamma * F.logsigmoid(logits)).exp()
    shifted = logits.sigmoid() - margin
    free = shifted <= 0
    safe = shifted.masked_fill(free, 0.5)
    return (-torch.log1p(-safe) * (gamma * safe.log()).exp()).masked_fill(free, 0.0)


def mean_over_known(losses: Tensor, known: Tensor | None) -> Tensor:
    """Average losses of labels, (B, L), over the known ones; ``None`` means that all are."""
    if known is None:
        return losses.mean()
    mask = known.to(losses.device, non_blocking=True)
    return torch.where(mask, losses, 0.0).sum() / mask.sum().clamp(min=1)
