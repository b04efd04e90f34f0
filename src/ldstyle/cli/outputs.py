"""The guard of every output: no command writes over a file that it did not write, or over its own input.

The digest of each file written is recorded in a hidden file of its folder. A file by hand or of another program, or one
that was changed since, is so recognised whatever its format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

RECORD = ".ldstyle-outputs.jsonl"


@contextmanager
def guarded(*outputs: Path, inputs: Iterable[Path | str] = (), force: bool = False) -> Iterator[None]:
    """Refuse to overwrite files of others, then record the files that the block has written, even if it fails.

    Args:
        outputs: Files about to be written, or folders that are ldstyle's as a whole.
        inputs: Files that the command reads.
        force: Write over anything but folders and devices.

    Raises:
        FileExistsError: An output exists and is an input, or is not as ldstyle wrote it.
    """
    check_outputs(*outputs, inputs=inputs, force=force)
    before = {file: _identity(file) for output in outputs for file in _files(output)}
    try:
        yield
    finally:
        _write_records(
            (output, file) for output in outputs for file in _files(output) if _identity(file) != before.get(file)
        )


def check_outputs(*outputs: Path, inputs: Iterable[Path | str] = (), force: bool = False) -> None:
    """Refuse to overwrite files of others; see :func:`guarded`."""
    existing = [(output, file) for output in outputs for file in _files(output)]
    if force or not existing:
        return
    read = {_identity(Path(path)) for path in inputs}
    records = {folder: _read_record(folder) for folder in {_folder(output) for output in outputs}}
    for output, file in existing:
        _check(output, file, records[_folder(output)], is_input=_identity(file) in read)


def _check(output: Path, file: Path, record: dict[str, str], *, is_input: bool) -> None:
    way_out = "Choose another output, or write over it with --force."
    if is_input:
        raise FileExistsError(f"'{file}' is an input of this command and would be written over. {way_out}")
    if record.get(_name(output, file)) != _digest(file):
        raise FileExistsError(f"'{file}' was not written by ldstyle, or was changed since. {way_out}")


def _folder(output: Path) -> Path:
    return output if output.is_dir() else output.parent


def _name(output: Path, file: Path) -> str:
    return str(file.relative_to(_folder(output)))


def _files(output: Path) -> list[Path]:
    """Return the file, or the files below a folder, as far as they exist."""
    if output.is_dir():
        return sorted(file for file in output.rglob("*") if file.is_file() and file != output / RECORD)
    if output.exists() and not output.is_file():
        raise FileExistsError(f"'{output}' must be a file or new; it is a device or a pipe. Choose another output.")
    return [output] if output.exists() else []


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is replaced or rewritten; ``None`` if there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_record(folder: Path) -> dict[str, str]:
    """Return the digests by name; the last one counts, and lines that cannot be read are passed over."""
    digests: dict[str, str] = {}
    try:
        lines = (folder / RECORD).read_bytes().splitlines()
    except OSError:
        return digests
    for line in lines:
        try:
            entry = json.loads(line)
            digests[str(entry["name"])] = str(entry["sha256"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return digests


def _write_records(written: Iterable[tuple[Path, Path]]) -> None:
    """Append a line per file: short appends of several processes do not mix."""
    lines: dict[Path, list[str]] = {}
    for output, file in written:
        entry = {"name": _name(output, file), "sha256": _digest(file)}
        lines.setdefault(_folder(output), []).append(json.dumps(entry) + "\n")
    for folder, entries in lines.items():
        with (folder / RECORD).open("ab") as record:
            record.write("".join(entries).encode())
