"""Overlapping tiles over a scene: their grid, the blend of their values, and their store on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.files import replace_text


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


_DIGEST_BYTES = 16


class TileStore:
    """Finished rows of tiles, each with a checksum of its values, its number and the identity.

    One process at a time may open it. When it is opened, all rows from the first damaged one on are dropped.

    Args:
        path: File of the values; a description is written next to it.
        rows: Rows of tiles; rows stored beyond them are dropped.
        columns: Tiles per row.
        labels: Values per tile.
        identity: Everything the values depend on; rows of another identity are dropped.

    Attributes:
        dropped: Damaged or surplus rows that were dropped; a torn last row counts too.
    """

    def __init__(self, path: Path, *, rows: int, columns: int, labels: int, identity: Mapping[str, Any]) -> None:
        self.path, self.shape = path, (columns, labels)
        self._description = path.with_name(f"{path.name}.json")
        self._row = np.dtype([("values", np.float32, self.shape), ("digest", np.void, _DIGEST_BYTES)])
        path.parent.mkdir(parents=True, exist_ok=True)
        self._identity = json.dumps({**identity, "rows": [rows, columns, labels]}, sort_keys=True)
        if self._stored_identity() != self._identity:
            path.unlink(missing_ok=True)
            replace_text(self._description, self._identity)
        path.touch()
        stored = path.stat().st_size
        whole = self._whole_rows(rows)
        self.dropped = -(-(stored - whole * self._row.itemsize) // self._row.itemsize)
        os.truncate(path, whole * self._row.itemsize)

    def __len__(self) -> int:
        return self.path.stat().st_size // self._row.itemsize

    def append(self, row: NDArray[np.float32]) -> None:
        """Add a row of tiles, (columns, labels)."""
        if row.shape != self.shape:
            raise ValueError(f"`row` must have shape {self.shape}; got {row.shape}.")
        values = np.ascontiguousarray(row, dtype=np.float32).tobytes()
        digest = self._digest(len(self), values)
        with self.path.open("ab") as file:
            file.write(values + digest)
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> NDArray[np.float32]:
        """Return all rows, (R, columns, labels), left on disk until used."""
        rows: NDArray[np.float32] = np.memmap(self.path, dtype=self._row, mode="r", shape=(len(self),))["values"]
        return rows

    def remove(self) -> None:
        """Delete the files."""
        self.path.unlink(missing_ok=True)
        self._description.unlink(missing_ok=True)

    def _stored_identity(self) -> str | None:
        try:
            return self._description.read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            return None

    def _whole_rows(self, most: int) -> int:
        """Count the rows before the first damaged or surplus one."""
        with self.path.open("rb") as file:
            for number in range(most):
                record = file.read(self._row.itemsize)
                values = record[:-_DIGEST_BYTES]
                if len(record) < self._row.itemsize or record[-_DIGEST_BYTES:] != self._digest(number, values):
                    return number
        return most

    def _digest(self, number: int, values: bytes) -> bytes:
        digest = hashlib.sha256(f"{self._identity}\n{number}\n".encode())
        digest.update(values)
        return digest.digest()[:_DIGEST_BYTES]
