"""Per-label attention: learned maps, their diversity and grounding, and class activation maps (Eqs. 4 to 6)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ldstyle.functional import _fast
from ldstyle.functional._checks import (
    at_least_single,
    check_feats,
    check_maps,
    check_present,
    check_shape,
    check_temperature,
)


def spatial_softmax(logits: Tensor, present: Tensor, *, temperature: float) -> Tensor:
    """Turn logits into maps: y_l · softmax_hw(τ z_l) (Eq. 4).

    Args:
        logits: Attention logits z, (B, L, H, W).
        present: Label presence, (B, L) bool.
        temperature: Sharpness τ > 0, multiplied into the logits.

    Returns:
        Maps of mass 1 per present label in float32 (float64 stays), all zero for absent ones, (B, L, H, W).

    Example:
        >>> spatial_softmax(torch.zeros(1, 2, 1, 2), torch.tensor([[True, False]]), temperature=10.0).tolist()
        [[[[0.5, 0.5]], [[0.0, 0.0]]]]
    """
    batch, labels, _, _ = check_maps(logits, name="logits")
    check_present(present, batch, labels)
    check_temperature(temperature)
    return _masked_softmax((at_least_single(logits) * temperature).flatten(2), present).view(logits.shape)


@_fast.choose(_fast.masked_softmax)
def _masked_softmax(logits: Tensor, present: Tensor) -> Tensor:
    """Softmax over the last dimension of (B, L, HW), zero for absent labels."""
    return logits.softmax(dim=-1) * present[:, :, None]


def attention_diversity(attn: Tensor, present: Tensor) -> Tensor:
    """Average the cosine similarity between the maps of labels present together (Eq. 5).

    Args:
        attn: Maps, (B, L, H, W). A present label without mass is similar to nothing.
        present: Label presence, (B, L) bool.

    Returns:
        Scalar in [0, 1]: 1 for equal maps, 0 for disjoint ones. Samples with fewer than two labels contribute 0; the
        mean runs over all B samples.

    Example:
        >>> attention_diversity(torch.eye(2).view(1, 2, 1, 2), torch.tensor([[True, True]]))  # disjoint maps
        tensor(0.)
    """
    batch, labels, _, _ = check_maps(attn)
    check_present(present, batch, labels)
    flat = at_least_single(attn).flatten(2)  # (B, L, HW)
    with torch.autocast(attn.device.type, enabled=False):
        inner = _similarities(flat)  # (B, L, L)
    square = inner.diagonal(dim1=1, dim2=2)  # (B, L)
    # The root is taken of 1 where there is no mass, whose gradient would be infinite otherwise.
    norm = torch.where(square > 0, square, 1.0).sqrt()
    cosine = inner / norm[:, :, None] / norm[:, None, :]
    both = (present[:, :, None] & present[:, None, :]).triu(diagonal=1)
    pairs = both.sum(dim=(1, 2))
    per_sample = torch.where(both, cosine, 0.0).sum(dim=(1, 2)) / pairs.clamp(min=1)
    return per_sample.mean()


@_fast.choose(_fast.similarities)
def _similarities(flat: Tensor) -> Tensor:
    """Inner products ⟨a_l, a_k⟩ of maps (B, L, HW), (B, L, L)."""
    return torch.einsum("bln,bkn->blk", flat, flat)


def effective_locations(attn: Tensor) -> Tensor:
    """Count the locations that carry a map's mass: 1 / Σ_hw a².

    Args:
        attn: Unit-mass maps, (B, L, H, W).

    Returns:
        Number between 1 (all mass at one location) and H·W (a uniform map), (B, L); 0 for an all-zero map.

    Example:
        >>> effective_locations(torch.full((1, 1, 2, 2), 0.25))  # a uniform map
        tensor([[4.]])
    """
    check_maps(attn)
    square = torch.linalg.vector_norm(at_least_single(attn), dim=(2, 3)).square()  # (B, L)
    return torch.where(square > 0, 1 / torch.where(square > 0, square, 1.0), 0.0)


def threshold_maps(attn: Tensor, *, threshold: float) -> Tensor:
    """Remove the part of each map below a fraction of its maximum; `unit_mass` comes after.

    Args:
        attn: Non-negative maps, (B, L, H, W).
        threshold: Fraction in [0, 1); 0 returns the maps unchanged.

    Returns:
        Maps, (B, L, H, W).

    Example:
        >>> threshold_maps(torch.tensor([[[[1.0, 4.0]]]]), threshold=0.5)
        tensor([[[[0., 4.]]]])
    """
    check_maps(attn)
    if not 0 <= threshold < 1:
        raise ValueError(f"`threshold` must be in [0, 1); got {threshold}.")
    if threshold == 0:
        return attn
    return torch.where(attn >= threshold * attn.amax(dim=(2, 3), keepdim=True), attn, 0.0)


def attention_cross_entropy(logits: Tensor, target: Tensor, keep: Tensor, *, temperature: float) -> Tensor:
    """Average the cross-entropy −Σ_hw t_l log softmax_hw(τ z_l) between target maps and attention.

    Args:
        logits: Attention logits z, (B, L, H, W).
        target: Unit-mass target maps t, (B, L, H, W), without gradient.
        keep: True where a map is compared, (B, L) bool.
        temperature: Sharpness τ > 0 of Eq. 4.

    Returns:
        Scalar: the mean over all B·L entries, 0 for those that are not kept, so that equal parts of a batch average to
        the whole; divided by log HW, so that a uniform map scores one at every resolution.

    Example:
        >>> target = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 2, 2)
        >>> keep = torch.tensor([[True]])
        >>> round(attention_cross_entropy(torch.zeros(1, 1, 2, 2), target, keep, temperature=10.0).item(), 4)
        1.0
    """
    batch, labels, height, width = check_maps(logits, name="logits")
    check_shape(target, tuple(logits.shape), name="target", meaning="that of `logits`")
    check_shape(keep, (batch, labels), name="keep", meaning="(B, L)")
    check_temperature(temperature)
    scores = (at_least_single(logits) * temperature).flatten(2).log_softmax(dim=-1)  # (B, L, HW)
    entropy = -(target.to(scores.dtype).flatten(2) * scores).sum(dim=-1)  # (B, L)
    return torch.where(keep, entropy, 0.0).mean() / math.log(max(height * width, 2))


def pooled_logits(logits: Tensor, *, temperature: float) -> Tensor:
    """Pool attention logits into label logits: (1/τ)(logsumexp_hw τ z_l − log HW).

    A smooth maximum whose gradient with respect to z_l is the map of Eq. 4.

    Args:
        logits: Attention logits z, (B, L, H, W).
        temperature: Sharpness τ > 0 of Eq. 4.

    Returns:
        Label logits, (B, L).

    Example:
        >>> round(pooled_logits(torch.full((1, 1, 2, 2), 3.0), temperature=1.0).item(), 4)
        3.0
    """
    _, _, height, width = check_maps(logits, name="logits")
    check_temperature(temperature)
    pooled = (at_least_single(logits) * temperature).flatten(2).logsumexp(dim=-1)
    return (pooled - math.log(height * width)) / temperature


def class_activation_maps(feats: Tensor, head_weight: Tensor) -> Tensor:
    """Project the last feature map onto each label's classifier weights: Σ_c W_lc F_c (Eq. 6).

    Behind global average pooling and one linear layer the gradient of logit l is W_l / HW at every location, so the
    ReLU of this map divided by HW is Grad-CAM. The spatial mean of the map plus the bias is the logit.

    Args:
        feats: Last feature map, (B, C, H, W).
        head_weight: Weight of the linear classifier, (L, C).

    Returns:
        Raw maps in float32 (float64 stays), (B, L, H, W); negative values included.

    Example:
        >>> class_activation_maps(torch.ones(1, 2, 1, 2), torch.tensor([[1.0, -2.0]]))
        tensor([[[[-1., -1.]]]])
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


