"""The grid of overlapping tiles over a scene, and the blend of their values; independent of rasters and networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TileGrid:
    """Square tiles over a scene, a stride apart; the scene is cut into cells of one stride, the locations of the map.

    Tile (r, c) starts at pixel (r · stride, c · stride) and covers ``overlap`` × ``overlap`` cells. The last tiles may
    reach past the scene by less than a stride, or by more if the scene is smaller than a tile.

    Attributes:
        height: Height of the scene in pixels.
        width: Width of the scene in pixels.
        tile: Side of a tile in pixels.
        overlap: Cells along the side of a tile, a divisor of ``tile``: 1 is no overlap, 2 overlaps the next by half.
    """

    height: int
    width: int
    tile: int
    overlap: int

    def __post_init__(self) -> None:
        if self.overlap < 1 or self.tile % self.overlap:
            raise ValueError(f"`overlap` must divide the tile of {self.tile} px; got {self.overlap}.")

    @property
    def stride(self) -> int:
        """Pixels between tiles, and along the side of a cell."""
        return self.tile // self.overlap

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of cells; the last ones may be partly outside."""
        return -(-self.height // self.stride), -(-self.width // self.stride)

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles."""
        rows, columns = self.cells
        return max(1, rows - self.overlap + 1), max(1, columns - self.overlap + 1)

    def start(self, row: int, column: int) -> tuple[int, int]:
        """Return the first pixel of a tile."""
        return row * self.stride, column * self.stride


def cell_weights(overlap: int) -> NDArray[np.float64]:
    """Return the weight of a tile in each of its cells, (K, K): a pyramid, highest at the centre of the tile."""
    ramp = np.minimum(np.arange(overlap) + 0.5, overlap - np.arange(overlap) - 0.5)
    return np.outer(ramp, ramp)


def blend_rows(
    rows: Sequence[NDArray[np.float32]] | NDArray[np.float32], grid: TileGrid
) -> Iterator[NDArray[np.float32]]:
    """Average overlapping tiles, one row of cells at a time, so that memory does not grow with the scene's height.

    Args:
        rows: Values of the tiles, (R, C, L) or R arrays (C, L); NaN where a tile has none, or a label in all tiles.
        grid: Where the tiles are.

    Yields:
        Values of a row of cells, (L, columns); NaN where no tile has a value.
    """
    overlap, (cell_rows, cell_columns) = grid.overlap, grid.cells
    weights = cell_weights(overlap)
    tile_rows, tile_columns = grid.tiles
    for cell_row in range(cell_rows):
        total: NDArray[np.float64] | None = None
        mass = np.zeros(cell_columns + overlap)
        for r in range(max(0, cell_row - overlap + 1), min(cell_row, tile_rows - 1) + 1):
            values = np.asarray(rows[r], dtype=np.float64)
            known = np.asarray(~np.isnan(values).all(axis=1))
            filled = np.where(known[:, None], values, 0)
            if total is None:
                total = np.zeros((cell_columns + overlap, values.shape[1]))
            for k, weight in enumerate(weights[cell_row - r]):
                total[k : k + tile_columns] += weight * filled
                mass[k : k + tile_columns] += weight * known
        assert total is not None
        with np.errstate(invalid="ignore"):
            blended: NDArray[np.float32] = (total / mass[:, None]).astype(np.float32)
        yield blended[:cell_columns].T
