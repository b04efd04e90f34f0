"""Checkpoints: the newest and the one before it, checked before use, and unable to run code."""

from __future__ import annotations

import logging
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import torch

from ldstyle.files import replace_file
from ldstyle.messages import first_line

LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
SPARE = "spare.ckpt"
"""The one before the previous, written over by the next; there only while a run trains, or after it was killed."""
FORMAT = 1
"""Version of a checkpoint's content; one of another version is refused."""

_log = logging.getLogger(__name__)


def save_checkpoint(folder: Path, state: dict[str, Any], *, recycle: bool = False) -> Path:
    """Save the state of a run; the last checkpoint becomes the previous one once the new one is on disk.

    Args:
        folder: Folder of the run.
        state: Tensors and plain values, nested in dicts and lists.
        recycle: Whether to keep what drops out as ``spare.ckpt``, for the next checkpoint to be written over.

    Returns:
        The path of the checkpoint.

    Raises:
        OSError: It cannot be written; the checkpoints that are there stay as they are.
    """
    path = folder / LAST
    spare = folder / SPARE if recycle else None
    replace_file(path, lambda file: torch.save({"format": FORMAT, **state}, file), keep=folder / PREVIOUS, spare=spare)
    return path


class CheckpointWriter:
    """Writes checkpoints while training continues, one at a time; leaving the block waits for the last one.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None
        self._copy: dict[str, Any] = {}

    def save(self, state: dict[str, Any]) -> None:
        """Copy the state and have it written.

        Raises:
            OSError: The one before it could not be written; the checkpoints that are there stay as they are.
        """
        self.wait()
        self._copy = _copied(state, self._copy)
        self._pending = self._pool.submit(save_checkpoint, self._folder, self._copy, recycle=True)

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; errors as in :meth:`save`."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self._pool.shutdown()
            (self._folder / SPARE).unlink(missing_ok=True)


def _copied(value: Any, old: Any) -> Any:
    """Copy nested tensors to the host, into an old copy where it fits; the next step changes the originals in place."""
    match value:
        case torch.Tensor():
            if isinstance(old, torch.Tensor) and (old.shape, old.dtype) == (value.shape, value.dtype):
                return old.copy_(value.detach())
            return value.detach().to("cpu", copy=True)
        case dict():
            before = old if isinstance(old, dict) else {}
            return {key: _copied(item, before.get(key)) for key, item in value.items()}
        case list() | tuple():
            known = old if isinstance(old, list | tuple) else ()
            return type(value)(_copied(*pair) for pair in zip(value, (*known, *(None for _ in value)), strict=False))
        case _:
            return value


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Load the newest checkpoint that is whole, to the host; ``None`` if there is none.

    One that cannot be loaded, for whatever reason, is reported, and the one before it is used.

    Raises:
        ValueError: All checkpoints are damaged, or the newest whole one is of another version of this software.
    """
    problems: list[str] = []
    cause: Exception | None = None
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            state = _load(path)
        except Exception as error:  # noqa: BLE001 - a damaged archive fails in a dozen ways, none of which may end a run
            problems.append(f"'{path}' is damaged or not a checkpoint of ldstyle: {first_line(error)}")
            cause = cause or error
            _log.warning("%s. Falling back to the checkpoint before it, if there is one.", problems[-1])
        else:
            return _of_this_format(path, state)
    if problems:
        raise ValueError(f"{'; '.join(problems)}. There is no other checkpoint; use another `out`.") from cause
    return None


def _load(path: Path) -> dict[str, Any]:
    """Read a checkpoint. torch.load does not verify the checksums it finds; this does."""
    with zipfile.ZipFile(path) as archive:
        broken = archive.testzip()
    if broken is not None:
        raise ValueError(f"the checksum of {broken!r} is wrong")
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise TypeError(f"it holds {type(state).__name__} instead of dict")
    return state


def _of_this_format(path: Path, state: dict[str, Any]) -> dict[str, Any]:
    found = state.get("format")
    if found != FORMAT:
        raise ValueError(
            f"'{path}' must be a checkpoint of format {FORMAT}; got {found!r}. Resume with the version of ldstyle that "
            "wrote it, or start a new run in another `out`."
        )
    return state
