"""The printed figures agree with each other as far as their rounding allows."""

from __future__ import annotations

import pytest

from ldstyle.benchmark.grid.methods import PAPER_METHODS
from ldstyle.benchmark.paper import TABLE_1, TABLE_3, TABLE_7, TABLE_8, TABLE_9, TABLES_BY_TARGET, TILES
from ldstyle.data.domains.scene_table import PAPER_VOCABULARY

ROUNDING = 0.05 + 1e-9


def test_the_split_tables_hold_every_method_in_the_papers_order():
    for table in (*TABLES_BY_TARGET.values(), TABLE_7):
        assert tuple(table) == PAPER_METHODS
    assert set(TABLES_BY_TARGET) == set(TABLE_1) == set(TABLE_3) == set(TILES)


@pytest.mark.parametrize("method", PAPER_METHODS)
def test_the_summary_follows_from_the_split_tables(method):
    average = sum(table[method].map.mean for table in TABLES_BY_TARGET.values()) / 3
    # Three rounded figures are averaged and compared with a rounded one.
    assert average == pytest.approx(TABLE_7[method].average, abs=2 * ROUNDING)
    if method != "erm":
        gain = TABLE_7[method].average - TABLE_7["erm"].average
        assert gain == pytest.approx(TABLE_7[method].gain, abs=3 * ROUNDING)


@pytest.mark.parametrize("target", TABLES_BY_TARGET)
def test_map_is_the_mean_of_the_labels(target):
    for row in TABLES_BY_TARGET[target].values():
        assert tuple(row.ap) == PAPER_VOCABULARY
        assert sum(row.ap.values()) / 6 == pytest.approx(row.map.mean, abs=2 * ROUNDING)


def test_the_full_models_of_the_ablations_are_rows_of_split_1_and_changes_follow():
    for name, row in TABLE_8.items():
        full = TABLE_8[name.partition(".")[0]]
        if row.change is None:
            split = TABLES_BY_TARGET["ucm"][name]
            assert (row.map, row.cf1, row.of1) == (split.map, split.cf1, split.of1)
        else:
            assert row.map.mean - full.map.mean == pytest.approx(row.change, abs=3 * ROUNDING)
    assert len(TABLE_8) == 9


def test_labels_per_image_follow_from_the_counts():
    for statistics in TABLE_1.values():
        mean = sum(statistics.positives.values()) / statistics.images
        assert mean == pytest.approx(statistics.labels_per_image, abs=0.005)


def test_learned_attention_adds_the_share_of_parameters_that_is_printed():
    plain, learned = TABLE_9["global"], TABLE_9["llam"]
    assert 100 * (learned.parameters / plain.parameters - 1) == pytest.approx(learned.added, abs=0.05)
    assert TABLE_9["gradcam"].parameters == plain.parameters
    assert {row.macs for row in TABLE_9.values()} == {4.087}
