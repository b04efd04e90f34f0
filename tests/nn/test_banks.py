"""The style bank against a dictionary of queues."""

from __future__ import annotations

import io
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.functional import oracles
from tests.tolerance import bound

from ldstyle.nn import GradCamBank, StyleBank
from ldstyle.types import Moments

CHANNELS = 2


def numbered(labels, first):
    """Moments whose values name their sample and label, so that an entry can be recognized."""
    samples = first + torch.arange(len(labels)).float()
    mean = samples[:, None, None] * 100 + torch.arange(labels.shape[1]).float()[:, None] * 10
    return Moments(mean + torch.arange(CHANNELS), mean + torch.arange(CHANNELS) + 0.5)


def contents(bank, label, home):
    """The entries one domain can draw for a label, by every choice there is."""
    choices = torch.linspace(0, 0.999, 97)[:, None].expand(-1, bank.num_labels)
    present = torch.zeros(len(choices), bank.num_labels, dtype=torch.bool)
    present[:, label] = True
    moments, found = bank.draw(present, torch.full((len(choices),), home), choices)
    assert not found[:, [other for other in range(bank.num_labels) if other != label]].any()
    return {tuple(mean[label].tolist()) for mean, hit in zip(moments.mean, found[:, label], strict=True) if hit}


@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2**31)), min_size=1, max_size=5),
)
def test_the_bank_holds_the_last_entries_of_each_label_and_offers_those_of_other_domains(size, labels, batches):
    bank = StyleBank(labels, CHANNELS, size=size)
    queues = [deque(maxlen=size) for _ in range(labels)]
    first = 1
    for batch, seed in batches:
        rng = np.random.default_rng(seed)
        keep, domain = torch.from_numpy(rng.random((batch, labels)) < 0.7), torch.from_numpy(rng.integers(0, 3, batch))
        moments = numbered(keep, first)
        bank.push(moments, keep, domain)
        for sample, label in np.ndindex(batch, labels):
            if keep[sample, label]:
                queues[label].append((int(domain[sample]), tuple(moments.mean[sample, label].tolist())))
        first += batch
        assert len(bank) == sum(map(len, queues))
        for label in range(labels):
            for home in range(3):
                assert contents(bank, label, home) == {entry for other, entry in queues[label] if other != home}


