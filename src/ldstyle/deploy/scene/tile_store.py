"""Values of tiles on disk, appended row by row, so that an interrupted map resumes where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ldstyle.files import replace_text

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
