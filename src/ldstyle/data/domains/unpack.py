"""Unpack an official download without letting any of its members out of the folder."""

from __future__ import annotations

import errno
import lzma
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeAlias

from filelock import FileLock

from ldstyle.messages import first_few

_Opened: TypeAlias = zipfile.ZipFile | tarfile.TarFile

_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    ValueError,
    OverflowError,
    RuntimeError,  # a password, and NotImplementedError for kinds of compression
)


def unpack(archive: Path, root: Path) -> list[Path]:
    """Unpack a zip or tar file into ``root``; all of it arrives or nothing does.

    A member that is absolute, climbs with ``..``, or is a link or a device is refused before anything is written:
    no data set needs one. The archive is read to its end and all of its checksums are verified; an uncompressed tar
    file has some for the names and sizes of its members, and none for their content.

    Args:
        archive: The zip or tar file, compressed or not.
        root: Folder to unpack into; made if need be.

    Returns:
        What was put into ``root``.
    """
    if not archive.is_file():
        raise FileNotFoundError(f"There is no file '{archive}' to unpack.")
    with _damage_named(archive), _open(archive) as opened:
        total = _refuse_bad_members(archive, opened)
        _require_end(opened)
        root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(root).free
        if total > free:
            raise OSError(
                errno.ENOSPC, f"'{archive}' needs {total / 1e9:.1f} GB in '{root}'; {free / 1e9:.1f} GB are free"
            )
        with _temporary_folder(root) as folder:
            if isinstance(opened, zipfile.ZipFile):
                opened.extractall(folder)
            else:
                opened.extractall(folder, filter="data")
            return _move_in(archive, folder, root)


class _RefusedError(ValueError):
    """A sound archive with the wrong content; its message is complete."""


@contextmanager
def _damage_named(archive: Path) -> Iterator[None]:
    """Let whatever the readers raise on a damaged archive become a ValueError that names it."""
    try:
        yield
    except _RefusedError:
        raise
    except (OSError, *_DAMAGE) as error:
        # Readers of gzip and bzip2 raise OSError without a number for damage; the system's own have one.
        if isinstance(error, OSError) and (error.errno is not None or isinstance(error, FileExistsError)):
            raise
        reason = str(error) or type(error).__name__
        raise ValueError(
            f"'{archive}' cannot be unpacked: {reason}. Nothing was unpacked: it is cut short, damaged or of an "
            "unknown kind. Download it again."
        ) from error


@contextmanager
def _temporary_folder(root: Path) -> Iterator[Path]:
    """Make a folder in ``root`` that is gone at the end, and remove those that killed processes left."""
    for left in root.glob(".unpack-*.tmp"):
        with suppress(OSError), _held(left):
            shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpack-", suffix=".tmp") as folder, _held(Path(folder)):
        yield Path(folder)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a folder; OSError if another process has."""
    lock = folder.with_name(f"{folder.name}.lock")
    with FileLock(lock, timeout=0):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _require_end(opened: _Opened) -> None:
    """Read a tar file to its end, which verifies the checksum of its compression, and require the end's mark.

    Where a header is damaged, the reader takes it for the end and would leave the rest out.
    """
    if isinstance(opened, zipfile.ZipFile):
        return
    assert opened.fileobj is not None
    opened.fileobj.seek(opened.offset)
    found = 0
    while content := opened.fileobj.read(1 << 20):
        if content.strip(b"\0"):
            raise tarfile.ReadError("a header is damaged")
        found += len(content)
    if found < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("its end is missing")


def _open(archive: Path) -> _Opened:
    if zipfile.is_zipfile(archive):
        return zipfile.ZipFile(archive)
    try:
        return tarfile.open(archive)
    except tarfile.TarError as error:
        raise _RefusedError(f"An archive must be a zip or tar file; '{archive}' is neither or is damaged.") from error


def _refuse_bad_members(archive: Path, opened: _Opened) -> int:
    """Return the size of the members; raise if any of them would escape."""
    if isinstance(opened, zipfile.ZipFile):
        members = [(m.filename, _is_plain(m), m.file_size) for m in opened.infolist()]
    else:
        members = [(m.name, m.isfile() or m.isdir(), m.size) for m in opened.getmembers()]
    bad = [name for name, plain, _ in members if not plain or _escapes(name)]
    if bad:
        raise _RefusedError(
            f"Members of an archive must be plain files below its folder; {len(bad)} of '{archive}' are not: "
            f"{first_few(bad)}. Nothing was unpacked: get the archive from its official page."
        )
    return sum(size for _, _, size in members)


def _is_plain(member: zipfile.ZipInfo) -> bool:
    kind = stat.S_IFMT(member.external_attr >> 16)
    return kind in (0, stat.S_IFREG, stat.S_IFDIR)


def _escapes(name: str) -> bool:
    path = name.replace("\\", "/")
    return bool(PureWindowsPath(path).anchor) or ".." in PurePosixPath(path).parts


def _move_in(archive: Path, folder: Path, root: Path) -> list[Path]:
    entries = sorted(folder.iterdir())
    there = [entry.name for entry in entries if (root / entry.name).exists()]
    if there:
        raise FileExistsError(f"'{archive}' would overwrite {first_few(there)} in '{root}'. Move them away first.")
    return [entry.replace(root / entry.name) for entry in entries]
