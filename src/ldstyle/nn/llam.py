"""The learned attention source."""

from __future__ import annotations

from torch import Tensor, nn

from ldstyle.functional import spatial_softmax


class LLAM(nn.Module):
    """Label-localization attention module: 1×1 convolution, ReLU, 1×1 convolution, spatial softmax (Eq. 4).

    Args:
        channels: Channels C of the feature map; the hidden layer has C/4.
        num_labels: Number of labels L.
        temperature: Sharpness τ of the softmax.
    """

    def __init__(self, channels: int, num_labels: int, *, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        hidden = max(1, channels // 4)
        self.reduce = nn.Conv2d(channels, hidden, kernel_size=1)
        self.act = nn.ReLU(inplace=True)
        self.localize = nn.Conv2d(hidden, num_labels, kernel_size=1)

    def forward(self, feats: Tensor, present: Tensor) -> Tensor:
        """Return unit-mass maps (B, L, H, W) for a map (B, C, H, W) and label presence (B, L)."""
        logits = self.localize(self.act(self.reduce(feats)))
        return spatial_softmax(logits, present, temperature=self.temperature)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"temperature={self.temperature:g}"
