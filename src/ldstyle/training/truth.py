"""What is known of a training batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ldstyle.types import StyleContext


@dataclass(frozen=True)
class Truth:
    """What is known of a training batch, on the host.

    Attributes:
        context: Labels, domains and flips, for the style modules.
        known: True where a label is annotated, (B, L) bool; ``None`` means everywhere.
        labels: Labels to learn as numbers in [0, 1], (B, L), where images were mixed; ``None`` takes those of the
            context.
    """

    context: StyleContext
    known: Tensor | None
    labels: Tensor | None = None
