import builtins
import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ldstyle.data.domains.scene_table import SceneTable
from ldstyle.data.loading.augmentation import photometric
from ldstyle.data.loading.decode import decode
from ldstyle.data.loading.pool import Pool
from ldstyle.data.loading.sampler import BatchSampler
from ldstyle.data.loading.splits import leave_one_domain_out, split_domain

SIZE = 8
VOCABULARY = ("tree", "car", "ship")


def make_table(root, domain, count, *, masks=False, mask_bits=None, vocabulary=VOCABULARY):
    generator = np.random.default_rng(sum(map(ord, domain)))
    keys = tuple(f"{i}.png" for i in range(count))
    (root / domain).mkdir(parents=True)
    for key in keys:
        Image.fromarray(generator.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)).save(root / domain / key)
    mask_keys = None
    if masks:
        mask_keys = tuple(None if i == 0 else f"{i}_mask.png" for i in range(count))
        for key in mask_keys[1:]:
            Image.fromarray(generator.integers(0, 8, (SIZE, SIZE), dtype=np.uint8)).save(root / domain / key)
    labels = generator.integers(-1, 2, (count, len(vocabulary))).astype(np.int8)
    return SceneTable(domain, root / domain, vocabulary, keys, labels, masks=mask_keys, mask_bits=mask_bits)


@pytest.fixture
def tables(tmp_path):
    return make_table(tmp_path, "west", 6), make_table(tmp_path, "east", 9)


@pytest.fixture
def open_pool(tmp_path):
    def open_(tables, rows=None, **settings):
        return Pool(tables, rows, size=SIZE, cache_dir=tmp_path / "cache", **settings)

    return open_


def test_a_batch_is_what_the_files_hold(tables, open_pool):
    pool = open_pool(tables)
    index = [14, 0, 7, 7, 5, 6]
    batch = pool.gather(index)
    for i, number in enumerate(index):
        table, row = (tables[0], number) if number < 6 else (tables[1], number - 6)
        assert np.array_equal(batch.images[i], decode(table.path(row), SIZE))
        assert np.array_equal(batch.labels[i], table.labels[row])
        assert pool.keys[number] == table.keys[row]
    assert batch.domain.tolist() == [1, 0, 1, 1, 0, 1]
    assert batch.index.tolist() == index
    assert torch.equal(batch.present, batch.labels == 1)
    assert torch.equal(batch.known, batch.labels != -1)
    assert batch.masks is None
    assert (batch.images.dtype, batch.labels.dtype, batch.index.dtype) == (torch.uint8, torch.int8, torch.int64)


def test_numbers_follow_the_domains_and_the_rows_chosen(tables, open_pool):
    pool = open_pool(tables, [[4, 1], [8, 0, 3]])
    assert len(pool) == 5
    assert pool.keys == ("4.png", "1.png", "8.png", "0.png", "3.png")
    assert pool.domain.tolist() == [0, 0, 1, 1, 1]
    assert pool.domains == ("west", "east")
    assert np.array_equal(pool.labels, np.concatenate([tables[0].labels[[4, 1]], tables[1].labels[[8, 0, 3]]]))
    assert np.array_equal(pool.present, pool.labels == 1)
    assert np.array_equal(pool.original, np.arange(5))
    assert np.array_equal(pool.gather([2]).images[0], decode(tables[1].path(8), SIZE))


def test_all_parts_of_a_split_share_one_cache(tables, open_pool, tmp_path):
    split = split_domain(tables[1], seed=0)
    digests = {open_pool([tables[1]], [rows]).digests["east"] for rows in (split.train, split.validation, split.test)}
    assert len(digests) == 1
    assert len(list((tmp_path / "cache").glob("*/header.json"))) == 1


def test_a_batch_belongs_to_its_user(tables, open_pool):
    pool = open_pool(tables)
    batch = pool.gather([0, 8])
    for tensor in (batch.images, batch.labels, batch.domain, batch.index):
        tensor.fill_(1)
    again = pool.gather([0, 8])
    assert np.array_equal(again.images[0], decode(tables[0].path(0), SIZE))
    assert again.domain.tolist() == [0, 1]
    assert again.labels[0].tolist() == tables[0].labels[0].tolist()


def test_an_empty_batch_is_allowed(tables, open_pool):
    assert open_pool(tables).gather([]).images.shape == (0, 3, SIZE, SIZE)


def test_masks_give_the_region_of_each_label(tmp_path, open_pool):
    plain = make_table(tmp_path, "plain", 3)
    masked = make_table(tmp_path, "masked", 4, masks=True)
    mapped = make_table(tmp_path, "mapped", 4, masks=True, mask_bits=((2,), (), (0, 1)))
    pool = open_pool([plain, masked, mapped])
    batch = pool.gather([1, 5, 9, 3], masks=True)
    stored = np.asarray(Image.open(masked.root / "2_mask.png"))
    other = np.asarray(Image.open(mapped.root / "2_mask.png"))
    assert batch.masks.dtype == torch.bool
    assert not batch.masks[0].any()
    assert not batch.masks[3].any()
    assert np.array_equal(batch.masks[1], np.stack([(stored >> bit) & 1 for bit in range(3)]).astype(bool))
    assert np.array_equal(batch.masks[2], np.stack([(other & 4) > 0, other < 0, (other & 3) > 0]))
    assert pool.masked.tolist() == [False] * 4 + [True] * 3 + [False] + [True] * 3


