"""A plain backbone with the normalisation of its images: pixels in, logits out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ldstyle.data.loading.augmentation import Augmentation
from ldstyle.nn.backbones.layout import logits_of
from ldstyle.runs.backbone import Preprocessing

WHITES = {torch.uint8: 255, torch.uint16: 65535}
"""Largest value of each integer type of images."""


class Normalize(nn.Module):
    """Turn pixels into the input of a backbone: ``(image - mean) / std``, band by band, for images in [0, 1].

    There are no parameters and no saved buffers, so a network that owns this module adds no key to its state dict.

    The fused form is the compiled pass that augments training batches, with nothing to augment. Runs validate, refresh
    cached maps and evaluate with it, so that every figure of a run is computed from the pixels that it was trained on,
    bit for bit. The plain form differs from it by one rounding (no fused multiply-add). Deployment uses the plain form:
    it needs no compiler, computes in the precision of the network, and its predictions do not depend on the CPU.

    Args:
        preprocessing: Mean and standard deviation of each band.
        fused: Whether 8-bit and 16-bit images take the fused form.
    """

    _scale: Tensor
    _shift: Tensor

    def __init__(self, preprocessing: Preprocessing, *, fused: bool = False) -> None:
        super().__init__()
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
        self.register_buffer("_scale", 1 / std, persistent=False)
        self.register_buffer("_shift", -mean / std, persistent=False)
        self._fused = Augmentation(mean=preprocessing.mean, std=preprocessing.std) if fused else None

    def forward(self, images: Tensor) -> Tensor:
        """Normalise images, (B, C, H, W), on the device of this module.

        Args:
            images: uint8 on [0, 255], uint16 on [0, 65535], or floating point in [0, 1]; on any device.
        """
        images = images.to(self._scale.device, non_blocking=True)
        if images.dtype not in WHITES:
            return images * self._scale + self._shift
        if self._fused is not None:
            return self._fused.normalise(images)
        return images.to(self._scale.dtype).mul_(self._scale / WHITES[images.dtype]).add_(self._shift)


class NormalizedNet(nn.Module):
    """A plain backbone that owns the normalisation of its images.

    Args:
        backbone: Normalised images in, one logit per label out. It is not changed, only owned.
        preprocessing: Mean and standard deviation of each band.
        fused: See :class:`Normalize`.

    Attributes:
        backbone: The plain backbone.
        normalise: The normalisation of its images.
    """

    def __init__(self, backbone: nn.Module, preprocessing: Preprocessing, *, fused: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.normalise = Normalize(preprocessing, fused=fused)

    @property
    def device(self) -> torch.device:
        """Where the network is; move it with ``to()``."""
        return next(self.backbone.parameters()).device

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits, (B, L), of images (B, C, H, W); see :class:`Normalize`."""
        return logits_of(self.backbone(self.normalise(images)))
