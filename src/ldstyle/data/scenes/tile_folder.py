"""The folder of the tiles: its manifest, its finished tasks, and its table of labels."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ldstyle.files import explained, replace_file, replace_text
from ldstyle.messages import first_few

MANIFEST = "tiles.json"
TABLE = "labels.csv"
IMAGES, MASKS = "images", "masks"
_JOURNAL = "tiles.jsonl"
_LOCK = ".tiles.lock"
_PARTIAL = ".tmp"


@dataclass(frozen=True)
class TileRow:
    """A tile that is on disk.

    Attributes:
        name: File name without suffix.
        sizes: Bytes of the image and, if there is one, of the mask.
        scene: Block of the scene it belongs to.
        domain: Its domain.
        labels: 1, 0, or -1 where unknown.
        gsd: Metres per pixel, or ``None`` if unknown.
    """

    name: str
    sizes: tuple[int, ...]
    scene: str
    domain: str
    labels: tuple[int, ...]
    gsd: float | None = None

    def files(self) -> tuple[str, ...]:
        """Return image and mask, relative to the folder."""
        return (f"{IMAGES}/{self.name}.tif", f"{MASKS}/{self.name}.png")[: len(self.sizes)]


class TileFolder:
    """A folder of tiles that grows task by task and can be left at any time.

    A finished task is a line of the journal; lines whose files are not there as they were written, and all after them,
    are dropped when the folder is opened.

    Args:
        out: The folder; it is made. One that exists must be empty or of the same manifest.
        manifest: Everything the tiles depend on.

    Raises:
        FileExistsError: The folder holds something else.
    """

    def __init__(self, out: Path, manifest: Mapping[str, Any]) -> None:
        self.path = out
        self._journal = out / _JOURNAL
        text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
        self._require_own(text)
        for name in (IMAGES, MASKS):
            (out / name).mkdir(parents=True, exist_ok=True)
            for partial in (out / name).glob(f".*{_PARTIAL}"):
                partial.unlink(missing_ok=True)
        if not (out / MANIFEST).exists():
            replace_text(out / MANIFEST, text)
        self._journal.touch()
        self.done, whole = self._whole_lines()
        os.truncate(self._journal, whole)

    def append(self, rows: Sequence[TileRow]) -> None:
        """Note that the next task is finished."""
        line = json.dumps([[row.name, row.sizes, row.scene, row.domain, row.labels, row.gsd] for row in rows])
        with explained(self._journal), self._journal.open("ab") as file:
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        self.done += 1

    def rows(self) -> Iterator[TileRow]:
        """Read the tiles of all finished tasks, one line at a time."""
        with self._journal.open("rb") as file:
            for line in file:
                yield from _parse(line)

    def write_table(self, vocabulary: Sequence[str], *, masks: bool) -> None:
        """Write ``labels.csv``, with a column ``gsd`` if the metres per pixel of any tile are known."""
        scaled = any(row.gsd is not None for row in self.rows())

        def write(file: Any) -> None:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
            table = csv.writer(text, lineterminator="\n")
            gsd = ["gsd"] if scaled else []
            table.writerow(["path", *(["mask"] if masks else []), "scene", "domain", *gsd, *vocabulary])
            for row in self.rows():
                gsd = ["" if row.gsd is None else f"{row.gsd:.6g}"] if scaled else []
                table.writerow([*row.files(), row.scene, row.domain, *gsd, *("" if v < 0 else v for v in row.labels)])
            text.detach()

        replace_file(self.path / TABLE, write)

    def _require_own(self, manifest: str) -> None:
        known = {MANIFEST, TABLE, IMAGES, MASKS, _JOURNAL, _LOCK, f"{TABLE}{_PARTIAL}", f"{MANIFEST}{_PARTIAL}"}
        found = {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()
        way_out = "Choose another --out, or move it away."
        if foreign := sorted(found - known):
            raise FileExistsError(
                f"Tiles never go among other files; '{self.path}' also holds {first_few(foreign)}. {way_out}"
            )
        if found - {_LOCK} and MANIFEST not in found:
            raise FileExistsError(
                f"Tiles never go among other files; '{self.path}' was not written by `data tile`. {way_out}"
            )
        if MANIFEST in found and (self.path / MANIFEST).read_text(encoding="utf-8") != manifest:
            if any((self.path / IMAGES).glob("*")):
                raise FileExistsError(
                    f"'{self.path}' holds tiles of other scenes, labels or options, or these have changed since. "
                    f"{way_out}"
                )
            # Nothing was written, e.g. because no tile had enough data.
            for name in (MANIFEST, _JOURNAL):
                (self.path / name).unlink(missing_ok=True)

    def _whole_lines(self) -> tuple[int, int]:
        """Count the lines, and their bytes, before the first one that is torn or whose files are not as written."""
        number = end = 0
        with self._journal.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n") or not all(map(self._is_there, _parse(line))):
                    break
                number, end = number + 1, end + len(line)
        return number, end

    def _is_there(self, row: TileRow) -> bool:
        try:
            return all((self.path / n).stat().st_size == size for n, size in zip(row.files(), row.sizes, strict=True))
        except FileNotFoundError:
            return False


def put(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it; it is not forced to disk, since its size is checked later."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    with explained(path):
        partial.write_bytes(content)
        partial.replace(path)


def _parse(line: bytes) -> list[TileRow]:
    return [
        TileRow(name, tuple(sizes), scene, domain, tuple(labels), *gsd)
        for name, sizes, scene, domain, labels, *gsd in json.loads(line)
    ]


@contextmanager
def sole_writer(out: Path, path: Path | None = None) -> Iterator[None]:
    """Refuse a second process that would write the same output, by a lock that ends with the process.

    Args:
        out: Folder or file to write.
        path: The lock; by default a file in the folder, which is made.
    """
    path = path or out / _LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"Another process is writing to '{out}'. Wait until it has ended, or choose another --out."
        ) from None
    try:
        yield
    finally:
        lock.release()