def test_overflow_within_one_batch_keeps_the_last_entries():
    bank = StyleBank(1, CHANNELS, size=3)
    keep = torch.ones(8, 1, dtype=torch.bool)
    bank.push(numbered(keep, 0), keep, torch.zeros(8, dtype=torch.int64))
    assert {int(entry[0]) // 100 for entry in contents(bank, 0, home=1)} == {5, 6, 7}
    bank.push(numbered(keep[:1], 8), keep[:1], torch.zeros(1, dtype=torch.int64))
    assert {int(entry[0]) // 100 for entry in contents(bank, 0, home=1)} == {6, 7, 8}


def test_mean_and_deviation_of_an_entry_stay_together():
    bank, keep = StyleBank(3, CHANNELS, size=4), torch.ones(4, 3, dtype=torch.bool)
    bank.push(numbered(keep, 1), keep, torch.arange(4))
    moments, found = bank.draw(keep, torch.arange(4), torch.rand(4, 3, generator=torch.Generator().manual_seed(0)))
    assert found.all()
    assert torch.equal(moments.std, moments.mean + 0.5)
    assert torch.equal(moments.mean[:, :, 0] % 100, torch.tensor([0.0, 10.0, 20.0]).expand(4, 3))


def test_every_entry_is_chosen_equally_often():
    bank, keep = StyleBank(1, CHANNELS, size=5), torch.ones(5, 1, dtype=torch.bool)
    bank.push(numbered(keep, 0), keep, torch.zeros(5, dtype=torch.int64))
    choice = (torch.arange(1000)[:, None] + 0.5) / 1000
    moments, _ = bank.draw(torch.ones(1000, 1, dtype=torch.bool), torch.ones(1000, dtype=torch.int64), choice)
    assert moments.mean[:, 0, 0].unique(return_counts=True)[1].tolist() == [200] * 5


def test_a_choice_rounded_up_to_one_takes_the_last_entry():
    bank, keep = StyleBank(1, CHANNELS, size=5), torch.ones(2, 1, dtype=torch.bool)
    bank.push(numbered(keep, 1), keep, torch.zeros(2, dtype=torch.int64))
    moments, found = bank.draw(keep[:1], torch.tensor([1]), torch.ones(1, 1))
    assert found.all()
    assert moments.mean[0, 0, 0] == 200


def test_an_empty_bank_finds_nothing():
    present = torch.ones(3, 2, dtype=torch.bool)
    moments, found = StyleBank(2, CHANNELS, size=3).draw(present, torch.arange(3), torch.zeros(3, 2))
    assert not found.any()
    assert moments.mean.shape == (3, 2, CHANNELS)
    assert moments.mean.isfinite().all()


def test_an_entry_of_an_image_s_own_copy_is_not_drawn():
    bank, keep = StyleBank(2, CHANNELS, size=4), torch.ones(3, 2, dtype=torch.bool)
    bank.push(numbered(keep, 1), keep, torch.zeros(3, dtype=torch.int64), original=torch.tensor([7, 8, 7]))
    present, home = torch.ones(99, 2, dtype=torch.bool), torch.ones(99, dtype=torch.int64)
    choice = torch.linspace(0, 1, 99)[:, None].expand(-1, 2)
    for original, expected in ((7, {200}), (8, {100, 300}), (9, {100, 200, 300})):
        copies = torch.full_like(home, original)
        moments, found = bank.draw(present, home, choice, original=copies)
        assert found.all()
        assert bank.offers(present, home, original=copies).all()
        assert set(moments.mean[:, 0, 0].int().tolist()) == expected
        assert set(moments.mean[:, 1, 0].int().tolist()) == {value + 10 for value in expected}


def test_a_bank_of_own_copies_alone_offers_nothing():
    bank, keep = StyleBank(2, CHANNELS, size=4), torch.ones(1, 2, dtype=torch.bool)
    bank.push(numbered(keep, 1), keep, torch.tensor([0]), original=torch.tensor([7]))
    asked = keep, torch.tensor([1])
    assert not bank.draw(*asked, torch.zeros(1, 2), original=torch.tensor([7]))[1].any()
    assert not bank.offers(*asked, original=torch.tensor([7])).any()
    assert bank.offers(*asked, original=torch.tensor([6])).all()


def test_originals_survive_a_file_and_states_without_them_are_read():
    bank, keep = StyleBank(1, CHANNELS, size=2), torch.ones(1, 1, dtype=torch.bool)
    bank.push(numbered(keep, 1), keep, torch.tensor([0]), original=torch.tensor([7]))
    state, other = bank.get_extra_state(), StyleBank(1, CHANNELS, size=2)
    other.set_extra_state(state)
    assert not other.offers(keep, torch.tensor([1]), original=torch.tensor([7])).any()
    del state["originals"]
    other.set_extra_state(state)
    assert other.offers(keep, torch.tensor([1]), original=torch.tensor([7])).all()


def test_what_is_stored_is_detached_and_a_copy():
    keep = torch.ones(2, 1, dtype=torch.bool)
    moments = Moments(torch.ones(2, 1, CHANNELS, requires_grad=True), torch.ones(2, 1, CHANNELS, requires_grad=True))
    bank = StyleBank(1, CHANNELS, size=2)
    bank.push(moments, keep, torch.tensor([0, 1]))
    with torch.no_grad():
        moments.mean.fill_(9)
    drawn, _ = bank.draw(keep, torch.tensor([1, 0]), torch.zeros(2, 1))
    assert not drawn.mean.requires_grad
    assert torch.equal(drawn.mean, torch.ones(2, 1, CHANNELS))


def test_its_state_survives_a_file_and_goes_on_in_the_same_order():
    bank, keep = StyleBank(2, CHANNELS, size=3), torch.tensor([[1, 1], [1, 0], [0, 1], [1, 1]], dtype=torch.bool)
    domain = torch.tensor([0, 1, 2, 0])
    bank.push(numbered(keep, 1), keep, domain)
    file = io.BytesIO()
    torch.save(bank.state_dict(), file)
    file.seek(0)
    other = StyleBank(2, CHANNELS, size=3)
    other.load_state_dict(torch.load(file, weights_only=True))
    for both in (bank, other):
        both.push(numbered(keep[:2], 50), keep[:2], domain[:2])
    for label, home in np.ndindex(2, 3):
        assert contents(bank, label, home) == contents(other, label, home)
    other.push(numbered(keep, 90), keep, domain)
    assert contents(bank, 0, 2) != contents(other, 0, 2)


def test_a_state_of_other_settings_is_refused():
    state = StyleBank(2, CHANNELS, size=3).state_dict()
    with pytest.raises(
        ValueError, match=r"stored style bank has shape \(2, 3\) \(labels, size\); this one has \(2, 5\)"
    ):
        StyleBank(2, CHANNELS, size=5).load_state_dict(state)


def test_a_style_bank_has_room_for_something():
    with pytest.raises(ValueError, match="`size` must be at least 1; got 0"):
        StyleBank(2, CHANNELS, size=0)


def test_settings_of_a_style_bank_are_shown():
    assert "num_labels=2, channels=2, size=3" in repr(StyleBank(2, CHANNELS, size=3))


SHAPE = (4, 3, 3, 5)
INDEX = torch.tensor([5, 0, 7, 2])
PRESENT = torch.ones(4, 3, dtype=torch.bool)
HALF = bound(1, dtype=torch.float16) + bound(1, dtype=torch.float32)
"""Of values up to 1 that are divided in single precision and rounded to half precision."""
FLIPS = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=torch.bool)


@pytest.fixture
def raw():
    return torch.from_numpy(np.random.default_rng(2).normal(size=SHAPE)).float()


def filled(raw, keep=PRESENT, **settings):
    bank = GradCamBank(9, 3)
    bank.store(INDEX, raw, keep, **settings)
    return bank


def scaled(raw):
    """The positive part of every map divided by its maximum, in loops."""
    out = np.zeros(SHAPE)
    for i, k in np.ndindex(SHAPE[:2]):
        positive = np.maximum(raw[i, k].double().numpy(), 0)
        out[i, k] = positive / positive.max()
    return out


def test_entries_are_the_positive_part_divided_by_its_maximum_in_half_precision(raw):
    cached = filled(raw).lookup(INDEX, None, PRESENT)
    assert cached.maps.dtype == torch.float16
    np.testing.assert_allclose(cached.maps.double().numpy(), scaled(raw), rtol=0, atol=HALF)
    assert cached.maps.amax(dim=(2, 3)).eq(1).all()
    assert cached.usable.all()


def test_entries_are_found_by_number_in_any_order(raw):
    order = torch.tensor([2, 0, 3, 1, 2])
    cached = filled(raw).lookup(INDEX[order], None, PRESENT[order])
    np.testing.assert_allclose(cached.maps.double().numpy(), scaled(raw)[order], rtol=0, atol=HALF)


def test_entries_that_are_not_kept_and_maps_without_positive_part_are_unusable(raw):
    keep = PRESENT.clone()
    keep[1, 2] = False
    raw[2, 0] = -1.0
    raw[3, 1] = float("nan")
    raw[0, 1, 0, 0] = float("inf")
    bank = filled(raw, keep)
    expected = torch.ones(4, 3, dtype=torch.bool)
    for at in ((1, 2), (2, 0), (3, 1), (0, 1)):
        expected[at] = False
    cached = bank.lookup(INDEX, None, PRESENT)
    assert torch.equal(cached.usable, expected)
    assert not cached.maps[~expected].any()
    assert bank.coverage.tolist() == expected.sum(dim=0).tolist()
    assert not bank.lookup(torch.tensor([1]), None, PRESENT[:1]).usable.any()


def test_absent_labels_are_unusable(raw):
    present = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.bool)
    cached = filled(raw).lookup(INDEX, None, present)
    assert torch.equal(cached.usable, present)
    assert not cached.at(torch.zeros(4, 2, 6, 6))[~present].any()