def resize_maps(attn: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize maps bilinearly to (H, W), over all locations where they shrink; `unit_mass` comes after.

    Args:
        attn: Maps, (B, L, h, w).
        size: Target (H, W).

    Returns:
        Maps, (B, L, H, W).

    Example:
        >>> resize_maps(torch.ones(1, 1, 2, 2), (4, 6)).shape
        torch.Size([1, 1, 4, 6])
    """
    check_maps(attn)
    if tuple(attn.shape[2:]) == tuple(size):
        return attn
    # Four neighbours alone would pass over a region smaller than a coarse grid.
    shrinks = size[0] < attn.shape[2] or size[1] < attn.shape[3]
    return F.interpolate(attn, size=size, mode="bilinear", align_corners=False, antialias=shrinks)


def flip_maps(attn: Tensor, flips: Tensor) -> Tensor:
    """Flip each sample's maps as its image was flipped; flipping twice is the identity.

    Args:
        attn: Maps, (B, L, H, W).
        flips: (horizontal, vertical) per sample, (B, 2) bool.

    Returns:
        Flipped maps, (B, L, H, W).

    Example:
        >>> flip_maps(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[True, False]]))
        tensor([[[[2., 1.]]]])
    """
    batch, _, _, _ = check_maps(attn)
    if flips.dtype != torch.bool:
        raise TypeError(f"`flips` must be bool (horizontal, vertical); got {flips.dtype}.")
    check_shape(flips, (batch, 2), name="flips", meaning="(B, 2)")
    attn = torch.where(flips[:, 0, None, None, None], attn.flip(-1), attn)
    return torch.where(flips[:, 1, None, None, None], attn.flip(-2), attn)
