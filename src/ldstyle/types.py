"""Types that every layer shares: moments, the context of a batch, and the output of a styled network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Gather: TypeAlias = Callable[[Tensor], Tensor]
"""Concatenates equally long tensors of all processes along the first dimension, in the order of the processes."""


class Moments(NamedTuple):
    """Mean and standard deviation of a style, one pair per sample, label and channel.

    Attributes:
        mean: Attention-weighted mean μ, (B, L, C).
        std: Attention-weighted standard deviation σ, (B, L, C).
    """

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class StyleContext:
    """Labels, domains and origin of a training batch, from the loader to the style modules.

    Labels and domains are known when the batch is assembled, so the tensors may stay on the host: pairing then costs
    the device no synchronisation.

    Attributes:
        present: True where a label is known to be present, (B, L) bool. Unknown labels are not present.
        domain: Domain number from 0, (B,) int64.
        index: Stable number of the sample in the training set, (B,) int64; cached maps are looked up by it. ``None``
            where no cached maps are in use.
        flips: Whether the image was flipped horizontally and vertically, (B, 2) bool. ``None`` means unflipped.
        epoch: Epoch of training, counted from 1.
        original: Number of the image a sample was made from, (B,) int64; copies of one image are never paired.
            ``None`` means that every sample is an image of its own.
        known: True where a label is annotated, (B, L) bool; the loss leaves the rest out. ``None`` means everywhere.
        soft: Labels to learn as numbers in [0, 1], (B, L), where images were mixed; ``None`` takes ``present``.
        weight: Weight of each label in the loss, (B, L), where images with unknown labels were mixed; ``None`` means 1
            where ``known``.
    """

    present: Tensor
    domain: Tensor
    index: Tensor | None = None
    flips: Tensor | None = None
    epoch: int = 1
    original: Tensor | None = None
    known: Tensor | None = None
    soft: Tensor | None = None
    weight: Tensor | None = None

    @classmethod
    def of_labels(
        cls,
        labels: Tensor,
        domain: Tensor,
        *,
        index: Tensor | None = None,
        flips: Tensor | None = None,
        epoch: int = 1,
    ) -> StyleContext:
        """Build a context from labels (B, L): 1 present, 0 absent, NaN or negative where unknown; or bool."""
        present, known = read_labels(labels)
        return cls(present, domain, index, flips, epoch, known=known)

    def __post_init__(self) -> None:
        for name in ("present", "domain", "index", "flips", "original", "known", "soft", "weight"):
            value = getattr(self, name)
            if not isinstance(value, Tensor) and (value is not None or name in ("present", "domain")):
                named = isinstance(value, list | tuple) and any(isinstance(one, str) for one in value)
                way_out = f"torch.tensor([names.index(one) for one in {name}])" if named else f"torch.tensor({name})"
                raise TypeError(f"`{name}` must be a tensor; got {type(value).__name__}. Use {way_out}.")
        if self.present.dtype != torch.bool or self.present.ndim != 2:
            raise TypeError(
                f"`present` must be a bool tensor of shape (B, L); got {self.present.dtype} of shape "
                f"{tuple(self.present.shape)}. Use labels == 1."
            )
        batch = self.present.shape[0]
        expected = {"domain": (batch,), "index": (batch,), "flips": (batch, 2), "original": (batch,)}
        expected["known"] = expected["soft"] = expected["weight"] = tuple(self.present.shape)
        for name, shape in expected.items():
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise ValueError(f"`{name}` must have shape {shape} to match `present`; got {tuple(value.shape)}.")
        for name in ("domain", "index", "original"):
            value = getattr(self, name)
            if value is not None and value.dtype != torch.int64:
                raise TypeError(f"`{name}` must be int64; got {value.dtype}. Use {name}.long().")
        if self.flips is not None and self.flips.dtype != torch.bool:
            raise TypeError(f"`flips` must be bool (horizontal, vertical); got {self.flips.dtype}.")
        if self.known is not None and self.known.dtype != torch.bool:
            raise TypeError(f"`known` must be bool; got {self.known.dtype}. Use labels >= 0.")
        if self.epoch < 1:
            raise ValueError(f"`epoch` must count from 1; got {self.epoch}.")


@dataclass(frozen=True, kw_only=True)
class PairedContext(StyleContext):
    """A context on the host, with the partner of each sample.

    Attributes:
        partner: Label-matched partner of the per-label path, (B,) int64.
        global_partner: Partner of the global path, (B,) int64.
        clean: Whether no earlier module restyled this batch, so that its statistics may be stored.
    """

    partner: Tensor
    global_partner: Tensor
    clean: bool = True

    @classmethod
    def on_host(cls, context: StyleContext) -> PairedContext:
        """Copy a context to the host, with every sample its own partner."""
        values = {field.name: getattr(context, field.name) for field in fields(StyleContext)}
        values = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in values.items()}
        itself = torch.arange(len(context.present))
        return cls(**values, partner=itself, global_partner=itself)


def read_labels(labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split labels into presence and knowledge.

    Args:
        labels: 1 present, 0 absent, NaN or negative where unknown, (B, L); or bool.

    Returns:
        True where a label is present, (B, L) bool, and where it is known; ``None`` for bool labels, all known.

    Example:
        >>> present, known = read_labels(torch.tensor([[1.0, 0.0, torch.nan]]))
        >>> present.tolist(), known.tolist()
        ([[True, False, False]], [[True, True, False]])
    """
    if not isinstance(labels, Tensor) or labels.ndim != 2:
        got = f"shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"`labels` must be a tensor of shape (B, L); got {got}. Use torch.tensor(labels).")
    if labels.dtype == torch.bool:
        return labels, None
    return labels == 1, labels >= 0


@dataclass(frozen=True)
class StyledOutput:
    """Result of a styled network.

    Attributes:
        logits: Label logits, (B, L).
        diversity: Attention diversity loss of Eq. 5, averaged over the insertion points; 0 without learned attention.
        attention: Unit-mass attention in use per insertion point, (B, L, H, W), for logging; detached.
        diagnostics: Scalars by name (modules fired, clamped gains, ...) as 0-d tensors, so reading them is the
            caller's choice and costs no hidden synchronisation. Empty outside training.
        evidence: Label logits pooled from the attention logits, (P, B, L) for P insertion points, where attention is
            grounded by them; ``None`` elsewhere.
        grounding: Cross-entropy between learned attention and the network's own class activation maps, averaged over
            the insertion points, where attention is grounded by them; ``None`` elsewhere.
    """

    logits: Tensor
    diversity: Tensor
    attention: dict[str, Tensor] = field(default_factory=dict)
    diagnostics: dict[str, Tensor] = field(default_factory=dict)
    evidence: Tensor | None = None
    grounding: Tensor | None = None
