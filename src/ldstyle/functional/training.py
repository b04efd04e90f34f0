"""Losses of single labels, warm-up, blending of the two pathways, and the objective (Eqs. 12 and 13)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ldstyle.functional._checks import at_least_single, check_present, check_shape
from ldstyle.types import StyledOutput


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
    """Average losses of labels, (B, L), over the known ones, or by weights; ``None`` means that all are known."""
    if known is None:
        return losses.mean()
    mask = known.to(losses.device, non_blocking=True)
    if mask.dtype != torch.bool:
        return (losses * mask).sum() / mask.sum().clamp(min=1)
    return torch.where(mask, losses, 0.0).sum() / mask.sum().clamp(min=1)


def warmup_weight(epoch: int, warmup_epochs: int) -> float:
    """Return the weight of the per-label path: min(max((e − W) / W, 0), 1) (Eq. 12).

    Args:
        epoch: Epoch e, counted from 1.
        warmup_epochs: Warm-up length W. Zero means the per-label path from the start.

    Returns:
        0 in epochs 1..W, then a linear rise to 1 at epoch 2W.

    Example:
        >>> [warmup_weight(epoch, 5) for epoch in (5, 6, 10)]
        [0.0, 0.2, 1.0]
    """
    if epoch < 1:
        raise ValueError(f"`epoch` must count from 1; got {epoch}.")
    if warmup_epochs < 0:
        raise ValueError(f"`warmup_epochs` must not be negative; got {warmup_epochs}.")
    if warmup_epochs == 0:
        return 1.0
    return min(max((epoch - warmup_epochs) / warmup_epochs, 0.0), 1.0)


def blend_pathways(local: Tensor, global_: Tensor, weight: float | Tensor) -> Tensor:
    """Blend the two pathways: w F_local + (1 − w) F_global (Eq. 12).

    Args:
        local: Output of the per-label path, (B, C, H, W).
        global_: Output of the global path, (B, C, H, W).
        weight: Weight w of the per-label path in [0, 1]: one number, or one per sample, (B,).

    Returns:
        Blended map, (B, C, H, W). A weight of one or zero returns that path's values, bit for bit.

    Example:
        >>> blend_pathways(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), 0.25)
        tensor([[[[0.2500]]]])
    """
    check_shape(global_, tuple(local.shape), name="global_", meaning="that of `local`")
    if isinstance(weight, Tensor):
        check_shape(weight, (local.shape[0],), name="weight", meaning="(B,)")
        weight = weight.to(local.dtype)[:, None, None, None]
        return torch.where(weight == 1, local, torch.where(weight == 0, global_, torch.lerp(global_, local, weight)))
    if weight == 1:
        return local
    if weight == 0:
        return global_
    return torch.lerp(global_, local, weight)


def objective(
    output: StyledOutput,
    present: Tensor,
    *,
    diversity_weight: float,
    known: Tensor | None = None,
    grounding_weight: float = 0.0,
    classification: Tensor | None = None,
) -> Tensor:
    """Add the weighted diversity loss to the mean binary cross-entropy: BCE + w_div · L_div (Eq. 13).

    Args:
        output: Output of the styled network.
        present: Label presence, (B, L) bool.
        diversity_weight: Weight w_div of the diversity loss.
        known: True where the label is annotated, (B, L) bool; unknown labels take no part. ``None`` means all are.
        grounding_weight: Weight of the losses that ground learned attention, where there are any: ``output.grounding``
            and the cross-entropy of ``output.evidence``.
        classification: Classification loss that replaces the mean binary cross-entropy, a scalar.

    Returns:
        Scalar loss.

    Example:
        >>> output = StyledOutput(logits=torch.zeros(1, 2), diversity=torch.tensor(0.5))
        >>> round(objective(output, torch.tensor([[True, False]]), diversity_weight=0.2).item(), 4)  # log 2 + 0.1
        0.7931
    """
    batch, labels = output.logits.shape
    check_present(present, batch, labels)
    if known is not None:
        check_shape(known, tuple(present.shape), name="known", meaning="(B, L)")
    loss = _cross_entropy(output.logits, present, known) if classification is None else classification
    if diversity_weight != 0:
        loss = loss + diversity_weight * output.diversity
    if grounding_weight != 0 and output.evidence is not None:
        points = len(output.evidence)
        everywhere = None if known is None else known.repeat(points, 1)
        grounding = _cross_entropy(output.evidence.flatten(0, 1), present.repeat(points, 1), everywhere)
        loss = loss + grounding_weight * grounding
    if grounding_weight != 0 and output.grounding is not None:
        loss = loss + grounding_weight * output.grounding
    return loss


def _cross_entropy(logits: Tensor, present: Tensor, known: Tensor | None) -> Tensor:
    """Average the binary cross-entropy over the known labels."""
    logits = at_least_single(logits)
    truth = present.to(logits.device, logits.dtype, non_blocking=True)
    if known is None:
        return F.binary_cross_entropy_with_logits(logits, truth)
    return mean_over_known(F.binary_cross_entropy_with_logits(logits, truth, reduction="none"), known)
