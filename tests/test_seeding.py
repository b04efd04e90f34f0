"""Seeds follow from their meaning; streams are independent, resumable and leave the global ones alone."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ldstyle.seeding import Streams, derive_seed

meanings = st.lists(st.one_of(st.integers(), st.text(max_size=8)), max_size=4)


def test_seeds_never_change():
    """Splits and scenes of earlier releases hang on these numbers."""
    assert derive_seed("split", "ucm", 3) == 8453852623601874450
    assert derive_seed(0, "gate") == 8967247684524861831


@given(one=meanings, other=meanings)
def test_different_meanings_give_different_seeds(one, other):
    assert (derive_seed(*one) == derive_seed(*other)) == (one == other)
    assert 0 <= derive_seed(*one) < 2**63


@pytest.mark.parametrize(("one", "other"), [((1,), ("1",)), (("a", "b"), ("ab",)), (("a", ""), ("a",))])
def test_meanings_that_look_alike_are_told_apart(one, other):
    assert derive_seed(*one) != derive_seed(*other)


def test_the_same_seed_and_name_give_the_same_draws():
    assert Streams(3)["gate"].random(5).tolist() == Streams(3)["gate"].random(5).tolist()
    assert Streams(3)["gate"].random(5).tolist() != Streams(4)["gate"].random(5).tolist()


def test_a_stream_does_not_depend_on_the_others():
    alone, among = Streams(3), Streams(3)
    among["noise"].random(17)
    among["order"].random(2)
    assert alone["gate"].random(5).tolist() == among["gate"].random(5).tolist()
    assert alone["gate"].random(5).tolist() != alone["noise"].random(5).tolist()


def test_a_restored_stream_goes_on_bit_for_bit():
    streams = Streams(5)
    streams["gate"].random(3)
    streams["noise"].standard_normal(4)
    file = io.BytesIO()
    torch.save(streams.state_dict(), file)
    file.seek(0)
    wanted = {name: streams[name].standard_normal(6).tolist() for name in ("gate", "noise", "new")}
    resumed = Streams(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.seed == 5
    assert {name: resumed[name].standard_normal(6).tolist() for name in wanted} == wanted


def test_generators_handed_out_before_restoring_go_on_too():
    streams = Streams(5)
    state = streams.state_dict()
    gate = streams["gate"]
    wanted = gate.random(4).tolist()
    streams.load_state_dict(state)
    assert gate.random(4).tolist() == wanted
    other = Streams(6)
    gate = other["gate"]
    gate.random(9)
    other.load_state_dict(state)
    assert gate.random(4).tolist() == wanted


def test_a_saved_state_is_not_moved_by_later_draws():
    streams = Streams(7)
    streams["gate"].random(2)
    state = streams.state_dict()
    copy = state["streams"].clone()
    streams["gate"].random(2)
    assert torch.equal(state["streams"], copy)


def test_global_streams_stay_untouched():
    def look():
        legacy = np.random.get_state()  # noqa: NPY002 - the very stream that must not move
        return random.getstate(), legacy[1].tolist(), legacy[2], torch.get_rng_state().tolist()

    before = look()
    streams = Streams(1)
    streams["gate"].random(100)
    streams.load_state_dict(streams.state_dict())
    derive_seed("anything")
    assert look() == before
