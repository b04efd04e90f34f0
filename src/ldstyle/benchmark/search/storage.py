"""Storage of a search's trials, and retries of those whose worker died.

A journal file serves one machine or a shared folder: every worker holds a lock while it lives, which the system takes
back when it dies, so orphaned trials are recognised. A database serves workers without a shared folder: there, running
trials send Optuna's heartbeat. Either way an orphaned trial is marked failed and retried by Optuna's callback, with the
scores of the folds it had finished.
"""

from __future__ import annotations

import re
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import optuna
from filelock import FileLock, Timeout
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from ldstyle.messages import first_line

JOURNAL = "journal.log"
WORKERS = "workers"
WORKER = "worker"
FOLDS = "folds"
ERROR = "error"
"""Attributes of a trial: its worker, its scores by fold, why it failed."""

MAX_RETRIES = 3
HEARTBEAT_SECONDS = 30
LOCK_SECONDS = 10
OPEN_ATTEMPTS = 4
NAMELESS = timedelta(minutes=1)
"""Age at which a running trial without a worker counts as orphaned: a worker signs its trial at once."""


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
        path = out / JOURNAL
        out.mkdir(parents=True, exist_ok=True)
        path.touch()
        link = path.with_name(f"{JOURNAL}.lock")
        if link.is_symlink() and not link.exists():  # of an earlier release; it would be waited for without end
            link.unlink(missing_ok=True)
        lock = JournalFileOpenLock(str(path), grace_period=LOCK_SECONDS)
        _drop_torn_line(path, lock)
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
        f"{first_line(problem)}"
    ) from None


def _open_database(url: str, heartbeat_seconds: int) -> RDBStorage:
    arguments = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    with _experimental():
        return RDBStorage(
            url,
            engine_kwargs=arguments,
            heartbeat_interval=heartbeat_seconds,
            grace_period=4 * heartbeat_seconds,
            heartbeat_stale_trial_callback=retry,
        )


def _drop_torn_line(path: Path, lock: JournalFileOpenLock) -> None:
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


def reclaim(study: optuna.Study, storage: BaseStorage, out: Path, *, watched: set[int]) -> int:
    """Fail the running trials of dead workers and retry them.

    Args:
        study: The study.
        storage: Its storage; a database goes by heartbeats, a journal by the locks of the workers.
        out: Folder of the search.
        watched: Running trials of a database that the caller has seen before; new ones are added.

    Returns:
        How many there were in a journal.
    """
    if isinstance(storage, RDBStorage):
        with _experimental():
            optuna.storages.fail_stale_trials(study)
        _watch(study, storage, watched)
        return 0
    orphaned = [trial for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]) if _dead(trial, out)]
    count = 0
    for trial in orphaned:
        try:
            study.tell(trial.number, state=TrialState.FAIL)
        except (UpdateFinishedTrialError, ValueError):
            continue  # another worker was faster
        retry(study, study.trials[trial.number])
        count += 1
    return count


def _watch(study: optuna.Study, storage: RDBStorage, watched: set[int]) -> None:
    """Give each running trial a heartbeat when it is first seen.

    Optuna never calls a trial stale that has had none, and a worker can die between creating a trial and its first.
    """
    study_id = storage.get_study_id_from_name(study.study_name)
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        if trial.number not in watched:
            watched.add(trial.number)
            storage.record_heartbeat(storage.get_trial_id_from_study_id_trial_number(study_id, trial.number))


def retry(study: optuna.Study, trial: FrozenTrial) -> None:
    """Queue the parameters of a trial whose worker died; one whose workers keep dying is given up."""
    trial.user_attrs = {name: value for name, value in trial.user_attrs.items() if name != WORKER}
    with _experimental():
        RetryHeartbeatStaleTrialCallback(max_retry=MAX_RETRIES)(study, trial)


def retry_history(trial: FrozenTrial) -> list[int]:
    """Return the numbers of the trials that a trial retries."""
    with _experimental():
        return RetryHeartbeatStaleTrialCallback.retry_history(trial)


@contextmanager
def _experimental() -> Iterator[None]:
    """Use what Optuna calls experimental without its warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def _dead(trial: FrozenTrial, out: Path) -> bool:
    worker = trial.user_attrs.get(WORKER)
    if worker is not None:
        return not is_alive(out, worker)
    return trial.datetime_start is not None and datetime.now() - trial.datetime_start > NAMELESS
