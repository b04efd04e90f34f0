from pathlib import Path

import numpy as np
import pytest

from ldstyle.data.domains.scene_table import PAPER_VOCABULARY, SceneTable
from ldstyle.data.domains.table1 import PAPER_TABLE_1, Statistics, count, differences, tabulate


def make(labels, *, domain="mine", vocabulary=("tree", "car", "ship"), archive=None):
    keys = tuple(f"{i}.png" for i in range(len(labels)))
    return SceneTable(domain, Path("nowhere"), vocabulary, keys, np.array(labels, dtype=np.int8), archive=archive)


def test_counts_are_of_present_labels_and_an_unknown_label_has_none():
    here = count(make([[1, -1, -1], [1, 0, -1], [0, 0, -1], [-1, 0, -1]]))
    assert here == Statistics(4, 0.5, {"tree": 2, "car": 0, "ship": None})


@pytest.mark.parametrize("domain", ["ucm", "aid", "dfc15"])
def test_the_printed_columns_agree_with_themselves(domain):
    paper = PAPER_TABLE_1[domain]
    assert tuple(paper.positives) == PAPER_VOCABULARY
    assert round(sum(paper.positives.values()) / paper.images, 2) == paper.labels_per_image


def test_differences_from_the_paper_are_those_of_official_downloads():
    paper = PAPER_TABLE_1["aid"]
    labels = np.zeros((3000, 6), dtype=np.int8)
    for i, number in enumerate(paper.positives.values()):
        labels[:number, i] = 1
    as_printed = make(labels, domain="aid", vocabulary=PAPER_VOCABULARY, archive="aid")
    assert differences(as_printed) == []
    labels[2406, 2] = 1
    released = make(labels, domain="elsewhere", vocabulary=PAPER_VOCABULARY, archive="aid")
    assert differences(released) == ["elsewhere: tree 2407, the paper has 2406"]
    assert differences(make(labels, domain="aid", vocabulary=PAPER_VOCABULARY)) == []


def test_a_difference_stands_beside_the_count():
    labels = [[1, 0, 0, 0, 0, 0]] * 700
    header, rows = tabulate([make(labels, domain="ucm", vocabulary=PAPER_VOCABULARY, archive="ucm")], marked=True)
    table = {row[0]: row[1:] for row in rows}
    assert header == ["statistic", "ucm", "ucm (paper)"]
    assert table["images"] == ["700 (-1400)", "2100"]
    assert table["building"] == ["700 (+9)", "691"]
    assert table["files found"] == ["0", ""]
    _, plain = tabulate([make(labels, domain="ucm", vocabulary=PAPER_VOCABULARY, archive="ucm")])
    assert plain[4] == ["building", "700", "691"]


def test_own_domains_stand_without_a_second_column():
    header, rows = tabulate([make([[1, -1, -1], [0, 1, -1]]), make([[0, 0, 0]], domain="other")])
    assert header == ["statistic", "mine", "other"]
    assert rows == [
        ["images", "2", "1"],
        ["files found", "0", "0"],
        ["labels per image", "1.00", "0.00"],
        ["without label", "0", "1"],
        ["tree", "1", "0"],
        ["car", "1", "0"],
        ["ship", "unknown", "0"],
    ]
