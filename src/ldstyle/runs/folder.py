"""The folder of a run: one config, one process at a time, and a marker when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ldstyle.files import replace_text
from ldstyle.runs.checkpoint import LAST
from ldstyle.runs.config import RUNTIME, RunConfig
from ldstyle.runs.record import RunRecord, read_record, write_record
from ldstyle.runs.settings import differences, dump_settings, list_differences, load_config, settings_of

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
DONE = "done"


def open_run(config: RunConfig) -> RunRecord | None:
    """Make or take up the folder of a run. One that no run has written to yet takes on other settings.

    Returns:
        The record, if the run is finished; there is nothing left to do then.

    Raises:
        ValueError: The folder belongs to a run with other settings; the differences are listed.
    """
    folder = run_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / CONFIG
    found: dict[str, tuple[Any, Any]] = {}
    if saved.exists():
        found = differences(settings_of(load_config(saved)), settings_of(config), ignored=RUNTIME)
    if found and _begun(folder):
        raise ValueError(
            f"'{folder}' holds a run with other settings; choose another `out`, or resume it with its own settings by "
            f"`ldstyle train --config {saved}`:\n{list_differences(found)}"
        )
    if found or not saved.exists():
        # The processes of one run come here together.
        replace_text(saved, dump_settings(settings_of(config)), shared=True)
    return read_record(folder) if is_done(folder) else None


def run_folder(config: RunConfig) -> Path:
    """Return the folder of a run."""
    return Path(config.out).expanduser()


def is_done(folder: Path) -> bool:
    """Whether the run in a folder is finished."""
    return (folder / DONE).exists()


def close_run(folder: Path, record: RunRecord) -> None:
    """Write the record, then the marker of a complete run."""
    write_record(folder, record)
    replace_text(folder / DONE, "")


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep other processes from writing into the folder of a run."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise OSError(f"Another process is writing the run '{folder}'. Wait for it, or choose another `out`.") from None
    try:
        yield
    finally:
        lock.release()


def has_trained(folder: Path) -> bool:
    """Whether a run has written something to its folder that other settings would throw away."""
    return any((folder / name).exists() for name in (LAST, METRICS, DONE))


def _begun(folder: Path) -> bool:
    """Whether a run has written to its folder or is about to; a mistake in the settings ends one before it does."""
    if has_trained(folder):
        return True
    try:
        with sole_writer(folder):
            return False
    except OSError:
        return True
