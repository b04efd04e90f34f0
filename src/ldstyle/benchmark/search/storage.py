"""Where the trials of a search are kept, and what becomes of those whose worker died.

A journal file serves one machine or a shared folder: every worker holds a lock while it lives, which the system takes
back when it dies, so anyone can see whose trials are orphaned. A database serves workers without a shared folder:
there, running trials send a heartbeat. Either way an orphaned trial is marked failed and its parameters are queued
again, with the scores of the folds it had finished.
"""

from __future__ import annotations

import re
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

import optuna
from filelock import FileLock, Timeout
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

JOURNAL = "journal.log"
WORKERS = "workers"
WORKER = "worker"
RETRIES = "retries"
RETRY_OF = "retry_of"
FOLDS = "folds"
ERROR = "error"
"""Attributes of a trial: who runs it, how often it was begun again and after which, scores by fold, why it failed."""

MAX_RETRIES = 3
HEARTBEAT_SECONDS = 30
LOCK_SECONDS = 10
POLL_SECONDS = 0.05
OPEN_ATTEMPTS = 4
NAMELESS = timedelta(minutes=1)
"""Age at which a running trial without a worker is taken for orphaned: a worker signs its trial at once."""


def open_storage(out: Path, url: str | None = None, *, heartbeat_seconds: int = HEARTBEAT_SECONDS) -> BaseStorage:
    """Open the journal file in ``out``, or the database at ``url``.

    Args:
        out: Folder of the search.
        url: URL of a database as SQLAlchemy writes it, e.g. ``sqlite:///search.db``; ``None`` means a journal file.
        heartbeat_seconds: Seconds between two signs of life in a database; after four without one a trial is orphaned.

    Raises:
        ValueError: ``url`` is no address of a database, its driver is missing, or the database cannot be opened.
    """
    if url is None:
        # The lock is a link to the journal, and a relative one would lead from the wrong folder to nowhere.
        path = (out / JOURNAL).absolute()
        out.mkdir(parents=True, exist_ok=True)
        path.touch()
        lock = JournalLock(path, seconds=LOCK_SECONDS)
        drop_torn_line(path, lock)
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    for _ in range(OPEN_ATTEMPTS):
        # Workers that are the first to open a database make its tables at once, and all but one fail.
        try:
            return _open_database(url, heartbeat_seconds)
        except (IntegrityError, OperationalError) as error:
            problem: Exception = error
            time.sleep(1.0)
        except (SQLAlchemyError, ImportError, ValueError) as error:
            problem = error
            break
    shown = re.sub(r"//[^@/]*@", "//…@", url)  # a password is nobody else's business
    raise ValueError(
        f"--storage must be the URL of a database that can be opened, e.g. sqlite:///search.db; got {shown!r}: "
        f"{str(problem).splitlines()[0]}"
    ) from None


def _open_database(url: str, heartbeat_seconds: int) -> RDBStorage:
    arguments = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return RDBStorage(
            url,
            engine_kwargs=arguments,
            heartbeat_interval=heartbeat_seconds,
            grace_period=4 * heartbeat_seconds,
            heartbeat_stale_trial_callback=queue_again,
        )


class JournalLock(JournalFileSymlinkLock):
    """The lock of a journal; one that a worker killed in the moment of writing leaves behind is broken.

    Args:
        path: The journal, an absolute path.
        seconds: Age at which a lock is broken.
    """

    def __init__(self, path: Path, *, seconds: int) -> None:
        super().__init__(str(path), grace_period=seconds)

    def acquire(self) -> bool:
        """Wait for the lock and take it; a dangling link would be waited for without end."""
        link = Path(self._lock_file)
        while link.is_symlink() and not link.exists():
            with suppress(FileNotFoundError):
                if time.time() - link.lstat().st_mtime > (self.grace_period or 0):
                    link.unlink()
            time.sleep(POLL_SECONDS)
        return super().acquire()


def drop_torn_line(path: Path, lock: JournalFileSymlinkLock) -> None:
    """Cut a journal back to its last whole line: one torn by a crash would spoil the line that is written next."""
    lock.acquire()
    try:
        with path.open("r+b") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
    finally:
        lock.release()


@contextmanager
def signed_in(out: Path) -> Iterator[str]:
    """Yield the name of a new worker, whose lock is held as long as this process lives."""
    name = uuid.uuid4().hex
    folder = out / WORKERS
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{name}.lock")
    with lock:
        yield name
    Path(lock.lock_file).unlink(missing_ok=True)


def is_alive(out: Path, worker: str) -> bool:
    """Whether a worker still holds its lock."""
    path = out / WORKERS / f"{worker}.lock"
    if not path.exists():
        return False
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True


def reclaim(study: optuna.Study, out: Path | None, *, watched: set[int] | None = None) -> int:
    """Fail the running trials of dead workers and queue their parameters again.

    Args:
        study: The study.
        out: Folder of a search with a journal; ``None`` goes by the heartbeats of a database.
        watched: Running trials of a database that the caller has seen before; new ones are added.

    Returns:
        How many there were in a journal.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)
    if out is None:
        _watch(study, set() if watched is None else watched)
        return 0
    orphaned = [trial for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]) if _dead(trial, out)]
    count = 0
    for trial in orphaned:
        try:
            study.tell(trial.number, state=TrialState.FAIL)
        except (UpdateFinishedTrialError, ValueError):
            continue  # another worker was faster
        queue_again(study, trial)
        count += 1
    return count


def _watch(study: optuna.Study, watched: set[int]) -> None:
    """Give each running trial a heartbeat when it is first seen.

    Optuna never calls a trial stale that has had none, and a worker can die between creating a trial and its first.
    """
    storage = study._storage  # as optuna.storages.fail_stale_trials, which has no public way to it either
    if not isinstance(storage, BaseHeartbeat):
        return
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        if trial.number not in watched:
            watched.add(trial.number)
            storage.record_heartbeat(trial._trial_id)


def queue_again(study: optuna.Study, trial: FrozenTrial, *, died: bool = True) -> None:
    """Queue the parameters of a trial that did not come to its end; one whose workers keep dying is given up."""
    attributes = dict(trial.user_attrs)
    attributes.pop(WORKER, None)
    attributes[RETRIES] = attributes.get(RETRIES, 0) + died
    attributes[RETRY_OF] = trial.number
    if attributes[RETRIES] <= MAX_RETRIES:
        study.enqueue_trial(trial.params, user_attrs=attributes)


def _dead(trial: FrozenTrial, out: Path) -> bool:
    worker = trial.user_attrs.get(WORKER)
    if worker is not None:
        return not is_alive(out, worker)
    return trial.datetime_start is not None and datetime.now() - trial.datetime_start > NAMELESS
