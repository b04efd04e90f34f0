"""Scores from logits, and the table of metrics."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, log_loss, precision_score, recall_score
from tests.tolerance import bound

from ldstyle.evaluation.scores import mean_bce, nullable, probabilities, score_table

NAMES = ("building", "car", "tree")
RATIO = bound(12, dtype=torch.float32)
"""Of a ratio of counts in float32, the mean over three labels, and the harmonic mean of two."""


def test_scores_are_probabilities_that_keep_the_order_of_large_logits():
    logits = torch.tensor([[17.0, 20.0, 25.0, -40.0, 0.0]])
    scores = probabilities(logits)
    assert scores[0, 0] < scores[0, 1] < scores[0, 2] < 1
    assert scores[0, 4] == 0.5


def example() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(3)
    labels = torch.from_numpy(rng.choice([-1, 0, 1], (60, 3), p=[0.2, 0.5, 0.3]).astype(np.int8))
    scores = torch.from_numpy(rng.random((60, 3)).round(1))  # with ties
    return scores, labels


def test_mean_bce_is_scikit_learns_log_loss_over_known_labels():
    scores, labels = example()
    logits = (scores * 8 - 4).float()
    known = labels >= 0
    expected = log_loss(labels[known].numpy(), logits.double()[known].sigmoid().numpy())
    assert mean_bce(logits, labels) == pytest.approx(expected, rel=1e-9)
    assert math.isnan(mean_bce(logits, torch.full_like(labels, -1)))


def test_mean_bce_is_finite_for_confident_mistakes():
    assert mean_bce(torch.tensor([[200.0]]), torch.tensor([[0]])) == 200.0


def test_the_table_is_scikit_learns_over_known_labels():
    scores, labels = example()
    thresholds = [0.3, 0.5, 0.6]
    table = score_table(scores, labels, thresholds, NAMES)
    columns = []
    for column, threshold in enumerate(thresholds):
        known = (labels[:, column] >= 0).numpy()
        columns.append((labels[known, column].numpy(), scores[known, column].numpy(), threshold))
    ap = [average_precision_score(truth, score) for truth, score, _ in columns]
    f1 = [f1_score(truth, score >= limit) for truth, score, limit in columns]
    precision = np.mean([precision_score(truth, score >= limit) for truth, score, limit in columns])
    recall = np.mean([recall_score(truth, score >= limit) for truth, score, limit in columns])
    overall = f1_score(
        np.concatenate([truth for truth, _, _ in columns]),
        np.concatenate([score >= limit for _, score, limit in columns]),
    )
    # In float32, four operations on values up to 1 for each of at most 60 positives.
    tolerance = bound(4 * 60, dtype=torch.float32)
    assert [table["ap"][name] for name in NAMES] == pytest.approx(ap, abs=tolerance)
    assert table["map"] == pytest.approx(np.mean(ap), abs=tolerance)
    assert table["cf1"] == pytest.approx(np.mean(f1), abs=RATIO)
    assert table["cf1_cpcr"] == pytest.approx(2 * precision * recall / (precision + recall), abs=RATIO)
    assert table["of1"] == pytest.approx(overall, abs=RATIO)
    assert (table["n"], table["left_out"]) == (60, [])


def test_a_label_without_positives_is_null_left_out_and_named():
    scores, labels = example()
    labels[:, 1] = labels[:, 1].clamp(max=0)
    table = score_table(scores, labels, [0.5] * 3, NAMES)
    assert table["ap"]["car"] is None
    assert table["left_out"] == ["car"]
    assert table["map"] == pytest.approx((table["ap"]["building"] + table["ap"]["tree"]) / 2, abs=RATIO)


def test_a_table_of_nothing_is_json_with_nulls():
    table = score_table(torch.rand(4, 3), torch.zeros(4, 3, dtype=torch.int8), torch.full((3,), 2.0), NAMES)
    assert json.loads(json.dumps(table, allow_nan=False)) == {
        "map": None,
        "ap": dict.fromkeys(NAMES),
        "cf1": None,
        "cf1_cpcr": None,
        "of1": 0.0,
        "n": 4,
        "left_out": list(NAMES),
    }


def test_thresholds_keep_the_precision_of_the_scores():
    """A threshold is an observed score; rounded to float32 it could lie above it."""
    score = math.nextafter(0.7, 0)
    scores, labels = torch.tensor([[score], [0.1]], dtype=torch.float64), torch.tensor([[1], [0]], dtype=torch.int8)
    assert score_table(scores, labels, [score], ["tree"])["of1"] == 1.0


def test_a_vocabulary_of_another_length_is_refused():
    scores, labels = example()
    with pytest.raises(ValueError, match=r"must name 3 labels to match `scores`; got \['tree'\]"):
        score_table(scores, labels, [0.5] * 3, ["tree"])


def test_nan_becomes_null():
    assert nullable(torch.tensor(math.nan)) is None
    assert nullable(0.25) == 0.25
