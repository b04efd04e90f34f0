"""Style statistics: those of the sources, stored with the model, and how well nearest neighbours classify by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ldstyle.data.loading.pool import Batch, Pool
from ldstyle.evaluation.predict import pool_batches, predict
from ldstyle.evaluation.scores import probabilities
from ldstyle.nn import InsertionPoint, insertion_points
from ldstyle.runs.normalized_net import NormalizedNet

CENTER, COUNT, SPREAD, QUANTILES = "style/center", "style/count", "style/spread", "style/quantiles"
CONCENTRATION = "style/concentration"
PREVALENCE, MEAN_PROBABILITY = "label/prevalence", "label/mean_probability"
UNKNOWN = -1.0
"""Prevalence of a label that is unknown in all sources."""

NEIGHBOURS = 5
"""Nearest samples that vote on the class of a sample."""

_LEVELS = 101
_MOST_IMAGES = 1000  # per domain; the error of a mean is 0.03 spreads then
_POINTS = 2


def source_style_statistics(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    held_back: Iterable[Batch] | None = None,
    image_size: int | None = None,
) -> dict[str, Tensor]:
    """Summarise source images, so that unlabelled images can later be compared with them.

    The style of an image is the mean and standard deviation of each channel at the first two stages. Its distance is
    the root mean squared difference to the nearest domain's mean, each entry in units of its spread within domains.

    Args:
        model: A network that takes the images of the batches; its modes are restored.
        batches: Samples whose style is summarised; all training samples, since the error of the comparison falls with
            their number.
        held_back: Samples that were not trained on, whose probabilities are therefore honest; by default ``batches``.
        image_size: Height and width of the images; by default the network's own.

    Returns:
        Tensors for the ``extra`` of the model file: ``style/center`` (D, F) of the domains, their numbers
        of images ``style/count`` (D,), ``style/spread`` (F,), the fraction ``style/concentration`` (1,) of the variance
        within domains along its first principal axis, the 0, 1, ... 100 % ``style/quantiles`` of the images' distances,
        each without the image itself in its domain's mean, and ``label/prevalence`` and ``label/mean_probability``,
        (L,); a prevalence that is not known is -1.
    """
    backbone = model.backbone if isinstance(model, NormalizedNet) else model
    points = style_points(backbone, image_size=image_size)
    style, scores, truth, numbers = _collect(model, points, batches)
    if held_back is not None:
        _, scores, truth, _ = _collect(model, (), held_back)
    known = (truth >= 0).sum(dim=0)
    prevalence = torch.where(known > 0, (truth == 1).sum(dim=0) / known.clamp(min=1), UNKNOWN)
    return _style_summary(style.double(), numbers) | {
        PREVALENCE: prevalence.float(),
        MEAN_PROBABILITY: scores.mean(dim=0).float(),
    }


def _collect(
    model: nn.Module, points: Sequence[InsertionPoint], batches: Iterable[Batch]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return style (N, F), probabilities (N, L), labels (N, L) and domains (N,) of all images, on the CPU."""
    labels: list[Tensor] = []
    domains: list[Tensor] = []

    def images() -> Iterator[Tensor]:
        for batch in batches:
            labels.append(batch.labels)
            domains.append(batch.domain)
            yield batch.images

    outputs = predict(model, images(), style_points=points)
    return outputs.style, probabilities(outputs.logits), torch.cat(labels), torch.cat(domains)


def _style_summary(style: Tensor, numbers: Tensor) -> dict[str, Tensor]:
    domains, group = numbers.unique(return_inverse=True)
    members = [style[group == d] for d in range(len(domains))]
    center = torch.stack([member.mean(dim=0) for member in members])
    variance = torch.stack([member.var(dim=0, correction=0) for member in members]).mean(dim=0)
    spread = _floored(variance.sqrt())
    count = torch.tensor([len(member) for member in members])
    distances = style_distances(style, center, spread)
    # An image draws the mean of its domain to itself; without it the distance is n / (n - 1) times as long.
    rows = torch.arange(len(style))
    distances[rows, group] *= (count / (count - 1).clamp(min=1))[group]
    within = (style - center[group]) / spread
    first = torch.linalg.matrix_norm(within, ord=2) ** 2
    concentration = (first / within.square().sum().clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1)
    return {
        CENTER: center.float(),
        COUNT: count.float(),
        SPREAD: spread.float(),
        CONCENTRATION: concentration.reshape(1).float(),
        QUANTILES: distances.amin(dim=1).quantile(torch.linspace(0, 1, _LEVELS, dtype=torch.float64)).float(),
    }


def labelled_batches(pool: Pool, *, batch_size: int) -> Iterator[Batch]:
    """Yield what :func:`source_style_statistics` takes from a pool; evenly chosen samples if there are many."""
    return pool_batches(pool, _chosen_rows(pool), batch_size=batch_size)


def _chosen_rows(pool: Pool) -> NDArray[np.int64]:
    parts = [np.flatnonzero(pool.domain == d) for d in range(len(pool.domains))]
    chosen = [rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_IMAGES)).astype(np.int64)] for rows in parts]
    return np.sort(np.concatenate(chosen))


def style_points(backbone: nn.Module, *, image_size: int | None = None) -> tuple[InsertionPoint, ...]:
    """Return the first two stages of a backbone, which carry most of the style."""
    size = None if image_size is None else (image_size, image_size)
    listing = insertion_points(backbone, image_size=size)
    stages = [point for point in listing if point.stage is None or point.stage >= 1]
    return tuple((stages or list(listing))[:_POINTS])


def style_distances(style: Tensor, center: Tensor, spread: Tensor) -> Tensor:
    """Compute the root mean squared difference of styles (N, F) to centres (D, F) in units of ``spread``, (N, D)."""
    distances: Tensor = torch.cdist(style / spread, center / spread) / style.shape[1] ** 0.5
    return distances


def _floored(spread: Tensor) -> Tensor:
    """Keep channels that hardly vary among the sources from deciding the distance alone."""
    return spread.clamp(min=max(1e-6, 0.05 * spread.median().item()))


@dataclass(frozen=True)
class Accuracy:
    """A balanced accuracy: the mean over classes of the fraction of their samples that is classified correctly.

    Attributes:
        score: Balanced accuracy.
        error: Its standard error.
        chance: Accuracy of guessing: one over the number of classes.
        samples: Number of samples judged.
    """

    score: float
    error: float
    chance: float
    samples: int


def neighbour_accuracy(
    features: NDArray[np.floating[Any]],
    classes: NDArray[np.int64],
    forbidden: NDArray[np.bool_],
    *,
    neighbours: int = NEIGHBOURS,
) -> Accuracy | None:
    """Classify each sample by its nearest other samples.

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
    fractions = [(right[judged & (classes == c)].mean(), (judged & (classes == c)).sum()) for c in found]
    score = float(np.mean([rate for rate, _ in fractions]))
    variance = float(sum(rate * (1 - rate) / count for rate, count in fractions)) / len(found) ** 2
    return Accuracy(score, variance**0.5, 1 / len(found), int(judged.sum()))


def standardized(features: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Bring each column to mean zero and unit deviation; a constant one becomes zero."""
    values = features.astype(np.float64)
    deviation = values.std(axis=0)
    scaled: NDArray[np.float64] = (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return scaled
