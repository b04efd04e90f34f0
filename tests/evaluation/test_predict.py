"""Logits of batches; scores by domain: untrained labels take no part, and few samples fit no threshold."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.tolerance import bound
from torch import nn

from ldstyle.evaluation.predict import Predictions, predict
from ldstyle.evaluation.scores import mean_bce, probabilities, score_table
from ldstyle.metrics import best_thresholds

NAMES = ("tree", "car", "ship")


def predictions(labels: Any, *, untrained: tuple[str, ...] = (), seed: int = 0) -> Predictions:
    labels = np.asarray(labels, dtype=np.int8)
    domain = np.arange(len(labels)) % 2
    pool = SimpleNamespace(labels=labels, domain=domain, domains=("one", "two"), vocabulary=NAMES)
    logits = torch.randn(labels.shape, generator=torch.Generator().manual_seed(seed))
    return Predictions(cast("Any", pool), logits, untrained)


def with_positives(counts: tuple[int, ...], *, of: int) -> np.ndarray:
    return np.stack([np.arange(of) < count for count in counts], axis=1).astype(np.int8)


def test_an_untrained_label_is_left_out_of_every_score_and_stored_as_nan() -> None:
    labels = with_positives((30, 20, 25), of=50)
    found, usual = predictions(labels, untrained=("ship",)), predictions(labels)
    thresholds = found.thresholds()
    scores = found.scores(thresholds)
    assert scores["ap"]["ship"] is None
    assert scores["ap"]["tree"] == usual.scores(thresholds)["ap"]["tree"]
    for name, table in scores["tables"].items():
        assert table["left_out"] == ["ship"]
        assert table["map"] == pytest.approx((table["ap"]["tree"] + table["ap"]["car"]) / 2)
        stored = found.tensors("test")
        assert stored[f"test/{name}/scores"].isnan().all(dim=0).tolist() == [False, False, True]
        assert np.array_equal(stored[f"test/{name}/labels"], labels[np.arange(50) % 2 == ("one", "two").index(name)])
        # Whoever reads the file comes to the same table.
        assert score_table(stored[f"test/{name}/scores"], stored[f"test/{name}/labels"], thresholds, NAMES) == table
    halves = [(usual.logits[d::2, :2], labels[d::2, :2]) for d in (0, 1)]
    losses = [mean_bce(logits, torch.from_numpy(truth)) for logits, truth in halves]
    assert found.loss() == pytest.approx(sum(losses) / 2)


@pytest.mark.parametrize("counts", [(9, 9, 9), (41, 41, 41), (0, 50, 9)])
def test_a_handful_of_positives_or_negatives_keeps_the_threshold_at_one_half(counts: tuple[int, ...]) -> None:
    assert predictions(with_positives(counts, of=50)).thresholds().tolist() == [0.5, 0.5, 0.5]


def test_with_enough_samples_of_both_kinds_the_threshold_is_the_one_of_best_f1() -> None:
    found = predictions(with_positives((10, 40, 9), of=50))
    fitted = best_thresholds(probabilities(found.logits), found.labels == 1)
    assert found.thresholds().tolist() == [*fitted[:2].tolist(), 0.5]
    assert 0.5 not in fitted.tolist()
    assert found.threshold_samples() == {
        "tree": {"positives": 10, "negatives": 40},
        "car": {"positives": 40, "negatives": 10},
        "ship": {"positives": 9, "negatives": 41},
    }


def test_unknown_labels_do_not_count_as_negatives() -> None:
    labels = with_positives((20, 20, 20), of=50)
    labels[29:, 0] = -1
    found = predictions(labels)
    assert found.threshold_samples()["tree"] == {"positives": 20, "negatives": 9}
    assert found.thresholds()[0] == 0.5


class Mean(nn.Module):
    """Logits are the channel means; dropout and BatchNorm show the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, images):
        return self.drop(self.norm(images)).mean(dim=(2, 3))


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(count, 3, 5, 7, generator=generator) for count in (4, 4, 1)]


def test_logits_come_in_the_order_of_the_images_and_in_eval_mode():
    net = Mean().train()
    net.drop.eval()
    logits = predict(net, iter(batches())).logits
    scale = 1 / math.sqrt(1 + net.norm.eps)
    expected = torch.cat(batches()).double().mean(dim=(2, 3)) * scale
    torch.testing.assert_close(logits.double(), expected, rtol=0, atol=bound(35 + 5, scale=4, dtype=torch.float32))
    assert not logits.requires_grad
    assert (net.training, net.norm.training, net.drop.training) == (True, True, False)
    assert net.norm.num_batches_tracked == 0


def test_modules_that_cache_in_eval_mode_are_told_of_the_return_to_training():
    class Caching(Mean):
        cached = False

        def train(self, mode=True):
            self.cached = self.cached and not mode
            return super().train(mode)

        def forward(self, images):
            self.cached = not self.training
            return super().forward(images)

    net = nn.Sequential(Caching()).train()
    predict(net, batches())
    assert not net[0].cached


def test_the_mode_is_restored_after_a_failure():
    net = Mean().train()
    with pytest.raises(RuntimeError, match="running_mean should contain 5 elements"):
        predict(net, [torch.zeros(1, 5, 4, 4)])
    assert net.norm.training
    with pytest.raises(ValueError, match="at least one batch of images; got none"):
        predict(net, [])
