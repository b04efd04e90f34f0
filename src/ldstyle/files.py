"""Files: written whole or not at all, and YAML of users read without harm."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MOST_VALUES = 100_000
"""Most values of a YAML file, each alias counted as all that it stands for."""


def replace_file(
    path: Path,
    write: Callable[[BinaryIO], object],
    *,
    keep: Path | None = None,
    spare: Path | None = None,
    shared: bool = False,
) -> None:
    """Write a file under another name, force it to disk, and rename it.

    Args:
        path: The file. Until the new content is safe, the old one stays.
        write: Writes the content into an open file.
        keep: Where the old file goes; ``None`` drops it.
        spare: A file that may be written over, if it is there, and where what was at ``keep`` goes. Writing into pages
            that the system holds already takes a fraction of the time that new ones do.
        shared: Whether several processes may write it at a time, each under a name of its own until then.

    Raises:
        OSError: The content cannot be written; what was there is untouched and no partial file is left.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp" if shared else f"{path.name}.tmp")
    with explained(path):
        try:
            if spare is not None and spare.exists():
                spare.replace(partial)
            else:
                partial.write_bytes(b"")
            with partial.open("r+b") as file:
                write(file)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            if keep is not None and path.exists():
                if spare is not None and keep.exists():
                    keep.replace(spare)
                path.replace(keep)
            partial.replace(path)
            _sync_folder(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def replace_text(path: Path, text: str, *, shared: bool = False) -> None:
    """Write a text file in one step; see :func:`replace_file`."""
    replace_file(path, lambda file: file.write(text.encode()), shared=shared)


def give_default_mode(paths: Iterable[Path]) -> None:
    """Give files that a library made for their owner alone the mode of any new file here."""
    for path in paths:
        blank = path.with_name(f"{path.name}.mode.tmp")
        blank.write_bytes(b"")  # the umask cannot be read without setting it, which is not safe with threads
        try:
            path.chmod(blank.stat().st_mode & 0o777)
        finally:
            blank.unlink()


def _sync_folder(folder: Path) -> None:
    """Force a rename to disk. Windows cannot open a folder, and does not need it."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Explain a failed write inside, also where torch has wrapped the system's error in its own."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        why = "the disk is full" if cause.errno in FULL else str(cause.strerror)
        raise OSError(
            cause.errno,
            f"'{path}' could not be written: {why}. What was saved before is untouched; make room, then the same "
            "command resumes",
        ) from error


def load_yaml(text: str) -> Any:
    """Load YAML text: plain values only, and none that grows when it is read.

    Raises:
        yaml.YAMLError: It is no YAML, holds objects, refers to itself, is nested too deeply, or its aliases stand for
            more than `MOST_VALUES` values.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _count(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {MOST_VALUES} values; write them out")
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    finally:
        loader.dispose()


def _count(node: yaml.Node, counted: dict[int, int | None]) -> int:
    """Count the values below a node; a node that several aliases name is counted once and added for each."""
    if id(node) in counted:
        found = counted[id(node)]
        if found is None:
            raise yaml.YAMLError("a value refers to itself")
        return found
    counted[id(node)] = None
    children: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
    below = (part for child in children for part in (child if isinstance(child, tuple) else (child,)))
    counted[id(node)] = total = 1 + sum(_count(part, counted) for part in below)
    return total
