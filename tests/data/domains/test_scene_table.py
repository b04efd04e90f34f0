from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ldstyle.data.domains.scene_table import SceneTable, content_digest, fail, file_stem


def make(**changes):
    fields = {
        "domain": "here",
        "root": Path("data"),
        "vocabulary": ("tree", "car"),
        "keys": ("a.png", "b/c.png", "d.png"),
        "labels": np.array([[1, 0], [-1, 1], [0, 0]], dtype=np.int8),
        "masks": ("m/a.png", None, "m/d.png"),
        "groups": ("x", "x", "y"),
        "mask_bits": ((1,), (0, 2)),
    }
    return SceneTable(**{**fields, **changes})


def test_select_keeps_each_row_together_in_the_order_given():
    table = make().select(np.array([2, 0]))
    assert table.keys == ("d.png", "a.png")
    assert table.masks == ("m/d.png", "m/a.png")
    assert table.groups == ("y", "x")
    assert table.labels.tolist() == [[0, 0], [1, 0]]
    assert (table.domain, table.vocabulary, table.mask_bits) == ("here", ("tree", "car"), ((1,), (0, 2)))
    assert len(make().select([])) == 0


def test_a_path_lies_below_the_root():
    assert make().path(1) == Path("data/b/c.png")


def test_regions_follow_the_bits_of_the_mask():
    bits = np.arange(8, dtype=np.uint8).reshape(1, 2, 4)
    tree = [[value & 2 > 0 for value in row] for row in bits[0].tolist()]
    car = [[value & 1 > 0 or value & 4 > 0 for value in row] for row in bits[0].tolist()]
    assert make().regions(bits).tolist() == [[tree, car]]
    first = [[value & 1 > 0 for value in row] for row in bits[0].tolist()]
    assert make(mask_bits=None).regions(bits[0]).tolist() == [first, tree]
    assert not make(mask_bits=((), (0,))).regions(bits)[0, 0].any()


def test_labels_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        make().labels[0, 0] = 0


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"labels": np.zeros((3, 2))}, TypeError, r"`labels` must be int8; got float64"),
        ({"labels": np.zeros((2, 2), np.int8)}, ValueError, r"\(N, L\) = \(3, 2\).*got \(2, 2\)"),
        ({"labels": np.full((3, 2), 2, np.int8)}, ValueError, r"1 \(present\), 0 \(absent\) or -1 \(unknown\)"),
        ({"keys": ("a", "a", "b")}, ValueError, "must be unique"),
        ({"masks": (None,)}, ValueError, "`masks` must have one entry per key, 3; got 1"),
        ({"groups": ("x",) * 4}, ValueError, "`groups` must have one entry per key, 3; got 4"),
        ({"mask_bits": ((0,),)}, ValueError, "`mask_bits` must have one entry per label, 2; got 1"),
    ],
)
def test_a_table_that_does_not_fit_together_is_refused(changes, error, match):
    with pytest.raises(error, match=match):
        make(**changes)


def test_the_strict_report_raises_what_it_is_given():
    with pytest.raises(FileNotFoundError, match="gone"):
        fail(FileNotFoundError("gone"))


@pytest.mark.parametrize("name", ["ucm", "My city 2", "münchen", "a+b", "x.y-z_1"])
def test_ordinary_names_are_file_names(name):
    assert file_stem(name) == name


def test_names_that_are_no_file_names_are_written_as_different_ones(tmp_path):
    names = [
        "2020/spring",
        "2020%2Fspring",
        "2020\\spring",
        "..",
        ".",
        "",
        "a\0b",
        "a\nb",
        'q:*?"<>|',
        "x" * 300,
        "x" * 301,
    ]
    stems = [file_stem(name) for name in names]
    assert len(set(stems)) == len(names)
    assert file_stem("2020/spring") == "2020%2Fspring"
    for stem in stems:
        (tmp_path / f"predictions-{stem}.safetensors").write_text("")
    assert len(list(tmp_path.iterdir())) == len(names)
    assert not any(stem.startswith(".") for stem in stems)


TABLE = SceneTable(
    "city",
    Path("/nowhere"),
    ("tree", "car"),
    ("a.png", "b.png"),
    np.array([[1, 0], [-1, 1]], dtype=np.int8),
    masks=("a.mask.png", None),
    groups=("x", "y"),
)
FILES = ("one", "two")


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": np.array([[0, 0], [-1, 1]], dtype=np.int8)},
        {"labels": np.array([[1, 0], [0, 1]], dtype=np.int8)},
        {"groups": ("x", "x")},
        {"keys": ("a.png", "c.png")},
        {"mask_bits": ((1,), (0,))},
        {"vocabulary": ("tree", "ship")},
    ],
)
def test_whatever_changes_training_changes_the_digest(changed):
    assert content_digest(replace(TABLE, **changed), FILES) != content_digest(TABLE, FILES)


def test_the_content_of_a_file_changes_the_digest():
    assert content_digest(TABLE, ("one", "2")) != content_digest(TABLE, FILES)


def test_the_order_of_rows_does_not_change_the_digest():
    assert content_digest(TABLE.select([1, 0]), FILES[::-1]) == content_digest(TABLE, FILES)


def test_labels_that_other_domains_add_do_not_change_the_digest():
    labels = np.array([[-1, 1, 0], [-1, -1, 1]], dtype=np.int8)
    wider = replace(TABLE, vocabulary=("ship", "tree", "car"), labels=labels, mask_bits=((), (0,), (1,)))
    assert content_digest(wider, FILES) == content_digest(TABLE, FILES)
