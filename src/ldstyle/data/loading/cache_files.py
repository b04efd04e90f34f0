"""The source files of a cache: their times, their content, and their pixels, each file read once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ldstyle.data.domains.scene_table import Progress, SceneTable
from ldstyle.data.loading.bands import load_image
from ldstyle.data.loading.decode import decode_mask
from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.messages import first_few
from ldstyle.workers import read_ahead

# Threads suffice: Pillow's decoders and hashlib release the interpreter lock.
_THREADS = {"workers": os.cpu_count() or 1, "ahead": 8 * (os.cpu_count() or 1)}


class Times(NamedTuple):
    """What tells that a file may have changed: its length, and when its content and its entry changed, in ns."""

    length: int
    modified: int
    changed: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Times:
        """Take them from a ``stat`` result."""
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@dataclass(frozen=True)
class SourceFile:
    """An image or mask file.

    Attributes:
        key: Path relative to the table's root.
        path: Where it is.
        row: Row of the table it belongs to.
        is_mask: Whether it is the mask of that row.
        times: Its length and times.
        content: Hash of its bytes; empty until they were read.
    """

    key: str
    path: Path
    row: int
    is_mask: bool
    times: Times
    content: str = ""


@dataclass(frozen=True, eq=False)
class Sample:
    """The pixels of one row and the files they came from; ``problem`` is the reason if there are none."""

    sources: tuple[SourceFile, ...]
    image: NDArray[Any] | None
    mask: NDArray[np.uint8] | None
    problem: str = ""


def stat_sources(table: SceneTable) -> list[SourceFile]:
    """List the files of a table by row, each image before its mask.

    Raises:
        FileNotFoundError: Some are missing; the first few are named.
        ValueError: The table has no rows.
    """
    if not len(table):
        raise ValueError(f"A cache needs at least one image; the table of {table.domain!r} is empty.")
    sources: list[SourceFile] = []
    missing: list[str] = []
    for row, key in enumerate(table.keys):
        mask = table.masks[row] if table.masks is not None else None
        for name, is_mask in ((key, False), (mask, True)):
            if name is None:
                continue
            path = table.root / name
            # Not so for pipes, which would be waited on for ever, and for links in a circle.
            if path.is_file():
                sources.append(SourceFile(name, path, row, is_mask, Times.of(path.stat())))
            else:
                missing.append(name)
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} files of {table.domain!r} are missing below '{table.root}': {first_few(missing)}. "
            "See `ldstyle data check`."
        )
    return sources


def hash_sources(
    sources: Sequence[SourceFile],
    known: Mapping[str, tuple[Times, str]],
    *,
    progress: Progress | None = None,
    what: str = "check",
) -> list[SourceFile]:
    """Return the sources with their content hashes; files with the times in ``known`` are not read."""
    hashed = list(sources)
    unread = []
    for i, source in enumerate(sources):
        times, content = known.get(source.key, (None, ""))
        if times == source.times:
            hashed[i] = replace(source, content=content)
        else:
            unread.append(i)
    results = read_ahead(lambda i: _read(sources[i])[0], unread, **_THREADS)
    for done, (i, source) in enumerate(zip(unread, results, strict=True), start=1):
        hashed[i] = source
        if progress:
            progress(done, len(unread), what)
    return hashed


def read_sources(
    table: SceneTable,
    sources: Sequence[SourceFile],
    size: int,
    *,
    progress: Progress | None = None,
    image_format: ImageFormat | None = None,
) -> Iterator[Sample]:
    """Read, hash and decode each row's files, several rows at a time, and yield them in the order of the rows.

    A file that cannot be decoded gives a sample with a ``problem``; a file that cannot be read at all raises.
    """
    rows: list[list[SourceFile]] = [[] for _ in range(len(table))]
    for source in sources:
        rows[source.row].append(source)
    for done, sample in enumerate(read_ahead(lambda row: _load(row, size, image_format), rows, **_THREADS), start=1):
        yield sample
        if progress:
            progress(done, len(rows), table.domain)


def _load(files: Sequence[SourceFile], size: int, image_format: ImageFormat | None) -> Sample:
    pixels: dict[bool, NDArray[Any]] = {}
    hashed: list[SourceFile] = []
    problem = ""
    for file in files:
        source, content = _read(file)
        hashed.append(source)
        try:
            if file.is_mask:
                pixels[True] = decode_mask(Path(file.key), size, content=content)
            else:
                pixels[False] = load_image(Path(file.key), size, image_format, content=content)
        except ValueError as error:
            problem = problem or str(error)
    return Sample(tuple(hashed), pixels.get(False), pixels.get(True), problem)


def _read(source: SourceFile) -> tuple[SourceFile, bytes]:
    """Read a file once for all purposes; its times are those of the very file that was read."""
    with source.path.open("rb") as file:
        times = Times.of(os.fstat(file.fileno()))
        content = file.read()
    return replace(source, times=times, content=hashlib.blake2b(content, digest_size=16).hexdigest()), content
