from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ldstyle.data.domains.digest import content_digest
from ldstyle.data.domains.scene_table import SceneTable

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
