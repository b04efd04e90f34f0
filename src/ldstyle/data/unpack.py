"""Unpack an official download without letting any of its members out of the folder."""

from __future__ import annotations

import shutil
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeAlias

from ldstyle.data.tables import first_few

_Opened: TypeAlias = zipfile.ZipFile | tarfile.TarFile


def unpack(archive: Path, root: Path) -> list[Path]:
    """Unpack a zip or tar file into ``root``; all of it arrives or nothing does.

    A member that is absolute, climbs with ``..``, or is a link or a device is refused before anything is written:
    no data set needs one.

    Args:
        archive: The zip or tar file, compressed or not.
        root: Folder to unpack into; made if need be.

    Returns:
        What was put into ``root``.
    """
    if not archive.is_file():
        raise FileNotFoundError(f"There is no file '{archive}' to unpack.")
    with _open(archive) as opened:
        total = _refuse_bad_members(archive, opened)
        root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(root).free
        if total > free:
            raise OSError(f"'{archive}' needs {total / 1e9:.1f} GB in '{root}'; {free / 1e9:.1f} GB are free.")
        with tempfile.TemporaryDirectory(dir=root, prefix=".unpack-", suffix=".tmp") as folder:
            _extract(archive, opened, Path(folder))
            return _move_in(archive, Path(folder), root)


def _open(archive: Path) -> _Opened:
    if zipfile.is_zipfile(archive):
        return zipfile.ZipFile(archive)
    try:
        return tarfile.open(archive)
    except tarfile.TarError as error:
        raise ValueError(f"An archive must be a zip or tar file; '{archive}' is neither or is damaged.") from error


def _refuse_bad_members(archive: Path, opened: _Opened) -> int:
    """Return the size of the members; raise if any of them would escape."""
    if isinstance(opened, zipfile.ZipFile):
        members = [(m.filename, _is_plain(m), m.file_size) for m in opened.infolist()]
    else:
        members = [(m.name, m.isfile() or m.isdir(), m.size) for m in opened.getmembers()]
    bad = [name for name, plain, _ in members if not plain or _escapes(name)]
    if bad:
        raise ValueError(
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


def _extract(archive: Path, opened: _Opened, folder: Path) -> None:
    try:
        if isinstance(opened, zipfile.ZipFile):
            opened.extractall(folder)
        else:
            opened.extractall(folder, filter="data")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"'{archive}' cannot be unpacked: {error}. Download it again.") from error


def _move_in(archive: Path, folder: Path, root: Path) -> list[Path]:
    entries = sorted(folder.iterdir())
    there = [entry.name for entry in entries if (root / entry.name).exists()]
    if there:
        raise FileExistsError(f"'{archive}' would overwrite {first_few(there)} in '{root}'. Move them away first.")
    return [entry.replace(root / entry.name) for entry in entries]
