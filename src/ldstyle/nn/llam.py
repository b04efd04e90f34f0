"""The learned attention source."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ldstyle.functional import spatial_softmax


class LLAM(nn.Module):
    """Label-localization attention module: 1×1 convolution, ReLU, 1×1 convolution, spatial softmax (Eq. 4).

    Args:
        channels: Channels C of the feature map; the hidden layer has C/4.
        num_labels: Number of labels L.
        temperature: Sharpness τ of the softmax.
        grounded: Add a linear classifier per label, for :meth:`evidence`.
    """

    def __init__(self, channels: int, num_labels: int, *, temperature: float, grounded: bool = False) -> None:
        super().__init__()
        self.temperature = temperature
        hidden = max(1, channels // 4)
        self.reduce = nn.Conv2d(channels, hidden, kernel_size=1)
        self.act = nn.ReLU(inplace=True)
        self.localize = nn.Conv2d(hidden, num_labels, kernel_size=1)
        self.classify = nn.Linear(channels, num_labels) if grounded else None

    def forward(self, feats: Tensor, present: Tensor) -> Tensor:
        """Return unit-mass maps (B, L, H, W) for a map (B, C, H, W) and label presence (B, L)."""
        if feats.device.type == "cpu" and feats.stride(1) != 1:
            # The processor's convolution would re-order the map first, into up to two copies in the backward pass.
            flat = _product(self.localize, self.act(_product(self.reduce, feats.flatten(2))))
            logits = flat.view(len(flat), -1, *feats.shape[2:])
        else:
            logits = self.localize(self.act(self.reduce(feats)))
        return spatial_softmax(logits, present, temperature=self.temperature)

    def evidence(self, feats: Tensor) -> Tensor:
        """Return label logits, (B, L), each from the features under its label's map, present or not.

        Only this module learns from them: the feature map is taken as it is.
        """
        assert self.classify is not None, "built without a classifier"
        feats = feats.detach()
        everywhere = torch.ones(len(feats), self.localize.out_channels, dtype=torch.bool, device=feats.device)
        attn = self(feats, everywhere).flatten(2)
        with torch.autocast(feats.device.type, enabled=False):
            pooled = attn @ feats.flatten(2).transpose(1, 2).to(attn.dtype)  # (B, L, C)
            logits: Tensor = (pooled * self.classify.weight).sum(dim=-1) + self.classify.bias
        return logits

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"temperature={self.temperature:g}"


def _product(conv: nn.Conv2d, flat: Tensor) -> Tensor:
    """Apply a 1×1 convolution to a map (B, C, HW)."""
    assert conv.bias is not None
    return torch.baddbmm(conv.bias[:, None], conv.weight.flatten(1).expand(len(flat), -1, -1), flat)
