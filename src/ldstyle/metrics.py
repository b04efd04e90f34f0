"""Multi-label scores: average precision, class-wise and overall F1, the thresholds F1 needs, and calibration.

A score of NaN means that nothing was predicted, as for a label without training data; it takes no part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ldstyle.functional._checks import check_present, check_shape

_UNKNOWN = -1
_LARGEST_SCALE = 100.0
"""Largest factor by which temperature scaling multiplies or divides logits."""


def average_precision(scores: Tensor, present: Tensor, known: Tensor | None = None) -> Tensor:
    """Compute each label's average precision Σ_n (R_n − R_{n−1}) P_n over all distinct scores.

    As in scikit-learn: no interpolation, and equal scores share one threshold.

    Args:
        scores: Scores, higher means present, (B, L); logits and probabilities alike, for only their order counts.
        present: Label presence, (B, L) bool.
        known: True where the label is annotated, (B, L) bool; the rest takes no part. ``None`` means all are.

    Returns:
        Average precision, (L,). A label without positives is NaN.

    Example:
        >>> average_precision(torch.tensor([[0.9], [0.1]]), torch.tensor([[True], [False]]))
        tensor([1.])
    """
    from torchmetrics.functional.classification import binary_average_precision

    known = _scored(scores, present, known)
    result = scores.new_full((scores.shape[1],), torch.nan, dtype=torch.float32)
    for label in (~without_positives(present, known)).nonzero().flatten().tolist():
        rows = known[:, label]
        # Ranks instead of scores: torchmetrics squashes scores outside [0, 1] by a sigmoid, whose rounding ties them.
        distinct, rank = scores[rows, label].unique(return_inverse=True)
        truth = present[rows, label].long()
        result[label] = binary_average_precision(rank.double() / len(distinct), truth, validate_args=False)
    return result


def mean_average_precision(scores: Tensor, present: Tensor, known: Tensor | None = None) -> Tensor:
    """Average the labels' average precision (mAP), leaving out labels without positives.

    Args:
        scores: Scores, (B, L).
        present: Label presence, (B, L) bool.
        known: True where the label is annotated, (B, L) bool.

    Returns:
        Scalar; NaN if no label has a positive. ``without_positives(present, known).sum()`` labels were left out.

    Example:
        >>> mean_average_precision(torch.tensor([[0.9], [0.1]]), torch.tensor([[True], [False]]))
        tensor(1.)
    """
    return average_precision(scores, present, known).nanmean()


def without_positives(present: Tensor, known: Tensor | None = None) -> Tensor:
    """Mark the labels no known sample carries; class averages leave them out, for their recall is undefined.

    Args:
        present: Label presence, (B, L) bool.
        known: True where the label is annotated, (B, L) bool.

    Returns:
        True where a label has no positives, (L,) bool.

    Example:
        >>> without_positives(torch.tensor([[True, False]]))
        tensor([False,  True])
    """
    check_present(present, len(present))
    return ~(present if known is None else present & known).any(dim=0)


def class_f1(scores: Tensor, present: Tensor, thresholds: Tensor, known: Tensor | None = None) -> Tensor:
    """Average the labels' F1 (CF1): mean_l 2 TP_l / (2 TP_l + FP_l + FN_l).

    Args:
        scores: Scores, (B, L).
        present: Label presence, (B, L) bool.
        thresholds: A label is predicted where ``score >= threshold``, (L,).
        known: True where the label is annotated, (B, L) bool.

    Returns:
        Scalar over the labels with positives; NaN if there are none.

    Example:
        >>> class_f1(torch.tensor([[0.9], [0.1]]), torch.tensor([[True], [False]]), torch.tensor([0.5]))
        tensor(1.)
    """
    from torchmetrics.functional.classification import multilabel_f1_score as f1

    predicted, truth = _decisions(scores, present, thresholds, known)
    per_label = f1(predicted, truth, truth.shape[1], average="none", ignore_index=_UNKNOWN, validate_args=False)
    return _class_mean(per_label, truth)


def class_f1_cpcr(scores: Tensor, present: Tensor, thresholds: Tensor, known: Tensor | None = None) -> Tensor:
    """Compute the harmonic mean of class-averaged precision CP and recall CR: 2 CP CR / (CP + CR).

    Args:
        scores: Scores, (B, L).
        present: Label presence, (B, L) bool.
        thresholds: A label is predicted where ``score >= threshold``, (L,).
        known: True where the label is annotated, (B, L) bool.

    Returns:
        Scalar over the labels with positives; a label never predicted has precision 0. NaN if there are no positives.

    Example:
        >>> class_f1_cpcr(torch.tensor([[0.9], [0.1]]), torch.tensor([[True], [False]]), torch.tensor([0.5]))
        tensor(1.)
    """
    from torchmetrics.functional.classification import multilabel_precision, multilabel_recall

    predicted, truth = _decisions(scores, present, thresholds, known)
    precision, recall = (
        _class_mean(
            metric(predicted, truth, truth.shape[1], average="none", ignore_index=_UNKNOWN, validate_args=False),
            truth,
        )
        for metric in (multilabel_precision, multilabel_recall)
    )
    total = precision + recall
    return torch.where(total == 0, 0.0, 2 * precision * recall / torch.where(total == 0, 1.0, total))


def overall_f1(scores: Tensor, present: Tensor, thresholds: Tensor, known: Tensor | None = None) -> Tensor:
    """Compute F1 over all decisions of all labels together (OF1): 2 ΣTP / (2 ΣTP + ΣFP + ΣFN).

    Args:
        scores: Scores, (B, L).
        present: Label presence, (B, L) bool.
        thresholds: A label is predicted where ``score >= threshold``, (L,).
        known: True where the label is annotated, (B, L) bool.

    Returns:
        Scalar; false alarms for labels without positives count too. 0 if nothing is present nor predicted.

    Example:
        >>> overall_f1(torch.tensor([[0.9], [0.1]]), torch.tensor([[True], [False]]), torch.tensor([0.5]))
        tensor(1.)
    """
    from torchmetrics.functional.classification import multilabel_f1_score as f1

    predicted, truth = _decisions(scores, present, thresholds, known)
    overall: Tensor = f1(predicted, truth, truth.shape[1], average="micro", ignore_index=_UNKNOWN, validate_args=False)
    return overall


def best_thresholds(scores: Tensor, present: Tensor, known: Tensor | None = None) -> Tensor:
    """Pick each label's threshold of highest F1 among all its observed scores, for ``score >= threshold``.

    Args:
        scores: Scores, (B, L).
        present: Label presence, (B, L) bool.
        known: True where the label is annotated, (B, L) bool.

    Returns:
        Thresholds, (L,). Among equally good ones the closest to 0.5, then the lower; 0.5 for a label without positives.

    Example:
        >>> best_thresholds(torch.tensor([[0.9], [0.1]]), torch.tensor([[True], [False]]))
        tensor([0.9000])
    """
    known = _scored(scores, present, known)
    result = scores.new_full((scores.shape[1],), 0.5)
    for label in (~without_positives(present, known)).nonzero().flatten().tolist():
        rows = known[:, label]
        candidates, rank = scores[rows, label].unique(return_inverse=True)  # ascending
        truth = present[rows, label].long()
        hits, chosen = (
            torch.zeros_like(candidates, dtype=torch.int64).index_add_(0, rank, counted).flip(0).cumsum(0).flip(0)
            for counted in (truth, torch.ones_like(truth))
        )
        # From counts, not from torchmetrics' precision and recall: rounding of the curve would decide between ties.
        f1 = 2.0 * hits.double() / (chosen + truth.sum())
        best = candidates[f1 == f1.max()]
        result[label] = best[(best.double() - 0.5).abs().argmin()]
    return result


def expected_calibration_error(
    scores: Tensor, present: Tensor, known: Tensor | None = None, *, bins: int = 15
) -> Tensor:
    """Compute each label's calibration error Σ_b n_b / n |mean score_b − fraction present_b| over equal bins of [0, 1].

    A score on the edge of two bins belongs to the upper one, a score of 1 to the last.

    Args:
        scores: Probabilities, (B, L).
        present: Label presence, (B, L) bool.
        known: True where the label is annotated, (B, L) bool; the rest takes no part. ``None`` means all are.
        bins: Number of bins.

    Returns:
        Calibration error, (L,). A label that is known nowhere is NaN.

    Example:
        >>> expected_calibration_error(torch.tensor([[1.0], [0.0]]), torch.tensor([[True], [False]]))
        tensor([0.])
    """
    known = _scored(scores, present, known)
    if scores[known].numel() and not 0 <= scores[known].min() <= scores[known].max() <= 1:
        raise ValueError("`scores` must be probabilities in [0, 1]; got others. Use logits.sigmoid().")
    result = scores.new_full((scores.shape[1],), torch.nan)
    edges = torch.linspace(0, 1, bins + 1, dtype=scores.dtype, device=scores.device)[1:-1]
    for label in known.any(dim=0).nonzero().flatten().tolist():
        own = scores[known[:, label], label]
        # Not by torchmetrics, which has an additional bin for scores of 1.
        gaps = own.new_zeros(bins).index_add_(
            0, torch.bucketize(own, edges, right=True), own - present[known[:, label], label].to(own)
        )
        result[label] = gaps.abs().sum() / len(own)
    return result


def fit_temperature(logits: Tensor, present: Tensor, known: Tensor | None = None) -> float:
    """Find the temperature T that minimises the binary cross-entropy of ``logits / T``, one for all labels.

    Args:
        logits: Logits, (B, L).
        present: Label presence, (B, L) bool.
        known: True where the label is annotated, (B, L) bool; the rest takes no part. ``None`` means all are.

    Returns:
        Temperature between 0.01 and 100; 1 if no label is known. Above 1 the network was too sure of itself.

    Example:
        >>> logits = torch.tensor([[2.0], [2.0], [2.0], [-2.0]])
        >>> fit_temperature(logits, torch.tensor([[True], [True], [False], [False]])) > 1
        True
    """
    known = _scored(logits, present, known)
    if not known.any():
        return 1.0
    values, truth = logits[known].double(), present[known].double()

    def slope(scale: float) -> float:
        # Of the cross-entropy in 1 / T, in which it is convex.
        return float(((scale * values).sigmoid() - truth).mul(values).sum())

    low, high = 1 / _LARGEST_SCALE, _LARGEST_SCALE
    for _ in range(80):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(1 / (low * high) ** 0.5)


def _scored(scores: Tensor, present: Tensor, known: Tensor | None) -> Tensor:
    """Return where a known label has a score, (B, L) bool, after checking the shapes."""
    if scores.ndim != 2 or not scores.is_floating_point():
        raise ValueError(
            f"`scores` must be floating-point of shape (B, L); got {scores.dtype} of shape {tuple(scores.shape)}."
        )
    batch, labels = scores.shape
    check_present(present, batch, labels)
    if known is None:
        return ~scores.isnan()
    check_shape(known, (batch, labels), name="known", meaning="(B, L)")
    if known.dtype != torch.bool:
        raise TypeError(f"`known` must be bool; got {known.dtype}. Use labels >= 0.")
    return known & ~scores.isnan()


def _decisions(scores: Tensor, present: Tensor, thresholds: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return predicted and true labels as integers, (B, L), the truth of unknown ones marked."""
    known = _scored(scores, present, known)
    check_shape(thresholds, (scores.shape[1],), name="thresholds", meaning="(L,)")
    if not len(scores):  # torchmetrics takes no empty batch; a sample of which nothing is known counts as little
        known, present, scores = (values.new_zeros(1, values.shape[1]) for values in (known, present, scores))
    return (scores >= thresholds).long(), torch.where(known, present.long(), _UNKNOWN)


def _class_mean(per_label: Tensor, truth: Tensor) -> Tensor:
    """Average over the labels with positives; torchmetrics' own mean would count the others as 0."""
    # One label comes back as a scalar.
    return per_label.reshape(-1)[~without_positives(truth == 1)].mean()
