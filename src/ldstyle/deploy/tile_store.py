"""Values of tiles on disk, appended row by row, so that an interrupted map goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.training.atomic import replace_text


class TileStore:
    """Rows of tiles that are finished.

    Args:
        path: File of the values; a description lies beside it.
        columns: Tiles per row.
        labels: Values per tile.
        identity: What the values depend on; rows of another identity are thrown away.
    """

    def __init__(self, path: Path, *, columns: int, labels: int, identity: Mapping[str, Any]) -> None:
        self.path, self.shape = path, (columns, labels)
        self._description = path.with_name(f"{path.name}.json")
        self._row_bytes = columns * labels * np.dtype(np.float32).itemsize
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(identity, sort_keys=True)
        if not self._description.is_file() or self._description.read_text(encoding="utf-8") != text:
            path.unlink(missing_ok=True)
            replace_text(self._description, text)
        path.touch()
        # A row that was being written when the process ended is not whole.
        os.truncate(path, len(self) * self._row_bytes)

    def __len__(self) -> int:
        return self.path.stat().st_size // self._row_bytes

    def append(self, row: NDArray[np.float32]) -> None:
        """Add a row of tiles, (columns, labels)."""
        if row.shape != self.shape:
            raise ValueError(f"`row` must have shape {self.shape}; got {row.shape}.")
        with self.path.open("ab") as file:
            file.write(np.ascontiguousarray(row, dtype=np.float32).tobytes())
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> NDArray[np.float32]:
        """Return all rows, (R, columns, labels), left on disk until used."""
        return np.memmap(self.path, dtype=np.float32, mode="r", shape=(len(self), *self.shape))

    def remove(self) -> None:
        """Delete the files."""
        self.path.unlink(missing_ok=True)
        self._description.unlink(missing_ok=True)
