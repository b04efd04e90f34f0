"""From logits to scores, and from scores to the table of metrics of a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ldstyle.metrics import average_precision, class_f1, class_f1_cpcr, overall_f1


def probabilities(logits: Tensor) -> Tensor:
    """Turn logits into scores in float64: float32 would tie all logits above 17 at 1 and change their ranking."""
    return logits.double().sigmoid()


def mean_bce(logits: Tensor, labels: Tensor) -> float:
    """Average the binary cross-entropy over all known labels.

    Args:
        logits: Logits, (N, L).
        labels: 1 present, 0 absent, -1 unknown, (N, L).

    Returns:
        The mean; NaN if no label is known.
    """
    known = labels >= 0
    return F.binary_cross_entropy_with_logits(logits.double()[known], labels.double()[known]).item()


def score_table(
    scores: Tensor, labels: Tensor, thresholds: Tensor | Sequence[float], vocabulary: Sequence[str]
) -> dict[str, Any]:
    """Compute every metric of one set of images, ready for JSON.

    Args:
        scores: Probabilities, (N, L).
        labels: 1 present, 0 absent, -1 unknown, (N, L).
        thresholds: A label is predicted where ``score >= threshold``, (L,).
        vocabulary: Names of the L labels.

    Returns:
        ``map``, ``ap`` by label, ``cf1`` (mean of per-class F1), ``cf1_cpcr`` (harmonic mean of class precision and
        recall), ``of1``, the number ``n`` of images, and the labels ``left_out`` of the class means because no image
        is known to have them. What is undefined is ``None``.
    """
    if len(vocabulary) != scores.shape[-1]:
        raise ValueError(f"`vocabulary` must name {scores.shape[-1]} labels to match `scores`; got {list(vocabulary)}.")
    present, known = labels == 1, labels >= 0
    limits = torch.as_tensor(thresholds, dtype=scores.dtype)
    per_label = average_precision(scores, present, known)
    return {
        "map": nullable(per_label.nanmean()),
        "ap": {name: nullable(value) for name, value in zip(vocabulary, per_label, strict=True)},
        "cf1": nullable(class_f1(scores, present, limits, known)),
        "cf1_cpcr": nullable(class_f1_cpcr(scores, present, limits, known)),
        "of1": nullable(overall_f1(scores, present, limits, known)),
        "n": len(scores),
        "left_out": [name for name, value in zip(vocabulary, per_label, strict=True) if value.isnan()],
    }


def nullable(value: Tensor | float) -> float | None:
    """Return a number for JSON, which has no NaN; ``None`` replaces it."""
    number = float(value)
    return None if math.isnan(number) else number
