"""Class activation maps of a whole network, for the map bank and for explanations (Eq. 6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ldstyle.functional import class_activation_maps, resize_maps
from ldstyle.nn.backbones.head import Head, LinearHead, OpaqueHead
from ldstyle.nn.backbones.insertion import InsertionPoint
from ldstyle.nn.backbones.layout import capture, logits_of, visiting
from ldstyle.nn.backbones.probe import REFUSALS, refusal, undisturbed
from ldstyle.nn.banks import GradCamBank

CORRECT = 0.5
"""A present label counts as found when its probability reaches this."""

_FLIPS: tuple[tuple[int, ...], ...] = ((), (-1,), (-2,), (-2, -1))


def activation_maps(backbone: nn.Module, head: Head, images: Tensor) -> tuple[Tensor, Tensor]:
    """Compute raw maps of all labels and the logits, without touching weights, buffers or ``.grad``.

    Args:
        backbone: Network, in the mode it should run in.
        head: How its classifier reads the last map.
        images: Images, (B, 3, H, W).

    Returns:
        Raw maps (B, L, h, w), negative values included, and logits (B, L), both without gradient.
    """
    match head:
        case LinearHead():
            with torch.no_grad(), capture(backbone, [head.point], images) as captured:
                logits = logits_of(backbone(images))
            return linear_maps(backbone, head, captured[head.point.name]), logits
        case OpaqueHead():
            return _gradient_maps(backbone, head, images)


def linear_maps(backbone: nn.Module, head: LinearHead, feats: Tensor) -> Tensor:
    """Compute raw maps from the pooled map alone, (B, L, h, w), without gradient."""
    return class_activation_maps(feats.detach(), classifier_weight(backbone, head))


def linear_logits(backbone: nn.Module, head: LinearHead, maps: Tensor) -> Tensor:
    """Return the logits of raw maps, (B, L): their means plus the bias, so without the dropout of the pass."""
    bias = getattr(backbone.get_submodule(head.classifier), "bias", None)
    logits = maps.mean(dim=(2, 3))
    return logits + bias.detach().float() if isinstance(bias, Tensor) else logits


def classifier_weight(backbone: nn.Module, head: LinearHead) -> Tensor:
    """Return the weight of the linear classifier, (L, C), detached."""
    weight: Tensor = backbone.get_submodule(head.classifier).weight  # type: ignore[assignment]
    return weight.detach().flatten(1)


def averaged_maps(
    backbone: nn.Module, head: Head, images: Tensor, *, flips: bool = False, scales: Sequence[float] = (1.0,)
) -> tuple[Tensor, Tensor]:
    """Average raw maps and logits over views of the images: their four flips, several sizes, or both.

    Args:
        backbone: Network, in the mode it should run in.
        head: How its classifier reads the last map.
        images: Images, (B, 3, H, W).
        flips: Whether to take all four flips.
        scales: Factors of the image size. Maps of several are resized to the largest.

    Returns:
        Raw maps (B, L, h, w) and logits (B, L), both without gradient.
    """
    views = [dims for dims in _FLIPS if flips or not dims]
    total: Tensor | None = None
    logits: Tensor | None = None
    for scale in sorted(scales, reverse=True):  # the largest first, whose maps set the size
        scaled = images
        if scale != 1:
            size = _scaled(images.shape[2:], scale)
            scaled = F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=True)
        for dims in views:
            maps, scores = activation_maps(backbone, head, scaled.flip(dims) if dims else scaled)
            maps = maps.flip(dims) if dims else maps
            total = maps if total is None else total + resize_maps(maps, (total.shape[2], total.shape[3]))
            logits = scores if logits is None else logits + scores
    assert total is not None
    assert logits is not None
    count = len(views) * len(scales)
    return total / count, logits / count


def refresh_bank(
    backbone: nn.Module,
    head: Head,
    bank: GradCamBank,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    *,
    flips: bool = False,
    scales: Sequence[float] = (1.0,),
) -> None:
    """Rebuild the map bank in one pass over un-augmented training images.

    Args:
        backbone: Network; runs in eval mode and in the caller's precision. Every submodule's mode and the random state
            are restored, whatever the network or the iteration over ``batches`` drew.
        head: How its classifier reads the last map.
        bank: Bank to fill; an entry is kept only if its label is present and predicted.
        batches: Images (B, 3, H, W), label presence (B, L) bool and sample numbers (B,).
        flips: Whether to average over the four flips of each image.
        scales: Factors of the image size to average over.
    """
    device = next((parameter.device.type for parameter in backbone.parameters()), "cpu")
    precision = torch.autocast(device, torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device))
    with undisturbed(backbone), precision:
        for images, present, index in batches:
            try:
                maps, logits = averaged_maps(backbone, head, images, flips=flips, scales=scales)
            except REFUSALS:
                require_sweep(backbone, (images.shape[2], images.shape[3]), scales=scales)
                raise
            bank.store(index, maps, predicted(logits, present))


def require_sweep(backbone: nn.Module, image_size: tuple[int, int], *, scales: Sequence[float] = (1.0,)) -> None:
    """Raise if a network refuses a size of the images that a sweep passes through it.

    Args:
        backbone: The network; nothing in it changes.
        image_size: Height and width of the images of the sweep.
        scales: Factors of that size that maps are averaged over.
    """
    for scale in scales:
        height, width = _scaled(image_size, scale)
        reason = refusal(backbone, (height, width))
        if reason is not None:
            raise ValueError(
                f"The backbone must take the images that cached maps are computed from, {height} × {width} px by "
                f"attention.map_scale, map_size and scales; {type(backbone).__name__} refuses them: {reason} Set "
                "attention.map_scale to 1, map_size to null and scales to [1]."
            )


def _scaled(image_size: Sequence[int], scale: float) -> tuple[int, int]:
    height, width = (max(1, round(side * scale)) for side in image_size)
    return height, width


def predicted(logits: Tensor, present: Tensor) -> Tensor:
    """Mark labels that are present and predicted, (B, L) bool on the device of the logits."""
    return present.to(logits.device, non_blocking=True) & (logits.sigmoid() >= CORRECT)


def _gradient_maps(backbone: nn.Module, head: OpaqueHead, images: Tensor) -> tuple[Tensor, Tensor]:
    """Grad-CAM by automatic differentiation through the head alone: the graph starts at the last map."""
    leaves: list[Tensor] = []

    def cut(_point: InsertionPoint, feats: Tensor) -> Tensor:
        leaves.append(feats.detach().requires_grad_())
        return leaves[-1]

    needs = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    try:
        for parameter in needs:  # no graph below the last map, none to the weights
            parameter.requires_grad_(False)
        with torch.enable_grad(), visiting(backbone, [head.point], (images.shape[2], images.shape[3]), cut):
            logits = logits_of(backbone(images))
            sums = logits.sum(dim=0)
            labels = range(len(sums))
            slopes = [torch.autograd.grad(sums[label], leaves[0], retain_graph=True)[0] for label in labels]
    finally:
        for parameter in needs:
            parameter.requires_grad_(True)
    feats = leaves[0].detach()
    precision = torch.promote_types(feats.dtype, torch.float32)
    weights = torch.stack([slope.to(precision).mean(dim=(2, 3)) for slope in slopes], dim=1)  # (B, L, C)
    maps = torch.einsum("blc,bchw->blhw", weights, feats.to(precision))
    return maps, logits.detach()
