"""Greedy cross-domain pairing: against its oracle, and what it promises of any batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.functional import oracles

from ldstyle.functional import effective_lambda, match_partners


@st.composite
def batches(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch, labels, domains = draw(st.integers(1, 13)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    present = rng.random((batch, labels)) < draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    return present, rng.integers(0, domains, batch), rng.permutation(batch), rng.integers(0, 4, batch)


def pair(present, domain, priority, original=None):
    tensors = [torch.from_numpy(np.asarray(value)) for value in (present, domain, priority)]
    extra = None if original is None else torch.from_numpy(original)
    return match_partners(*tensors, original=extra).numpy()


@given(batch=batches(), with_original=st.booleans())
def test_pairing_equals_the_oracle(batch, with_original):
    present, domain, priority, original = batch
    sources = original if with_original else None
    assert np.array_equal(
        pair(present, domain, priority, sources), oracles.match_partners(present, domain, priority, sources)
    )


@given(batch=batches())
def test_partners_are_admissible_wherever_there_are_any(batch):
    present, domain, priority, original = batch
    partner = pair(present, domain, priority, original)
    for i, j in enumerate(partner):
        admissible = (domain != domain[i]) & (original != original[i]) & (present & present[i]).any(axis=1)
        assert admissible[j] if admissible.any() else j == i


@given(batch=batches(), data=st.data())
def test_pairing_follows_a_permuted_batch(batch, data):
    present, domain, priority, _ = batch
    order = np.array(data.draw(st.permutations(range(len(present)))))
    moved = pair(present[order], domain[order], priority[order])
    assert np.array_equal(order[moved], pair(present, domain, priority)[order])


@given(batch=batches(), scale=st.integers(1, 9))
def test_only_the_order_of_priorities_counts(batch, scale):
    present, domain, priority, _ = batch
    assert np.array_equal(pair(present, domain, priority * scale - 3.5), pair(present, domain, priority))


def test_the_candidate_sharing_most_labels_wins():
    present = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    partner = match_partners(present, torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2]))
    assert partner[0] == 2


def test_a_candidate_is_used_twice_only_when_none_is_left():
    present = torch.ones(6, 1, dtype=torch.bool)
    balanced = match_partners(present, torch.tensor([0, 0, 0, 1, 1, 1]), torch.arange(6))
    assert sorted(balanced.tolist()) == list(range(6))
    lopsided = match_partners(present, torch.tensor([0, 0, 0, 0, 0, 1]), torch.arange(6))
    assert lopsided.tolist() == [5, 5, 5, 5, 5, 0]


def test_scarce_samples_choose_first():
    # Sample 2 may only take sample 3, which shares most labels with sample 0 and would go to it otherwise.
    present = torch.tensor([[True, True, False], [True, False, False], [False, False, True], [True, True, True]])
    partner = match_partners(present, torch.tensor([0, 1, 0, 1]), torch.arange(4))
    assert partner.tolist()[:3] == [1, 0, 3]


@pytest.mark.parametrize(
    ("present", "domain"), [([[True]], [0]), ([[True], [True]], [1, 1]), ([[False], [False]], [0, 1])]
)
def test_a_sample_without_a_partner_is_its_own(present, domain):
    partner = match_partners(torch.tensor(present), torch.tensor(domain), torch.arange(len(domain)))
    assert torch.equal(partner, torch.arange(len(domain)))


def test_unshared_labels_and_own_partners_keep_a_coefficient_of_one():
    present = torch.tensor([[True, True], [True, False], [True, True]])
    lam = torch.full((3, 2), 0.25)
    masked = effective_lambda(lam, present, torch.tensor([1, 0, 2]))
    assert masked.tolist() == [[0.25, 1.0], [0.25, 1.0], [1.0, 1.0]]


def test_the_candidate_sharing_the_rarest_label_wins_on_request():
    # Label 2 is the rarest; sample 0 shares two labels with sample 1, and label 2 alone with sample 2.
    present = torch.tensor([[True, True, True], [True, True, False], [False, False, True], [True, True, False]])
    domain, priority = torch.tensor([0, 1, 1, 1]), torch.arange(4)
    assert match_partners(present, domain, priority)[0] in (1, 3)
    assert match_partners(present, domain, priority, choice="rarest")[0] == 2


@given(batch=batches())
def test_rarest_partners_are_admissible_wherever_there_are_any(batch):
    present, domain, priority, _ = batch
    tensors = [torch.from_numpy(np.asarray(value)) for value in (present, domain, priority)]
    for i, j in enumerate(match_partners(*tensors, choice="rarest").tolist()):
        admissible = (domain != domain[i]) & (present & present[i]).any(axis=1)
        assert admissible[j] if admissible.any() else j == i


@given(batch=batches())
def test_the_first_to_choose_gets_the_rarest_label_it_can_share(batch):
    present, domain, priority, _ = batch
    allowed = (domain != domain[:, None]) & (present[:, None] & present).any(axis=-1)
    choosers = [i for i in range(len(present)) if allowed[i].any()]
    if not choosers:
        return
    first = min(choosers, key=lambda i: (allowed[i].sum(), priority[i]))
    counts = present.sum(axis=0)
    tensors = [torch.from_numpy(np.asarray(value)) for value in (present, domain, priority)]
    partner = match_partners(*tensors, choice="rarest")[first]
    rarest = min(counts[present[first] & present[j]].min() for j in np.flatnonzero(allowed[first]))
    assert counts[present[first] & present[partner]].min() == rarest
