"""The colour operations of torchvision's ``ColorJitter`` for whole batches, in place, each sample by its own factor.

They give what torchvision gives on floating-point images, on the range [0, 255], in torch operations for any device,
without select, division and new memory: per image, kornia's and torchvision's functional operations take about ten
times as long, nearly all of it for the hue. On the CPU their compiled form in ``_fused.py`` is used instead.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

WHITE = 255.0
GRAY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in the luma that torchvision blends with."""

SCRATCH_PLANES = 6
"""Planes of scratch memory per image that the operations need."""


def scale_brightness(pixels: Tensor, factor: Tensor) -> None:
    """Multiply the values of each image by its factor.

    Args:
        pixels: Images on [0, 255], (B, C, H, W) float32; changed in place.
        factor: Multiplier of each image, (B,), not negative.
    """
    pixels.mul_(factor[:, None, None, None]).clamp_(max=WHITE)


def scale_contrast(pixels: Tensor, factor: Tensor) -> None:
    """Blend each image with its mean luma, or, if it is not RGB, each band with its own mean.

    Arguments as in :func:`scale_brightness`, for any number of bands.
    """
    means = pixels.mean((2, 3))
    if pixels.shape[1] != 3:
        gain = factor[:, None, None, None]
        pixels.mul_(gain).add_((1 - gain) * means[:, :, None, None]).clamp_(0, WHITE)
        return
    _, gray = _matrices(pixels.device)
    luma = (means * gray[0]).sum(1)  # (B,)
    pixels.mul_(factor[:, None, None, None]).add_((luma - factor * luma)[:, None, None, None]).clamp_(0, WHITE)


def scale_saturation(pixels: Tensor, factor: Tensor, scratch: Tensor) -> None:
    """Blend each image with its luma.

    Args:
        pixels: Images on [0, 255], (B, 3, H, W) float32; changed in place.
        factor: Multiplier of each image, (B,), not negative.
        scratch: Memory to work in, at least (6, B, H, W) float32.
    """
    same, gray = _matrices(pixels.device)
    blend = torch.lerp(gray, same, factor[:, None, None])  # (B, 3, 3): channels to channels
    blended = scratch.view(-1)[: pixels.numel()].view_as(pixels)
    torch.bmm(blend, pixels.flatten(2), out=blended.flatten(2))
    torch.clamp(blended, 0, WHITE, out=pixels)


def shift_hue(pixels: Tensor, shift: Tensor, scratch: Tensor) -> None:
    """Turn the hue of each image, keeping the HSV saturation and value of each pixel.

    With the least, middle and largest value m, d, M of a pixel, each channel x becomes
    clamp(2x - d ± 6 shift (M - m), m, M), with + where the channel before it in the circle red, green, blue is at
    least the one after it. In HSV a channel is a trapezoid in the hue; 2x - d continues its ramps beyond the plateaus,
    so moving along the hue is an addition. This holds while no pixel moves by more than one sixth of the circle.

    Args:
        pixels: Images on any range, (B, 3, H, W) float32; changed in place.
        shift: Fraction of the colour circle, (B,), within ± 1/6.
        scratch: Memory to work in, at least (6, B, H, W) float32.
    """
    red, green, blue = pixels.unbind(1)
    least, largest, middle = scratch[:3, : len(pixels)]
    side = scratch[3:6].view(-1)[: pixels.numel()].view_as(pixels)
    torch.minimum(red, green, out=least)
    torch.maximum(red, green, out=largest)
    torch.minimum(largest, blue, out=middle)
    torch.maximum(middle, least, out=middle)
    torch.minimum(least, blue, out=least)
    torch.maximum(largest, blue, out=largest)
    for channel, (before, after) in enumerate(((blue, green), (red, blue), (green, red))):
        torch.sub(before, after, out=side[:, channel])
    torch.lerp(middle[:, None], pixels, 2.0, out=pixels)  # 2x - d in one pass
    step = torch.sub(largest, least, out=middle).mul_(6 * shift[:, None, None])
    pixels.addcmul_(side.sign_(), step[:, None])
    torch.clamp(pixels, least[:, None], largest[:, None], out=pixels)


@cache
def _matrices(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the (3, 3) matrices that keep the channels, and that make each of them luma."""
    return torch.eye(3, device=device), torch.tensor([GRAY] * 3, device=device)
