"""Images decoded and resized once: a file of bytes per domain and size, named by the content it was made from.

A cache folder holds, for each (domain, size),

- ``<domain>-<size>px-<digest>/``: ``images.u8`` (``images.u16`` for deep images), ``masks.u8`` if there are masks, and
  ``header.json``. The digest is of the bytes of the source files, so equal data share a cache wherever they are stored,
  and of bands and range unless the images are 8-bit RGB. The folder is written under another name and renamed when it
  is complete.
- ``<domain>-<size>px-<location>.sources.json``: size, times and content hash of each source file in one folder.
  While the times are unchanged, opening costs one ``stat`` per file; a file whose times changed is hashed again, and a
  cache is rebuilt only if its content changed.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from ldstyle.data.domains.scene_table import Progress, SceneTable, file_stem
from ldstyle.data.loading.cache_files import SourceFile, Times, hash_sources, read_sources, stat_sources
from ldstyle.data.loading.decode import require_side
from ldstyle.data.loading.image_format import ImageFormat
from ldstyle.messages import kinds_of

FORMAT = 2
"""Version of the layout and of the decoding rules; a change of either makes new caches."""

WAIT_SECONDS = 1.0
"""Time between two reports that another process builds the cache."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ImageCache:
    """The decoded images of one domain at one size.

    Attributes:
        images: Values, (N, C, S, S) uint8 or uint16, mapped from disk; writes go to memory, never to the file.
        masks: Mask bits as stored, (N, S, S) uint8, or ``None``; a sample without a mask has none of the bits.
        digest: Content the cache was made from: 32 hexadecimal digits.
        path: Folder of the cache.
        files: Content hashes of each row's image and mask, as text.
    """

    images: NDArray[Any]
    masks: NDArray[np.uint8] | None
    digest: str
    path: Path
    files: tuple[str, ...]


def open_cache(
    table: SceneTable,
    *,
    size: int,
    cache_dir: Path,
    progress: Progress | None = None,
    verify: Literal["times", "content"] = "times",
    image_format: ImageFormat | None = None,
) -> ImageCache:
    """Open the cache of a domain; build it if it is missing, damaged, or its sources changed.

    Several processes may do so at once: one builds, the others wait and open what it built.

    Args:
        table: The domain.
        size: Side S of the images in pixels.
        cache_dir: Folder of the caches; it is made if missing.
        progress: Called with the work done.
        verify: ``times`` trusts files with the recorded size and times; ``content`` hashes all of them again,
            sources and cache alike.
        image_format: Bands and range of the images; ``None`` for 8-bit RGB.

    Raises:
        FileNotFoundError: Source files are missing.
        ValueError: Source files cannot be decoded; the first few are named with the reason.
        OSError: The cache cannot be written, e.g. because the disk is full. No partial cache is left.
    """
    require_side(size)
    sources = stat_sources(table)
    name = f"{file_stem(table.domain)}-{size}px"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(f"`cache_dir` must be a folder; '{cache_dir}' is a file, or inside a file.") from None
    with _sole_builder(cache_dir / f".{name}.lock", table, progress) as writable:
        record = cache_dir / f"{name}-{_place(table)}.sources.json"
        known = {} if verify == "content" else _read_record(record)
        if any(cache_dir.glob(f"{glob.escape(name)}-*/header.json")):
            sources = hash_sources(sources, known, progress=progress, what=f"check {table.domain}")
            folder = cache_dir / f"{name}-{_digest(sources, size, image_format)}"
            if _is_whole(folder, verify):
                _write_record(record, sources, known)
                return _open(folder, sources, len(table), size, image_format)
        if not writable:
            raise PermissionError(
                f"`cache_dir` '{cache_dir}' cannot be written, and it holds no complete cache of {table.domain!r} at "
                f"{size} px. Choose another cache folder."
            )
        partial = cache_dir / f".{name}.partial"
        with _complete_or_absent(partial, table.domain):
            hashed = _build(partial, table, sources, size, progress, image_format)
            digest = _digest(hashed, size, image_format)
            final = cache_dir / f"{name}-{digest}"
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        _write_record(record, hashed, known)
        return _open(final, hashed, len(table), size, image_format)


@contextmanager
def _sole_builder(path: Path, table: SceneTable, progress: Progress | None) -> Iterator[bool]:
    """Hold a lock; yield whether there is one, for a folder that cannot be written needs none to be read."""
    lock = FileLock(path)
    while True:
        try:
            lock.acquire(timeout=WAIT_SECONDS)
        except Timeout:
            # A request to stop is answered here.
            if progress:
                progress(0, len(table), f"wait for {table.domain}")
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            yield False
            return
        else:
            break
    try:
        yield True
    finally:
        lock.release()


def _place(table: SceneTable) -> str:
    return hashlib.blake2b(str(table.root.resolve()).encode(), digest_size=6).hexdigest()


def _digest(sources: Sequence[SourceFile], size: int, image_format: ImageFormat | None) -> str:
    """Return the digest of what the cache depends on: the rules, the size, and the content of the files in order."""
    rules: list[Any] = [FORMAT, size]
    if image_format is not None:  # names change nothing
        described = {key: value for key, value in image_format.describe().items() if key != "names"}
        rules.append({"nodata": "filled", **described})
    state = hashlib.blake2b(json.dumps(rules).encode(), digest_size=16)
    for source in sources:
        state.update(f"{source.row} {source.is_mask} {source.content}\n".encode())
    return state.hexdigest()


