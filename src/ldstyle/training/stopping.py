"""When to stop, and which epoch's model to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SELECTION = "mean source-validation mAP"
"""Name of the selection rule: the plain mean over source domains of validation mAP."""


def selection_score(per_domain: Mapping[str, float]) -> float:
    """Average validation mAP over the source domains, each counting once whatever its size.

    Args:
        per_domain: Validation mAP by domain. NaN, a domain without a positive label, is left out.

    Raises:
        ValueError: No domain has a score.
    """
    scores = [score for score in per_domain.values() if not math.isnan(score)]
    if not scores:
        raise ValueError(
            f"At least one source domain must have a positive label in its validation part; none of {list(per_domain)} "
            "has. Use more images."
        )
    return math.fsum(scores) / len(scores)


@dataclass(frozen=True)
class Selected:
    """The epoch whose model is kept.

    Attributes:
        epoch: Epoch, counted from 1.
        score: Its selection score.
        warmup_weight: Fraction of the per-label path in that epoch; ``None`` for methods that have none.
    """

    epoch: int
    score: float
    warmup_weight: float | None


class EarlyStopping:
    """Keeps the best epoch, and stops after ``patience`` epochs without a better one.

    The best score is forgotten once the per-label path is fully on, so the selected model has seen it; before that,
    training is not stopped.

    Args:
        patience: Epochs without improvement after which to stop.
    """

    def __init__(self, patience: int = 15) -> None:
        if patience < 1:
            raise ValueError(f"`patience` must be at least 1; got {patience}.")
        self.patience = patience
        self.best: Selected | None = None
        self.waited = 0
        self.warming = False

    def update(self, score: float, *, epoch: int, warmup_weight: float | None = None) -> bool:
        """Take the score of an epoch.

        Args:
            score: Selection score, higher is better; see :func:`selection_score`.
            epoch: Epoch, counted from 1.
            warmup_weight: Fraction of the per-label path; ``None`` for methods that have none.

        Returns:
            Whether this is the best epoch, whose model is to be kept. Of equal scores the first stays.
        """
        if math.isnan(score):
            raise ValueError(f"`score` must be a number; got NaN in epoch {epoch}.")
        warming = warmup_weight is not None and warmup_weight < 1
        if self.warming and not warming:
            self.best, self.waited = None, 0
        self.warming = warming
        better = self.best is None or score > self.best.score
        if better:
            self.best, self.waited = Selected(epoch, score, warmup_weight), 0
        else:
            self.waited += 1
        return better

    @property
    def should_stop(self) -> bool:
        """Whether patience has run out, with the per-label path fully on."""
        return not self.warming and self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers, for resuming."""
        best = None if self.best is None else asdict(self.best)
        return {"best": best, "waited": self.waited, "warming": self.warming}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        self.best = None if state["best"] is None else Selected(**state["best"])
        self.waited, self.warming = int(state["waited"]), bool(state["warming"])
