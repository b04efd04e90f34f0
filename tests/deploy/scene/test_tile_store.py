from __future__ import annotations

import numpy as np
import pytest

from ldstyle.deploy.scene.tile_store import TileStore

ROWS = np.random.default_rng(0).random((4, 3, 2)).astype(np.float32)


def open_store(folder, **identity):
    return TileStore(folder / "map.tif.tiles", rows=4, columns=3, labels=2, identity={"scene": "a"} | identity)


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
    assert (len(store), store.dropped) == (1, 1)
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


@pytest.mark.parametrize("byte", [0, 11, 23, 24, 39])
def test_rows_from_the_first_damaged_one_on_are_dropped(tmp_path, byte):
    store = open_store(tmp_path)
    for row in ROWS[:3]:
        store.append(row)
    content = bytearray(store.path.read_bytes())
    content[len(content) // 3 + byte] ^= 1
    store.path.write_bytes(content)
    again = open_store(tmp_path)
    assert (len(again), again.dropped) == (1, 2)
    np.testing.assert_array_equal(again.rows(), ROWS[:1])


def test_rows_in_another_order_are_dropped(tmp_path):
    store = open_store(tmp_path)
    for row in ROWS[:2]:
        store.append(row)
    content = store.path.read_bytes()
    half = len(content) // 2
    store.path.write_bytes(content[half:] + content[:half])
    assert len(open_store(tmp_path)) == 0


def test_rows_beyond_the_grid_are_dropped(tmp_path):
    store = open_store(tmp_path)
    for row in (*ROWS, ROWS[0]):
        store.append(row)
    again = open_store(tmp_path)
    assert (len(again), again.dropped) == (4, 1)
    np.testing.assert_array_equal(again.rows(), ROWS)


def test_a_damaged_description_starts_anew(tmp_path):
    open_store(tmp_path).append(ROWS[0])
    (tmp_path / "map.tif.tiles.json").write_bytes(b"\xff")
    assert len(open_store(tmp_path)) == 0
