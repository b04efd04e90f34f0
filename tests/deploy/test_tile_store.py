from __future__ import annotations

import numpy as np
import pytest

from ldstyle.deploy.tile_store import TileStore

ROWS = np.random.default_rng(0).random((4, 3, 2)).astype(np.float32)


def open_store(folder, **identity):
    return TileStore(folder / "map.tif.tiles", columns=3, labels=2, identity={"scene": "a"} | identity)


def test_rows_are_there_when_opened_again(tmp_path):
    store = open_store(tmp_path)
    for row in ROWS[:2]:
        store.append(row)
    again = open_store(tmp_path)
    assert len(again) == 2
    again.append(ROWS[2])
    np.testing.assert_array_equal(again.rows(), ROWS[:3])


def test_a_torn_row_is_dropped(tmp_path):
    open_store(tmp_path).append(ROWS[0])
    with (tmp_path / "map.tif.tiles").open("ab") as file:
        file.write(ROWS[1].tobytes()[:-1])
    store = open_store(tmp_path)
    assert len(store) == 1
    store.append(ROWS[3])
    np.testing.assert_array_equal(store.rows(), ROWS[[0, 3]])


def test_rows_of_another_scene_or_model_are_thrown_away(tmp_path):
    open_store(tmp_path).append(ROWS[0])
    assert len(open_store(tmp_path, model="other")) == 0


def test_nothing_is_left_after_removal(tmp_path):
    store = open_store(tmp_path / "new")
    store.append(ROWS[0])
    store.remove()
    assert list((tmp_path / "new").iterdir()) == []


def test_rows_of_another_shape_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`row` must have shape \(3, 2\); got \(2, 3\)"):
        open_store(tmp_path).append(ROWS[0].T)
