from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ldstyle.data.loading.sampler import BatchSampler
from ldstyle.seeding import Streams


def make_data(sizes, *, labels=5, density=0.3, seed=0):
    generator = np.random.default_rng(seed)
    domain = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return generator.random((len(domain), labels)) < density, domain


def make_sampler(present, domain, *, seed=0, **settings):
    return BatchSampler(present, domain, generator=np.random.default_rng(seed), **settings)


def oracle(present, domain, *, batch_size, generator, batches, look_ahead=64):
    """The rule of the specification in plain lists."""
    count = domain.max() + 1
    members = [np.flatnonzero(domain == d) for d in range(count)]
    queues = [[] for _ in range(count)]

    def head(d):
        if not queues[d]:
            queues[d] = generator.permutation(members[d]).tolist()
        return queues[d]

    result = []
    for batch in range(batches):
        anchor_domain = batch % count
        wanted = [batch_size // count] * count
        for k in range(batch_size % count):
            wanted[(anchor_domain + k) % count] += 1
        chosen = []
        for _ in range(wanted[anchor_domain]):
            anchor = head(anchor_domain).pop(0)
            chosen.append(anchor)
            for d in range(count):
                if d == anchor_domain or wanted[d] == 0:
                    continue
                wanted[d] -= 1
                place = 0
                for k, candidate in enumerate(head(d)[:look_ahead]):
                    if any(a and b for a, b in zip(present[anchor], present[candidate], strict=True)):
                        place = k
                        break
                chosen.append(queues[d].pop(place))
        for d in range(count):
            chosen += [head(d).pop(0) for _ in range(wanted[d] if d != anchor_domain else 0)]
        result.append(chosen)
    return result


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    batch=st.integers(1, 13),
    look_ahead=st.sampled_from([1, 3, 64]),
    density=st.sampled_from([0.0, 0.1, 0.5]),
    labels=st.sampled_from([1, 6, 130]),
)
def test_batches_are_those_of_the_rule_in_plain_lists(sizes, batch, look_ahead, density, labels):
    present, domain = make_data(sizes, density=density, labels=labels)
    batch = min(max(batch, len(sizes)), len(domain))
    sampler = make_sampler(present, domain, batch_size=batch, look_ahead=look_ahead)
    found = [b.tolist() for _ in range(3) for b in sampler]
    expected = oracle(
        present,
        domain,
        batch_size=batch,
        generator=np.random.default_rng(0),
        batches=3 * (len(domain) // batch),
        look_ahead=look_ahead,
    )
    assert found == expected


@pytest.mark.parametrize(("sizes", "batch"), [((40, 25), 8), ((40, 25), 7), ((9, 31, 14), 8), ((5, 5, 5, 5), 6)])
def test_each_sample_comes_once_per_pass_of_its_domain(sizes, batch):
    present, domain = make_data(sizes)
    sampler = make_sampler(present, domain, batch_size=batch)
    stream = np.concatenate([b for _ in range(12) for b in sampler])
    for d, size in enumerate(sizes):
        of_domain = stream[domain[stream] == d]
        for start in range(0, len(of_domain) - size + 1, size):
            assert sorted(of_domain[start : start + size]) == np.flatnonzero(domain == d).tolist()


@pytest.mark.parametrize(("sizes", "batch"), [((64, 64), 32), ((50, 70), 9), ((30, 40, 50), 32)])
def test_every_batch_is_balanced_and_remainders_rotate(sizes, batch):
    present, domain = make_data(sizes)
    counts = [np.bincount(domain[b], minlength=len(sizes)) for b in make_sampler(present, domain, batch_size=batch)]
    assert all(c.sum() == batch and c.max() - c.min() <= 1 for c in counts)
    whole = len(counts) // len(sizes) * len(sizes)
    assert len(set(sum(counts[:whole]).tolist())) == 1


def test_an_epoch_has_the_whole_number_of_batches():
    present, domain = make_data((40, 27))
    sampler = make_sampler(present, domain, batch_size=8)
    assert len(sampler) == len(list(sampler)) == len(list(sampler)) == 67 // 8


def test_most_anchors_find_a_label_in_common():
    present, domain = make_data((300, 300), labels=6, density=0.2)
    batches = list(make_sampler(present, domain, batch_size=32))
    blind = list(make_sampler(present, domain, batch_size=32, look_ahead=1))

    def shared(batch):
        pairs = batch.reshape(-1, 2)
        anchors = pairs[present[pairs[:, 0]].any(axis=1)]
        return (present[anchors[:, 0]] & present[anchors[:, 1]]).any(axis=1).mean()

    assert np.mean([shared(b) for b in batches[:-3]]) > 0.95
    assert np.mean([shared(b) for b in blind]) < 0.5


def test_a_copy_is_not_matched_with_its_original():
    present = np.ones((40, 1), dtype=bool)
    domain, original = np.repeat([0, 1], 20), np.tile(np.arange(20), 2)
    for seed in range(20):
        sampler = make_sampler(present, domain, batch_size=4, original=original, seed=seed)
        pairs = np.concatenate([b.reshape(-1, 2) for b in list(sampler)[:-1]])
        # Only the head of a queue that holds nothing else may be the copy itself.
        assert (original[pairs[:, 0]] != original[pairs[:, 1]])[:-1].all()


@pytest.mark.parametrize("stop", [0, 1, 5, 7])
def test_a_restored_sampler_goes_on_with_the_very_next_batch(stop):
    present, domain = make_data((30, 41))
    streams = Streams(5)
    sampler = BatchSampler(present, domain, batch_size=9, generator=streams["sampler"])
    for _ in range(2):
        list(sampler)
    running = iter(sampler)
    for _ in range(stop):
        next(running)
    state, stream_state = sampler.state_dict(), streams.state_dict()
    expected = [b.tolist() for b in running] + [b.tolist() for b in sampler]
    restored_streams = Streams(0)
    restored_streams.load_state_dict(stream_state)
    restored = BatchSampler(present, domain, batch_size=9, generator=restored_streams["sampler"])
    restored.load_state_dict(state)
    assert [b.tolist() for b in restored] + [b.tolist() for b in restored] == expected


def test_the_state_loads_without_executing_anything(tmp_path):
    present, domain = make_data((30, 41))
    sampler = make_sampler(present, domain, batch_size=9)
    next(iter(sampler))
    torch.save(sampler.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert all(torch.equal(value, sampler.state_dict()[name]) for name, value in loaded.items())


def test_a_saved_state_does_not_move_with_the_sampler():
    present, domain = make_data((30, 41))
    sampler = make_sampler(present, domain, batch_size=9)
    running = iter(sampler)
    next(running)
    state = sampler.state_dict()
    copies = {name: value.clone() for name, value in state.items()}
    list(running)
    assert all(torch.equal(state[name], copies[name]) for name in state)


@pytest.mark.parametrize(("sizes", "batch", "world"), [((60, 60), 16, 4), ((50, 41, 30), 36, 3), ((50, 41, 30), 32, 2)])
def test_ranks_share_each_batch_with_anchors_and_matches_together(sizes, batch, world):
    present, domain = make_data(sizes)
    whole = list(make_sampler(present, domain, batch_size=batch))
    ranks = [list(make_sampler(present, domain, batch_size=batch, rank=r, world_size=world)) for r in range(world)]
    for step, expected in enumerate(whole):
        parts = [rank[step] for rank in ranks]
        assert {len(part) for part in parts} == {batch // world}
        assert sorted(np.concatenate(parts)) == sorted(expected)
        groups = len(sizes) * (batch // world // len(sizes))
        together = np.concatenate([part[:groups] for part in parts])
        assert np.array_equal(together, expected[: len(together)])


def test_inputs_and_global_streams_are_untouched():
    present, domain = make_data((30, 41))
    before = present.copy(), domain.copy(), torch.random.get_rng_state()
    list(make_sampler(present, domain, batch_size=9))
    assert np.array_equal(present, before[0])
    assert np.array_equal(domain, before[1])
    assert torch.equal(torch.random.get_rng_state(), before[2])


def test_a_batch_that_is_a_multiple_of_nothing_still_uses_every_domain():
    present, domain = make_data((10, 10, 10))
    used = Counter(int(d) for b in make_sampler(present, domain, batch_size=4) for d in set(domain[b]))
    assert used == {0: 7, 1: 7, 2: 7}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 1}, r"`batch_size` must be at least the number of domains, 2, .* got 1"),
        ({"batch_size": 72}, r"at most the number of samples, 71; got 72"),
        ({"batch_size": 9, "world_size": 2}, r"`batch_size` must be a multiple of `world_size` 2; got 9"),
        ({"batch_size": 8, "world_size": 2, "rank": 2}, r"`rank` must be in 0 \.\. world_size - 1 = 1; got 2"),
        ({"batch_size": 8, "look_ahead": 0}, r"`look_ahead` must be at least 1; got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, message):
    present, domain = make_data((30, 41))
    with pytest.raises(ValueError, match=message):
        make_sampler(present, domain, **change)


def test_samples_that_cannot_be_are_refused():
    present, domain = make_data((30, 41))
    with pytest.raises(TypeError, match=r"`present` must be \(N, L\) bool; got int8 .* Use labels == 1"):
        make_sampler(present.astype(np.int8), domain, batch_size=4)
    with pytest.raises(ValueError, match=r"`domain` must have shape \(N,\) = \(71,\); got \(70,\)"):
        make_sampler(present, domain[1:], batch_size=4)
    with pytest.raises(ValueError, match=r"without gaps; got \[0, 2\]"):
        make_sampler(present, domain * 2, batch_size=4)


def test_the_state_of_other_data_is_refused():
    present, domain = make_data((30, 41))
    state = make_sampler(present, domain, batch_size=4).state_dict()
    with pytest.raises(ValueError, match="state must be of 1 domains"):
        make_sampler(present, domain * 0, batch_size=4).load_state_dict(state)
    sampler = make_sampler(present, domain, batch_size=4)
    next(iter(sampler))
    with pytest.raises(ValueError, match="state is of other data: queue 0 holds samples of other domains"):
        make_sampler(present, 1 - domain, batch_size=4).load_state_dict(sampler.state_dict())