def test_maps_are_flipped_like_their_images_on_use(raw):
    cached = filled(raw).lookup(INDEX, FLIPS, PRESENT)
    np.testing.assert_allclose(
        cached.maps.double().numpy(), oracles.flip_maps(scaled(raw), FLIPS.numpy()), rtol=0, atol=HALF
    )


def test_maps_of_flipped_images_are_stored_unflipped(raw):
    seen = torch.from_numpy(oracles.flip_maps(raw.numpy(), FLIPS.numpy()))
    flipped, plain = filled(seen, flips=FLIPS), filled(raw)
    assert torch.equal(flipped.lookup(INDEX, None, PRESENT).maps, plain.lookup(INDEX, None, PRESENT).maps)


@pytest.mark.parametrize("size", [(3, 5), (6, 10), (7, 4), (14, 20)])
def test_maps_on_a_feature_map_are_resized_and_of_mass_one(raw, size):
    cached = filled(raw).lookup(INDEX, None, PRESENT)
    wanted = oracles.resize_maps(cached.maps.double().numpy(), size)
    wanted /= wanted.sum(axis=(2, 3), keepdims=True)
    found = cached.at(torch.zeros(4, 2, *size, dtype=torch.float64))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=bound(16 + 280))  # resize, and the sum of all


def test_storing_again_replaces_and_drops(raw):
    bank = filled(raw)
    bank.store(INDEX[:1], raw[1:2], torch.tensor([[True, False, True]]))
    cached = bank.lookup(INDEX, None, PRESENT)
    assert cached.usable[0].tolist() == [True, False, True]
    assert cached.usable[1:].all()
    assert torch.equal(cached.maps[0, 0], cached.maps[1, 0])


