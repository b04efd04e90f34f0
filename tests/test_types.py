"""A batch's context refuses what the modules could not use; what a network returns has sensible defaults."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ldstyle.types import Moments, StyleContext, StyledOutput


def context(**changes):
    fields = {
        "present": torch.tensor([[True, False, True], [False, False, True]]),
        "domain": torch.tensor([0, 1]),
        "index": torch.tensor([7, 3]),
        "flips": torch.zeros(2, 2, dtype=torch.bool),
        "epoch": 1,
    }
    return StyleContext(**{**fields, **changes})


def test_a_good_context_keeps_its_tensors():
    present = torch.ones(2, 3, dtype=torch.bool)
    assert context(present=present).present is present


def test_what_no_module_asks_for_may_be_missing():
    made = context(index=None, flips=None)
    assert (made.index, made.flips, made.original) == (None, None, None)


BAD = [
    ({"present": torch.ones(2, 3)}, TypeError, r"`present` must be a bool tensor of shape \(B, L\); got torch.float32"),
    ({"present": torch.ones(2) > 0}, TypeError, r"`present` must be .* of shape \(2,\)\. Use labels == 1"),
    ({"domain": torch.zeros(3).long()}, ValueError, r"`domain` must have shape \(2,\) to match `present`; got \(3,\)"),
    ({"domain": torch.zeros(2)}, TypeError, r"`domain` must be int64; got torch.float32. Use domain.long\(\)"),
    ({"index": torch.zeros(2, 1).long()}, ValueError, r"`index` must have shape \(2,\) .* got \(2, 1\)"),
    ({"index": torch.zeros(2).int()}, TypeError, r"`index` must be int64; got torch.int32"),
    ({"original": torch.zeros(1).long()}, ValueError, r"`original` must have shape \(2,\)"),
    ({"original": torch.zeros(2)}, TypeError, r"`original` must be int64; got torch.float32"),
    ({"flips": torch.zeros(2) > 0}, ValueError, r"`flips` must have shape \(2, 2\) .* got \(2,\)"),
    ({"flips": torch.zeros(2, 2)}, TypeError, r"`flips` must be bool \(horizontal, vertical\); got torch.float32"),
    ({"epoch": 0}, ValueError, r"`epoch` must count from 1; got 0"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD, ids=[next(iter(changes)) for changes, _, _ in BAD])
def test_a_bad_context_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        context(**changes)


def test_a_context_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError, match="epoch"):
        context().epoch = 2


def test_outputs_do_not_share_their_defaults():
    one, other = (StyledOutput(logits=torch.zeros(1, 1), diversity=torch.tensor(0.0)) for _ in range(2))
    one.diagnostics["fired"] = torch.tensor(1)
    assert other.diagnostics == {}
    assert one.attention is not other.attention


def test_moments_unpack_as_mean_then_deviation():
    mean, std = Moments(mean=torch.tensor(1.0), std=torch.tensor(2.0))
    assert (mean.item(), std.item()) == (1.0, 2.0)
