from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tolerance import bound

from ldstyle.deploy.scene.tiles import TileGrid, TileStore, blend_rows, cell_weights


def oracle(values, grid):
    """Blend by loops over cells and tiles, weights by the distance of cell and tile centres."""
    rows, columns = grid.cells
    result = np.full((values.shape[2], rows, columns), np.nan)
    reach = grid.tile / 2
    for y in range(rows):
        for x in range(columns):
            total, mass = np.zeros(values.shape[2]), 0.0
            for r in range(values.shape[0]):
                for c in range(values.shape[1]):
                    top, left = grid.start(r, c)
                    dy = abs((y + 0.5) * grid.stride - (top + reach))
                    dx = abs((x + 0.5) * grid.stride - (left + reach))
                    if dy < reach and dx < reach and not np.isnan(values[r, c]).any():
                        total += (reach - dy) * (reach - dx) * values[r, c]
                        mass += (reach - dy) * (reach - dx)
            if mass:
                result[:, y, x] = total / mass
    return result


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    stride=st.integers(3, 9),
    overlap=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_tiles_are_blended_as_by_loops(height, width, stride, overlap, seed):
    grid = TileGrid(height, width, stride * overlap, overlap)
    generator = np.random.default_rng(seed)
    values = generator.random((*grid.tiles, 2)).astype(np.float32)
    values[generator.random(grid.tiles) < 0.2] = np.nan
    found = np.stack(list(blend_rows(values, grid)), axis=1)
    # Weighted means of at most 4 · 4 positive values: no cancellation, so the error is relative.
    np.testing.assert_allclose(found, oracle(values, grid), rtol=bound(4 * 16, dtype=torch.float32))


@given(height=st.integers(1, 99), width=st.integers(1, 99), stride=st.integers(1, 9), overlap=st.integers(1, 4))
def test_every_pixel_is_under_a_tile_and_no_tile_is_outside(height, width, stride, overlap):
    grid = TileGrid(height, width, stride * overlap, overlap)
    covered = np.zeros((height, width), dtype=bool)
    for r in range(grid.tiles[0]):
        for c in range(grid.tiles[1]):
            top, left = grid.start(r, c)
            assert top < height
            assert left < width
            covered[top : top + grid.tile, left : left + grid.tile] = True
    assert covered.all()
    assert all(cells * stride >= side for cells, side in zip(grid.cells, (height, width), strict=True))


def test_equal_tiles_blend_to_themselves():
    grid = TileGrid(70, 50, 16, 4)
    values = np.full((*grid.tiles, 3), 0.25, dtype=np.float32)
    assert all((row == 0.25).all() for row in blend_rows(values, grid))


def test_without_overlap_cells_are_tiles():
    grid = TileGrid(30, 45, 10, 1)
    values = np.random.default_rng(0).random((3, 5, 2)).astype(np.float32)
    found = np.stack(list(blend_rows(values, grid)))
    np.testing.assert_array_equal(found, values.transpose(0, 2, 1))


def test_weights_fall_from_the_middle():
    np.testing.assert_allclose(cell_weights(4)[1] / cell_weights(4)[0, 0], [3, 9, 9, 3])
    np.testing.assert_allclose(cell_weights(3)[1], np.array([0.5, 1.5, 0.5]) * 1.5)


def test_tiles_that_cells_do_not_fill_are_refused():
    with pytest.raises(ValueError, match="`overlap` must divide the tile of 10 px; got 3"):
        TileGrid(10, 10, 10, 3)


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
