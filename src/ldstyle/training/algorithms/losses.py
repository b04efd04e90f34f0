"""Classification losses other than the mean binary cross-entropy, as a module with its weights."""

from __future__ import annotations

from torch import Tensor, nn

from ldstyle.functional import label_losses


class LabelLoss(nn.Module):
    """Loss of each label; see :func:`ldstyle.functional.label_losses`.

    Args:
        positive_weight: Weight of each label where it is present, (L,).
        negative_weight: Weight of absent labels.
        gamma_positive: Focusing exponent of present labels.
        gamma_negative: Focusing exponent of absent labels.
        margin: Probability up to which an absent label costs nothing.
    """

    positive_weight: Tensor

    def __init__(
        self,
        positive_weight: Tensor,
        *,
        negative_weight: float = 1.0,
        gamma_positive: float = 0.0,
        gamma_negative: float = 0.0,
        margin: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("positive_weight", positive_weight)
        self.settings = {
            "negative_weight": negative_weight,
            "gamma_positive": gamma_positive,
            "gamma_negative": gamma_negative,
            "margin": margin,
        }

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each label, (B, L)."""
        return label_losses(logits, labels, positive_weight=self.positive_weight, **self.settings)

    def extra_repr(self) -> str:
        """Show the settings."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())