def test_maps_of_another_resolution_start_the_bank_anew(raw):
    bank = filled(raw)
    bank.store(INDEX[:1], torch.rand(1, 3, 2, 2) + 0.1, PRESENT[:1])
    assert bank.coverage.tolist() == [1, 1, 1]
    assert bank.lookup(INDEX, None, PRESENT).maps.shape == (4, 3, 2, 2)


def test_it_is_ready_once_it_holds_an_entry_and_until_it_is_cleared(raw):
    bank = GradCamBank(9, 3)
    assert not bank.ready
    bank.store(INDEX, raw, ~PRESENT)
    assert not bank.ready
    bank.store(INDEX, raw, PRESENT)
    assert bank.ready
    bank.clear()
    assert not bank.ready


def test_stored_maps_carry_no_gradient_and_leave_their_source_alone(raw):
    leaf = raw.clone().requires_grad_()
    cached = filled(leaf).lookup(INDEX, FLIPS, PRESENT)
    assert not cached.maps.requires_grad
    assert torch.equal(leaf.detach(), raw)


def test_its_state_survives_a_file(raw):
    bank, file = filled(raw), io.BytesIO()
    torch.save(bank.state_dict(), file)
    file.seek(0)
    other = GradCamBank(9, 3)
    other.load_state_dict(torch.load(file, weights_only=True))
    ours, theirs = (each.lookup(INDEX, FLIPS, PRESENT) for each in (bank, other))
    assert torch.equal(ours.maps, theirs.maps)
    assert torch.equal(ours.usable, theirs.usable)
    other.clear()
    assert bank.ready


def test_a_state_of_other_data_is_refused(raw):
    with pytest.raises(ValueError, match=r"map bank has shape \(9, 3\) \(samples, labels\); this one has \(8, 3\)"):
        GradCamBank(8, 3).load_state_dict(filled(raw).state_dict())


@pytest.mark.parametrize("value", [9, -1])
def test_numbers_outside_the_bank_are_refused(raw, value):
    bank, index = filled(raw), torch.tensor([0, value, 2, 3])
    with pytest.raises(IndexError, match=rf"`index` must be .*num_samples = 9.*; got {value}\. Give attach\(\)"):
        bank.lookup(index, None, PRESENT)
    with pytest.raises(IndexError, match=rf"num_samples = 9.*got {value}"):
        bank.store(index, raw, PRESENT)


def test_a_missing_index_is_refused(raw):
    with pytest.raises(ValueError, match="`index` must be given when attention is cached; got None"):
        filled(raw).lookup(None, None, PRESENT)


def test_a_bank_has_room_for_something():
    with pytest.raises(ValueError, match="`num_samples` must be at least 1; got 0"):
        GradCamBank(0, 3)


def test_settings_are_shown():
    assert "num_samples=9, num_labels=3" in repr(GradCamBank(9, 3))
