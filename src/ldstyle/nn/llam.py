"""The learned attention source."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ldstyle.functional import spatial_softmax
from ldstyle.functional._checks import at_least_single

_EPS = 1e-6


class LLAM(nn.Module):
    """Label-localization attention module: 1×1 convolution, ReLU, 1×1 convolution, spatial softmax (Eq. 4).

    Args:
        channels: Channels C of the feature map; the hidden layer has C/4.
        num_labels: Number of labels L.
        temperature: Sharpness τ of the softmax.
        input_norm: ``instance`` standardises the input per sample and channel over the map; ``none`` does not.
        input_gradient: Whether the input passes its gradient on to the backbone.
    """

    def __init__(
        self,
        channels: int,
        num_labels: int,
        *,
        temperature: float,
        input_norm: Literal["instance", "none"] = "instance",
        input_gradient: bool = False,
    ) -> None:
        super().__init__()
        self.temperature, self.input_norm, self.input_gradient = temperature, input_norm, input_gradient
        hidden = max(1, channels // 4)
        self.reduce = nn.Conv2d(channels, hidden, kernel_size=1)
        self.act = nn.ReLU(inplace=True)
        self.localize = nn.Conv2d(hidden, num_labels, kernel_size=1)
        if input_norm == "instance":
            # Channels are correlated, so that PyTorch's default scale would still put the softmax on 1 to 9 % of the
            # map's locations before training; at half of it, 21 to 50 % were measured on eight networks of three kinds.
            self.localize.weight.data.mul_(0.5)

    def forward(self, feats: Tensor, present: Tensor) -> Tensor:
        """Return unit-mass maps (B, L, H, W) for a map (B, C, H, W) and label presence (B, L)."""
        return self.attend(self.logits(feats), present)

    def attend(self, logits: Tensor, present: Tensor) -> Tensor:
        """Return unit-mass maps (B, L, H, W) for attention logits (B, L, H, W) and label presence (B, L)."""
        return spatial_softmax(logits, present, temperature=self.temperature)

    def logits(self, feats: Tensor) -> Tensor:
        """Return attention logits (B, L, H, W) for a map (B, C, H, W)."""
        flat = (feats if self.input_gradient else feats.detach()).flatten(2)  # (B, C, HW)
        flat, weight, bias = self._input_layer(flat)
        hidden = self.act(torch.baddbmm(bias, weight, flat))
        assert self.localize.bias is not None
        logits = torch.baddbmm(
            self.localize.bias[:, None], self.localize.weight.flatten(1).expand(len(flat), -1, -1), hidden
        )
        return logits.view(len(flat), -1, *feats.shape[2:])

    def _input_layer(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return input (B, C, HW), weight (B, C/4, C) and bias of the first layer, with the standardisation folded in.

        The standardised map itself would be one more map of the stage in memory. In mixed precision the input is
        centred nevertheless: in a nearly constant channel, rounding of weight and bias would exceed its variation.
        """
        assert self.reduce.bias is not None
        weight, bias = self.reduce.weight.flatten(1), self.reduce.bias[:, None]
        if self.input_norm == "none":
            return flat, weight.expand(len(flat), -1, -1), bias
        mixed = flat.dtype.itemsize < 4 or torch.is_autocast_enabled(flat.device.type)
        with torch.autocast(flat.device.type, enabled=False):
            variance, mean = torch.var_mean(at_least_single(flat), dim=2, correction=0)  # (B, C)
            if mixed:
                centre = mean.to(flat.dtype)  # its own rounding error remains in the mean
                flat, mean = flat - centre[:, :, None], mean - centre.to(mean.dtype)
            scaled = weight * (variance + _EPS).rsqrt()[:, None]  # (B, C/4, C)
            return flat, scaled.to(flat.dtype), (bias - scaled @ mean[:, :, None]).to(flat.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"temperature={self.temperature:g}, input_norm={self.input_norm!r}, input_gradient={self.input_gradient}"
