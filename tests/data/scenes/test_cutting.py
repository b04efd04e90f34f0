from __future__ import annotations

import itertools

import pytest

from ldstyle.data.scenes.cutting import BlockGrid, Position, chunks

GRIDS = [
    BlockGrid(size=size, stride=stride, block=block, gap=gap)
    for size, stride, block, gap in itertools.product((5, 8), (3, 5, 8, 11), (1, 2, 4), (0, 1, 8))
]


@pytest.mark.parametrize("grid", GRIDS)
def test_blocks_are_full_regular_and_as_far_apart_as_the_gap(grid):
    tiles = grid.along(200)
    assert all(tile.offset % grid.stride == 0 and tile.offset + grid.size <= 200 for tile in tiles)
    for one, other in itertools.pairwise(tiles):
        assert one.offset < other.offset
        if one.block == other.block:
            assert other.offset - one.offset == grid.stride
        else:
            assert other.block == one.block + 1
            assert other.offset - (one.offset + grid.size) >= grid.gap
            # One tile more would have come too near.
            assert other.offset - grid.stride - (one.offset + grid.size) < max(grid.gap, 0) or grid.stride >= (
                grid.size + grid.gap
            )
    sizes = [sum(tile.block == block for tile in tiles) for block in range(tiles[-1].block)]
    assert set(sizes) <= {grid.block}


def test_without_gap_and_overlap_every_tile_of_the_scene_is_there():
    grid = BlockGrid(size=10, stride=10, block=2, gap=0)
    assert grid.along(59) == [Position(0, 0), Position(10, 0), Position(20, 1), Position(30, 1), Position(40, 2)]


def test_a_gap_of_a_tile_leaves_no_neighbours_in_two_blocks():
    tiles = BlockGrid(size=10, stride=10, block=2, gap=10).along(80)
    assert [(tile.offset, tile.block) for tile in tiles] == [(0, 0), (10, 0), (30, 1), (40, 1), (60, 2), (70, 2)]


def test_runs_keep_order_and_length():
    tiles = BlockGrid(size=10, stride=10, block=9, gap=0).along(70)
    assert [[tile.offset for tile in run] for run in chunks(tiles, 30)] == [[0, 10, 20], [30, 40, 50], [60]]
    assert [len(run) for run in chunks(tiles, 1)] == [1] * 7


@pytest.mark.parametrize("wrong", [{"size": 0}, {"stride": 0}, {"block": 0}, {"gap": -1}])
def test_impossible_grids_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"--{name} must be at least"):
        BlockGrid(**({"size": 4, "stride": 4, "block": 1, "gap": 0} | wrong))