def _images_file(image_format: ImageFormat | None) -> tuple[str, type[np.unsignedinteger[Any]]]:
    """Return name and type of the file of images."""
    deep = image_format is not None and image_format.stored == "uint16"
    return ("images.u16", np.uint16) if deep else ("images.u8", np.uint8)


def _build(
    folder: Path,
    table: SceneTable,
    sources: Sequence[SourceFile],
    size: int,
    progress: Progress | None,
    image_format: ImageFormat | None,
) -> list[SourceFile]:
    """Decode the sources into ``folder``; all of them are tried, so that one error names all offenders."""
    has_masks = any(source.is_mask for source in sources)
    images, _ = _images_file(image_format)
    names = (images, "masks.u8") if has_masks else (images,)
    blank = np.zeros((size, size), dtype=np.uint8)
    hashed: list[SourceFile] = []
    unusable: list[str] = []
    folder.mkdir()
    files = [(folder / name).open("wb") for name in names]
    checks = [hashlib.blake2b(digest_size=16) for _ in names]
    try:
        for sample in read_sources(table, sources, size, progress=progress, image_format=image_format):
            hashed += sample.sources
            if sample.problem:
                unusable.append(sample.problem)
                continue
            pixels = (sample.image, blank if sample.mask is None else sample.mask)
            for file, check, values in zip(files, checks, pixels, strict=False):
                assert values is not None
                content = np.ascontiguousarray(values).data
                file.write(content)
                check.update(content)
    finally:
        for file in files:
            file.close()
    if unusable:
        raise ValueError(
            f"{len(unusable)} of {len(table)} samples of {table.domain!r} cannot be used. {kinds_of(unusable)} "
            "Repair the files or drop their rows; `ldstyle data check` looks at every file."
        )
    parts = zip(names, checks, strict=True)
    described = {name: {"content": check.hexdigest(), **_stat(folder / name)} for name, check in parts}
    header = {"format": FORMAT, "domain": table.domain, "size": size, "count": len(table), "files": described}
    (folder / "header.json").write_text(json.dumps(header), encoding="utf-8")
    return hashed


@contextmanager
def _complete_or_absent(partial: Path, domain: str) -> Iterator[None]:
    """Remove ``partial`` before, left by a killed process, and after, whatever happened, Ctrl-C included."""
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                error.errno,
                f"The disk is full: the cache of {domain!r} does not fit into '{partial.parent}'. Free some space or "
                "choose another cache folder; no partial cache was left",
            ) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_whole(folder: Path, verify: str) -> bool:
    """Whether a cache is there and whole; a damaged one is reported, and is to be built again."""
    if not folder.exists():
        return False
    reason = _damage(folder, verify)
    if reason:
        _log.warning("The cache '%s' is damaged and will be built again: %s.", folder, reason)
    return not reason


def _damage(folder: Path, verify: str) -> str:
    """Return the defect of a cache, if any: of its header, file lengths, or content where times changed."""
    try:
        header = json.loads((folder / "header.json").read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = header["files"]
        for name, expected in files.items():
            found = _stat(folder / name)
            if found["bytes"] != expected["bytes"]:
                return f"{name} has {found['bytes']} bytes instead of {expected['bytes']}"
            if verify == "content" or found["changed"] != expected["changed"]:
                if _content(folder / name) != expected["content"]:
                    return f"the content of {name} changed"
                expected.update(found)
                with suppress(OSError):  # a cache that cannot be written is as good; it is checked again next time
                    _replace_json(folder / "header.json", header)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its header or a file cannot be read ({error})"
    return ""


def _open(
    folder: Path, sources: Sequence[SourceFile], count: int, size: int, image_format: ImageFormat | None
) -> ImageCache:
    # Copy-on-write: the arrays can be handed to torch, which wants them writable, and the file stays as it is.
    name, kind = _images_file(image_format)
    channels = 3 if image_format is None else len(image_format.bands)
    images = np.memmap(folder / name, dtype=kind, mode="c", shape=(count, channels, size, size))
    masks = None
    if (folder / "masks.u8").exists():
        masks = np.memmap(folder / "masks.u8", dtype=np.uint8, mode="c", shape=(count, size, size))
    files = [""] * count
    for source in sources:
        files[source.row] += f"{'mask' if source.is_mask else 'image'} {source.content} "
    return ImageCache(images, masks, folder.name.rpartition("-")[2], folder, tuple(files))


def _stat(path: Path) -> dict[str, int]:
    stat = path.stat()
    return {"bytes": stat.st_size, "changed": stat.st_mtime_ns}


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _read_record(path: Path) -> dict[str, tuple[Times, str]]:
    """Return the recorded sources by key; empty if the record is missing or damaged."""
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        return {key: (Times(*times), content) for key, (times, content) in recorded.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_record(path: Path, sources: Sequence[SourceFile], known: dict[str, tuple[Times, str]]) -> None:
    # Entries of other tables over the same folder are kept.
    record = known | {source.key: (source.times, source.content) for source in sources}
    if record != known:
        try:
            _replace_json(path, record)
        except OSError as error:
            _log.warning("'%s' cannot be written (%s); the next opening hashes the sources again.", path, error)


def _replace_json(path: Path, value: object) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
