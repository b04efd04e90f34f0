"""The selection rule, patience, and the model that has seen the per-label path."""

from __future__ import annotations

import json
import math

import pytest

from ldstyle.functional import warmup_weight
from ldstyle.training.stopping import SELECTION, EarlyStopping, Selected, selection_score


def feed(stopping: EarlyStopping, scores, *, warmup_epochs: int | None = None, first: int = 1) -> list[bool]:
    """Return which epochs were the best when they came, until it stops."""
    kept = []
    for epoch, score in enumerate(scores, start=first):
        weight = None if warmup_epochs is None else warmup_weight(epoch, warmup_epochs)
        kept.append(stopping.update(score, epoch=epoch, warmup_weight=weight))
        if stopping.should_stop:
            break
    return kept


def test_the_rule_has_a_name_and_weighs_domains_equally():
    assert SELECTION == "mean source-validation mAP"
    assert selection_score({"ucm": 0.5, "aid": 0.75, "dfc15": 0.25}) == 0.5


def test_a_domain_without_a_score_is_left_out():
    assert selection_score({"ucm": 0.5, "aid": math.nan}) == 0.5
    with pytest.raises(ValueError, match=r"At least one source domain .* none of \['ucm'\]"):
        selection_score({"ucm": math.nan})


def test_the_best_epoch_is_kept_and_the_first_of_equals():
    stopping = EarlyStopping(patience=10)
    assert feed(stopping, [0.1, 0.4, 0.3, 0.4, 0.5, 0.2]) == [True, True, False, False, True, False]
    assert stopping.best == Selected(epoch=5, score=0.5, warmup_weight=None)


@pytest.mark.parametrize("patience", [1, 3, 15])
def test_training_stops_after_patience_epochs_without_a_better_one(patience):
    stopping = EarlyStopping(patience)
    assert len(feed(stopping, [0.1, 0.9, *[0.5] * 50])) == 2 + patience
    assert stopping.best is not None
    assert stopping.best.epoch == 2


def test_an_improvement_renews_patience():
    assert len(feed(EarlyStopping(2), [0.1, 0.0, 0.2, 0.1, 0.3, 0.0, 0.0, 0.9])) == 7


def test_the_best_of_the_warmup_is_forgotten_once_the_path_is_fully_on():
    """W = 2: epochs 1 and 2 are global, 3 is half, from 4 on the path is fully on."""
    stopping = EarlyStopping(15)
    kept = feed(stopping, [0.9, 0.8, 0.95, 0.3, 0.4, 0.35], warmup_epochs=2)
    assert kept == [True, False, True, True, True, False]
    assert stopping.best == Selected(epoch=5, score=0.4, warmup_weight=1.0)


def test_the_best_is_forgotten_only_once():
    stopping = EarlyStopping(15)
    feed(stopping, [0.9, 0.5, 0.4, 0.3], warmup_epochs=1)
    assert stopping.best == Selected(epoch=2, score=0.5, warmup_weight=1.0)


def test_training_does_not_stop_before_the_path_is_fully_on():
    """W = 4: the path is fully on at epoch 8, and patience counts from there."""
    stopping = EarlyStopping(patience=2)
    assert len(feed(stopping, [0.9, *[0.1] * 30], warmup_epochs=4)) == 8 + 2
    assert stopping.best == Selected(epoch=8, score=0.1, warmup_weight=1.0)


def test_a_path_that_is_on_from_the_start_has_nothing_to_forget():
    stopping = EarlyStopping(15)
    assert feed(stopping, [0.9, 0.1, 0.2], warmup_epochs=0) == [True, False, False]
    assert stopping.best == Selected(epoch=1, score=0.9, warmup_weight=1.0)


def test_a_run_that_ends_in_the_warmup_says_so():
    stopping = EarlyStopping(15)
    feed(stopping, [0.1, 0.2, 0.3], warmup_epochs=2)
    assert stopping.best == Selected(epoch=3, score=0.3, warmup_weight=0.5)


@pytest.mark.parametrize("cut", range(10))
def test_a_resumed_run_decides_as_an_uninterrupted_one(cut):
    scores = [0.9, 0.2, 0.3, 0.1, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
    whole, before = EarlyStopping(3), EarlyStopping(3)
    expected = feed(whole, scores, warmup_epochs=2)
    kept = feed(before, scores[:cut], warmup_epochs=2)
    after = EarlyStopping(3)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    kept += [] if after.should_stop else feed(after, scores[cut:], warmup_epochs=2, first=cut + 1)
    assert kept == expected
    assert after.state_dict() == whole.state_dict()


def test_values_out_of_range_are_refused():
    with pytest.raises(ValueError, match="`patience` must be at least 1; got 0"):
        EarlyStopping(0)
    with pytest.raises(ValueError, match="must be a number; got NaN in epoch 4"):
        EarlyStopping().update(math.nan, epoch=4)
