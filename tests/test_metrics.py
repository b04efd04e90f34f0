"""Metrics against scikit-learn, with ties, absent labels and unknown annotations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score
from tests.tolerance import bound

from ldstyle import metrics

SEEDS = range(8)
RATIO = bound(12, dtype=torch.float32)
"""Of a ratio of counts in float32, the mean over five labels, and the harmonic mean of two."""


def draw(seed: int, *, samples: int = 41, labels: int = 5, ties: bool = False):
    """Scores, presence and known mask; label 1 has no positives, label 3 has only unknown positives."""
    rng = np.random.default_rng(seed)
    scores = rng.random((samples, labels))
    scores = np.round(scores, 1) if ties else scores
    present = rng.random((samples, labels)) < 0.3
    known = rng.random((samples, labels)) < 0.8
    present[0], known[0] = True, True
    present[:, 1] = False
    known[:, 3] &= ~present[:, 3]
    return tuple(torch.from_numpy(value) for value in (scores.astype(np.float32), present, known))


def per_label(function, scores, present, known, *, skip_empty=True):
    """One scikit-learn score per label over its known rows; NaN for a label without positives."""
    values = []
    for label in range(scores.shape[1]):
        rows = known[:, label].numpy()
        truth, score = present[rows, label].numpy(), scores[rows, label].numpy()
        values.append(function(truth, score) if truth.any() or not skip_empty else math.nan)
    return np.array(values)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_average_precision_equals_scikit_learn(seed, ties):
    scores, present, known = draw(seed, ties=ties)
    wanted = per_label(average_precision_score, scores, present, known)
    assert np.isnan(wanted[[1, 3]]).all()
    # In float32, four operations on values up to 1 for each positive, where the recall rises; five labels.
    tolerance = bound(4 * int(present.sum(dim=0).max()) + 5, dtype=torch.float32)
    np.testing.assert_allclose(metrics.average_precision(scores, present, known), wanted, rtol=0, atol=tolerance)
    mean = metrics.mean_average_precision(scores, present, known)
    np.testing.assert_allclose(mean, np.nanmean(wanted), rtol=0, atol=tolerance)
    assert metrics.without_positives(present, known).tolist() == [False, True, False, True, False]


def test_equal_scores_share_one_threshold():
    present = torch.tensor([[True], [False], [True], [False]])
    scores = torch.full((4, 1), 0.25)
    assert metrics.average_precision(scores, present).tolist() == [0.5]


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_average_precision_depends_on_the_order_of_scores_alone(scale):
    scores, present, _ = draw(3)
    logits = (torch.logit(scores.double(), eps=1e-9) + 30) * scale  # a float32 sigmoid would tie them all at one
    wanted = metrics.average_precision(scores, present)
    torch.testing.assert_close(metrics.average_precision(logits, present), wanted, equal_nan=True, rtol=0, atol=0)


def test_without_a_mask_all_labels_are_known():
    scores, present, _ = draw(4)
    everything = torch.ones_like(present)
    for function in (metrics.average_precision, metrics.best_thresholds):
        torch.testing.assert_close(function(scores, present), function(scores, present, everything), equal_nan=True)


def test_unknown_entries_change_nothing():
    scores, present, known = draw(5, ties=True)
    thresholds = torch.full((5,), 0.4)
    moved, flipped = torch.where(known, scores, 0.77), torch.where(known, present, ~present)
    for function in (metrics.average_precision, metrics.best_thresholds):
        wanted = function(scores, present, known)
        torch.testing.assert_close(function(moved, flipped, known), wanted, equal_nan=True, rtol=0, atol=0)
    for function in (metrics.class_f1, metrics.class_f1_cpcr, metrics.overall_f1):
        assert function(moved, flipped, thresholds, known) == function(scores, present, thresholds, known)


def test_no_positives_at_all_is_nan_and_not_zero():
    scores, present = torch.rand(6, 2), torch.zeros(6, 2, dtype=torch.bool)
    assert metrics.mean_average_precision(scores, present).isnan()
    assert metrics.class_f1(scores, present, torch.full((2,), 0.5)).isnan()
    assert metrics.class_f1_cpcr(scores, present, torch.full((2,), 0.5)).isnan()
    assert metrics.overall_f1(scores, present, torch.full((2,), 2.0)) == 0


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_f1_scores_equal_scikit_learn(seed, ties):
    scores, present, known = draw(seed, ties=ties)
    thresholds = torch.tensor([0.5, 0.3, 0.6, 0.2, 2.0])  # the last label is never predicted
    chosen = scores >= thresholds

    def macro(function):
        return np.nanmean(per_label(lambda t, s: function(t, s, zero_division=0), chosen, present, known))

    np.testing.assert_allclose(
        metrics.class_f1(scores, present, thresholds, known), macro(f1_score), rtol=0, atol=RATIO
    )
    cp, cr = macro(precision_score), macro(recall_score)
    cpcr = metrics.class_f1_cpcr(scores, present, thresholds, known)
    np.testing.assert_allclose(cpcr, 2 * cp * cr / (cp + cr), rtol=0, atol=RATIO)
    overall = f1_score(present[known].numpy(), chosen[known].numpy())
    np.testing.assert_allclose(metrics.overall_f1(scores, present, thresholds, known), overall, rtol=0, atol=RATIO)


def test_the_threshold_itself_counts_as_predicted():
    scores, present = torch.tensor([[0.5], [0.4]]), torch.tensor([[True], [False]])
    assert metrics.overall_f1(scores, present, torch.tensor([0.5])) == 1


def test_false_alarms_of_a_label_without_positives_cost_overall_f1_only():
    scores = torch.tensor([[0.9, 0.9], [0.1, 0.9]])
    present = torch.tensor([[True, False], [False, False]])
    thresholds = torch.tensor([0.5, 0.5])
    assert metrics.class_f1(scores, present, thresholds) == 1
    assert metrics.overall_f1(scores, present, thresholds) == 0.5


def test_an_empty_batch_has_scores_like_one_of_which_nothing_is_known():
    scores, present, thresholds = torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool), torch.full((3,), 0.5)
    assert metrics.mean_average_precision(scores, present).isnan()
    assert metrics.class_f1(scores, present, thresholds).isnan()
    assert metrics.class_f1_cpcr(scores, present, thresholds).isnan()
    assert metrics.overall_f1(scores, present, thresholds) == 0


def test_nothing_predicted_scores_zero():
    scores, present = torch.tensor([[0.1], [0.2]]), torch.tensor([[True], [False]])
    for function in (metrics.class_f1, metrics.class_f1_cpcr, metrics.overall_f1):
        assert function(scores, present, torch.tensor([0.5])) == 0


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_thresholds_maximize_f1_over_all_observed_scores(seed, ties):
    scores, present, known = draw(seed, ties=ties)
    thresholds = metrics.best_thresholds(scores, present, known)
    for label in range(scores.shape[1]):
        rows = known[:, label]
        truth, score = present[rows, label].numpy(), scores[rows, label].numpy()
        if not truth.any():
            assert thresholds[label] == 0.5
            continue
        candidates = sorted({float(value) for value in score})
        quality = [round(f1_score(truth, score >= candidate), 12) for candidate in candidates]
        best = [t for t, f1 in zip(candidates, quality, strict=True) if f1 == max(quality)]
        assert float(thresholds[label]) == min(best, key=lambda t: abs(t - 0.5))


def test_of_equally_good_thresholds_the_closest_to_a_half_wins():
    # F1 is 2/3 at 0.9 (one of two found), 1/2 at 0.7, 2/3 again at 0.45.
    scores = torch.tensor([[0.9], [0.7], [0.6], [0.45]])
    present = torch.tensor([[True], [False], [False], [True]])
    assert metrics.best_thresholds(scores, present).tolist() == pytest.approx([0.45])
    assert metrics.best_thresholds(1.4 - scores, present).tolist() == pytest.approx([0.5])


def test_one_label_and_one_sample_are_enough():
    scores, present = torch.tensor([[0.3]]), torch.tensor([[True]])
    assert metrics.average_precision(scores, present).tolist() == [1.0]
    thresholds = metrics.best_thresholds(scores, present)
    assert torch.equal(thresholds, scores[0])
    assert metrics.class_f1(scores, present, thresholds) == 1


BAD = [
    (
        {"scores": torch.zeros(3, 2, dtype=torch.long)},
        ValueError,
        r"`scores` must be floating-point of shape \(B, L\)",
    ),
    ({"scores": torch.zeros(3)}, ValueError, r"`scores` must be .* got torch.float32 of shape \(3,\)"),
    ({"present": torch.zeros(3, 2)}, TypeError, "`present` must be bool; got torch.float32"),
    ({"present": torch.zeros(3, 4) > 0}, ValueError, r"`present` must have shape .* = \(3, 2\); got \(3, 4\)"),
    ({"known": torch.ones(2, 2) > 0}, ValueError, r"`known` must have shape \(B, L\) = \(3, 2\); got \(2, 2\)"),
    ({"known": torch.ones(3, 2)}, TypeError, "`known` must be bool; got torch.float32"),
    ({"thresholds": torch.ones(3)}, ValueError, r"`thresholds` must have shape \(L,\) = \(2,\); got \(3,\)"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_input_is_named(change, error, message):
    good = {"scores": torch.zeros(3, 2), "present": torch.zeros(3, 2) > 0, "thresholds": torch.ones(2), "known": None}
    with pytest.raises(error, match=message):
        metrics.overall_f1(**{**good, **change})


def test_a_score_of_nan_takes_no_part():
    """NaN means that nothing was predicted; it is as if the label were not known there."""
    scores, present, known = draw(0)
    missing = torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    missing[:, 4] = True
    holed, thresholds = scores.masked_fill(missing, math.nan), torch.full((5,), 0.5)
    for name in ("average_precision", "mean_average_precision", "best_thresholds"):
        function = getattr(metrics, name)
        torch.testing.assert_close(
            function(holed, present, known), function(scores, present, known & ~missing), equal_nan=True, atol=0, rtol=0
        )
    for name in ("class_f1", "class_f1_cpcr", "overall_f1"):
        function = getattr(metrics, name)
        expected = function(scores, present, thresholds, known & ~missing)
        assert torch.equal(function(holed, present, thresholds, known), expected)
    assert metrics.average_precision(holed, present)[4].isnan()


def calibration_by_hand(scores, present, bins):
    """Σ_b n_b / n |mean score − fraction present|, bin by bin."""
    total = 0.0
    for b in range(bins):
        inside = [
            i for i, score in enumerate(scores) if b / bins < score <= (b + 1) / bins or (b == 0 and score <= 1 / bins)
        ]
        if inside:
            gap = sum(scores[i] for i in inside) / len(inside) - sum(present[i] for i in inside) / len(inside)
            total += len(inside) / len(scores) * abs(gap)
    return total


@pytest.mark.parametrize("bins", [1, 15])
@pytest.mark.parametrize("seed", SEEDS)
def test_calibration_error_equals_its_definition(seed, bins):
    scores, present, known = draw(seed)
    known[:, 2] = False
    errors = metrics.expected_calibration_error(scores.double(), present, known, bins=bins)
    for label in (0, 1, 3, 4):
        rows = known[:, label]
        wanted = calibration_by_hand(scores[rows, label].tolist(), present[rows, label].tolist(), bins)
        assert errors[label].item() == pytest.approx(wanted, abs=bound(4 * len(scores)))
    assert errors[2].isnan()


def test_a_certain_score_shares_the_last_bin():
    scores = torch.tensor([[1.0], [0.95], [0.95], [1.0]], dtype=torch.float64)
    present = torch.tensor([[False], [True], [True], [True]])
    wanted = calibration_by_hand(scores[:, 0].tolist(), present[:, 0].tolist(), 15)
    assert wanted == pytest.approx(3.9 / 4 - 3 / 4)  # one bin
    assert metrics.expected_calibration_error(scores, present).item() == pytest.approx(wanted)


def test_calibration_error_is_zero_for_certain_and_right_predictions_and_wants_probabilities():
    present = torch.tensor([[True, False], [False, True]])
    assert metrics.expected_calibration_error(present.double(), present).tolist() == [0, 0]
    assert metrics.expected_calibration_error(1 - present.double(), present).tolist() == [1, 1]
    with pytest.raises(
        ValueError, match=r"`scores` must be probabilities in \[0, 1\]; got others\. Use logits\.sigmoid"
    ):
        metrics.expected_calibration_error(torch.full((2, 2), 3.0), present)


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_temperature_minimises_the_cross_entropy_and_follows_the_scale_of_the_logits(factor):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 3, generator=generator, dtype=torch.float64)
    present = torch.rand(400, 3, generator=generator, dtype=torch.float64) < logits.sigmoid()
    known = torch.rand(400, 3, generator=generator) < 0.8

    def loss(temperature):
        scaled = factor * logits[known] / temperature
        return torch.nn.functional.binary_cross_entropy_with_logits(scaled, present[known].double())

    fitted = metrics.fit_temperature(factor * logits, present, known)
    assert fitted / factor == pytest.approx(metrics.fit_temperature(logits, present, known), rel=1e-9)  # 80 bisections
    assert fitted / factor == pytest.approx(1, abs=0.15)  # labels were drawn from the logits
    assert all(loss(fitted) < loss(fitted * other) for other in (0.98, 1.02))


def test_temperature_is_bounded_and_one_where_nothing_is_known():
    logits, present = torch.tensor([[-1.0], [2.0]]), torch.tensor([[False], [True]])
    assert metrics.fit_temperature(logits, present) == pytest.approx(0.01)
    assert metrics.fit_temperature(logits, ~present) == pytest.approx(100)
    assert metrics.fit_temperature(logits, present, torch.zeros(2, 1) > 0) == 1
