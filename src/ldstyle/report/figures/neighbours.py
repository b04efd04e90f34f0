"""How well a property can be told from statistics: the balanced accuracy of nearest neighbours, and chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEIGHBOURS = 5


@dataclass(frozen=True)
class Accuracy:
    """A balanced accuracy: the mean over classes of the share of their samples that is told right.

    Attributes:
        score: Balanced accuracy.
        error: Its standard error.
        chance: What guessing reaches: one over the number of classes.
        samples: Number of samples judged.
    """

    score: float
    error: float
    chance: float
    samples: int


def tell(
    features: NDArray[np.floating[Any]],
    classes: NDArray[np.int64],
    forbidden: NDArray[np.bool_],
    *,
    neighbours: int = NEIGHBOURS,
) -> Accuracy | None:
    """Judge how well classes are told from features by the nearest other samples, each sample left out in turn.

    Args:
        features: (N, F); each column is brought to unit deviation first.
        classes: Class of each sample, (N,).
        forbidden: True where a sample must not be judged by another, (N, N): itself, or another crop of its image.
        neighbours: Nearest samples that vote; of equal votes the nearer side's count.

    Returns:
        The accuracy; ``None`` if fewer than two classes can be judged.
    """
    scaled = standardized(features)
    distance = np.square(scaled[:, None] - scaled[None]).sum(axis=2)
    distance[forbidden] = np.inf
    judged = np.isfinite(distance).any(axis=1)
    found = np.unique(classes[judged])
    if len(found) < 2:
        return None
    order = np.argsort(distance, axis=1, kind="stable")[:, :neighbours]
    rank_weight = 1 - 1e-3 * np.arange(order.shape[1])  # only ever decides between equal numbers of votes
    valid = np.take_along_axis(np.isfinite(distance), order, axis=1)
    votes = np.zeros((len(classes), classes.max() + 1))
    for rank in range(order.shape[1]):
        np.add.at(votes, (np.arange(len(classes)), classes[order[:, rank]]), rank_weight[rank] * valid[:, rank])
    right = votes.argmax(axis=1) == classes
    shares = [(right[judged & (classes == c)].mean(), (judged & (classes == c)).sum()) for c in found]
    score = float(np.mean([share for share, _ in shares]))
    variance = float(sum(share * (1 - share) / count for share, count in shares)) / len(found) ** 2
    return Accuracy(score, variance**0.5, 1 / len(found), int(judged.sum()))


def standardized(features: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Bring each column to mean zero and unit deviation; a constant one becomes zero."""
    values = features.astype(np.float64)
    deviation = values.std(axis=0)
    scaled: NDArray[np.float64] = (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return scaled
