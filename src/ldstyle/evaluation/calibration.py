"""Whether probabilities are right: calibration error before and after temperature scaling on source validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ldstyle.evaluation.predict import PREDICTIONS
from ldstyle.evaluation.scores import nullable, probabilities
from ldstyle.metrics import expected_calibration_error, fit_temperature

_LEAST = 1e-15
"""Distance from 0 and 1 that stored scores keep when they become logits again."""


def source_temperature(folder: Path) -> float:
    """Fit the temperature of a finished run to the stored predictions of its sources' validation parts."""
    stored = load_file(folder / PREDICTIONS)
    wanted = [name for name in stored if name.startswith("validation/") and name.endswith("/scores")]
    names = [name.removesuffix("/scores") for name in sorted(wanted)]
    scores, labels = (torch.cat([stored[f"{name}/{kind}"] for name in names]) for kind in ("scores", "labels"))
    return fit_temperature(scores.logit(eps=_LEAST), labels == 1, labels >= 0)


def calibration_table(
    logits: Tensor, labels: Tensor, vocabulary: tuple[str, ...], *, temperature: float
) -> dict[str, dict[str, float | None]]:
    """Compute the expected calibration error of each label, ready for JSON.

    Args:
        logits: Logits, (N, L).
        labels: 1 present, 0 absent, -1 unknown, (N, L).
        vocabulary: Names of the L labels.
        temperature: What logits are divided by.

    Returns:
        ``before`` and ``after`` scaling: the error by label, ``None`` for a label that is known nowhere.
    """
    table: dict[str, Any] = {}
    for name, scaled in (("before", logits.double()), ("after", logits.double() / temperature)):
        errors = expected_calibration_error(probabilities(scaled), labels == 1, labels >= 0)
        table[name] = {label: nullable(error) for label, error in zip(vocabulary, errors, strict=True)}
    return table