def test_a_lonely_source_is_joined_by_its_photometric_copy(tables, open_pool):
    rows = [0, 2, 4, 5]
    pool = open_pool([tables[0]], [rows], pseudo_seed=1)
    assert pool.domains == ("west", "west+photometric")
    assert pool.domain.tolist() == [0] * 4 + [1] * 4
    assert pool.original.tolist() == [0, 1, 2, 3] * 2
    assert np.array_equal(pool.labels[:4], pool.labels[4:])
    batch = pool.gather([5, 1])
    assert not torch.equal(batch.images[0], batch.images[1])
    assert torch.equal(batch.images[1], torch.from_numpy(decode(tables[0].path(2), SIZE)))
    factors = pool._members[1].factors[:, 1:2]
    assert torch.equal(photometric(batch.images[1:], factors), batch.images[:1])


def test_the_copy_is_fixed_by_its_seed_whatever_rows_are_chosen(tables, open_pool):
    whole = open_pool([tables[0]], pseudo_seed=1)
    part = open_pool([tables[0]], [[5, 3]], pseudo_seed=1)
    assert torch.equal(part.gather([2, 3]).images, whole.gather([6 + 5, 6 + 3]).images)
    assert torch.equal(whole.gather([8]).images, whole.gather([8]).images)
    other = open_pool([tables[0]], pseudo_seed=2)
    assert not torch.equal(other.gather([8]).images, whole.gather([8]).images)


def test_the_sampler_runs_on_a_pool_with_its_copy(tables, open_pool):
    pool = open_pool([tables[1]], pseudo_seed=0)
    sampler = BatchSampler(
        pool.present, pool.domain, original=pool.original, batch_size=4, generator=np.random.default_rng(0)
    )
    for index in sampler:
        assert pool.gather(index).domain.bincount().tolist() == [2, 2]


@pytest.fixture
def opened(monkeypatch):
    """Every path that Python code opens, lists or asks the state of."""
    paths = []

    def watch(module, name):
        original = getattr(module, name)

        def watched(path, *args, **kwargs):
            if isinstance(path, str | os.PathLike):
                paths.append(os.fspath(path))
            return original(path, *args, **kwargs)

        monkeypatch.setattr(module, name, watched)

    for module, name in (
        (builtins, "open"),
        (io, "open"),
        (os, "open"),
        (os, "stat"),
        (os, "scandir"),
        (os, "listdir"),
    ):
        watch(module, name)
    return paths


def test_training_does_not_open_target_files(tmp_path, tables, open_pool, opened):
    target = make_table(tmp_path, "target", 5)
    named = {table.domain: table for table in (*tables, target)}
    opened.clear()
    fold = leave_one_domain_out(tuple(named))[-1]
    sources = [named[name] for name in fold.sources]
    pool = open_pool(sources, [split_domain(table, seed=0).train for table in sources])
    sampler = BatchSampler(pool.present, pool.domain, batch_size=4, generator=np.random.default_rng(0))
    for index in sampler:
        pool.gather(index)
    assert any(str(tables[0].root) in path for path in opened)
    assert not [path for path in opened if str(target.root) in path]


def test_training_needs_no_target_files(tmp_path, tables, open_pool):
    absent = SceneTable("target", Path("nowhere"), VOCABULARY, ("a.png",), np.zeros((1, 3), dtype=np.int8))
    fold = leave_one_domain_out([*(table.domain for table in tables), absent.domain])[-1]
    assert fold.target == "target"
    assert len(open_pool([table for table in tables if table.domain in fold.sources])) == 15


def test_tables_that_do_not_go_together_are_refused(tmp_path, tables, open_pool):
    other = make_table(tmp_path, "other", 3, vocabulary=("tree", "car"))
    with pytest.raises(ValueError, match="needs at least one domain; got none"):
        open_pool([])
    with pytest.raises(ValueError, match=r"different names; got \['west', 'west'\]"):
        open_pool([tables[0], tables[0]])
    with pytest.raises(ValueError, match=r"share one vocabulary; 'west' has .* 'other' has \('tree', 'car'\)"):
        open_pool([tables[0], other])
    with pytest.raises(ValueError, match=r"photometric copy .* got the domains \['west', 'east'\]"):
        open_pool(tables, pseudo_seed=0)


def test_rows_and_numbers_that_are_not_there_are_refused(tables, open_pool):
    with pytest.raises(ValueError, match="`rows` must have one entry per domain, 2; got 1"):
        open_pool(tables, [[0]])
    for rows in ([], [6], [-1], [1, 1]):
        with pytest.raises(ValueError, match=r"`rows` of 'west' must be different rows in 0 \.\. 5"):
            open_pool(tables, [rows, [0]])
    for index in ([15], [-1], [[0]]):
        with pytest.raises(ValueError, match=r"`index` must be a list of sample numbers in 0 \.\. 14; got"):
            open_pool(tables).gather(index)
