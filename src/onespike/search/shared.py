"""A study in a database that several processes share: storage, turns, and leases on running trials."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from onespike.errors import UsageError

BEAT = 2
"""Seconds between two renewals of a lease."""
LEASE = 20
"""Seconds without a renewal after which another process measures a running trial again."""
LEASED = "leased"
"""The attribute of a trial that has a lease."""
LOCKS = {
    "postgresql": "SELECT pg_advisory_lock(hashtext('onespike'))",
    "mysql": "SELECT GET_LOCK('onespike', 86400)",
}
"""How a server that several processes share gives one of them a turn."""


def _storage(url: str | None, attempts: int = 5) -> Any:
    import optuna
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    if url is None:
        return optuna.storages.InMemoryStorage()
    scheme = url.partition(":")[0]
    try:
        options = {"connect_args": {"timeout": 60}} if scheme == "sqlite" else {"pool_pre_ping": True}
        return optuna.storages.RDBStorage(
            url, engine_kwargs=options, heartbeat_interval=BEAT, grace_period=LEASE
        )
    except Exception as error:  # SQLAlchemy, its drivers and the operating system raise unrelated types
        if attempts > 1 and isinstance(error, (IntegrityError, ProgrammingError)):
            time.sleep(0.5)  # another process is making the same tables
            return _storage(url, attempts - 1)
        raise _unusable(scheme, error) from error


def _unusable(scheme: str, error: Exception) -> UsageError:
    """Return the error without the rest of the URL, which may hold a password."""
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return UsageError(
        f"search: the storage {scheme}:… cannot be used ({reason}). "
        "Give an optuna URL such as sqlite:///study.db or postgresql+psycopg://USER@HOST/DATABASE."
    )


@contextmanager
def connected(url: str | None) -> Iterator[Any]:
    """Yield the storage, and close its connections at the end."""
    import sqlite3

    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    backend = _storage(url)
    try:
        yield backend
    except (SQLAlchemyError, StorageInternalError, sqlite3.Error) as error:  # a full disk, a damaged file
        raise _unusable(str(url).partition(":")[0], error) from error
    finally:
        if url is not None:
            backend.remove_session()
            backend.engine.dispose()


class Turn(AbstractContextManager[None]):
    """Let one process at a time open and ask a study; the kernel or the server frees it if the process dies."""

    def __init__(self, url: str | None) -> None:
        self.url = url or ""
        self.scheme = self.url.partition(":")[0]
        self.held: Any = None

    def __enter__(self) -> None:
        try:
            if self.url.startswith("sqlite:///"):
                self.held = _locked_file(Path(f"{self.url.removeprefix('sqlite:///')}.lock"))
            elif self.scheme.partition("+")[0] in LOCKS:
                self.held = _locked_server(self.url, LOCKS[self.scheme.partition("+")[0]])
        except Exception as error:  # as in `_storage`
            raise _unusable(self.scheme, error) from error

    def __exit__(self, *failure: object) -> None:
        if self.held is not None:
            self.held.close()


def _locked_file(path: Path) -> Any:
    """The open file, which its closing unlocks: SQLite locks no rows."""
    import fcntl

    file = path.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def _locked_server(url: str, statement: str) -> Any:
    """The connection, which its closing unlocks: optuna makes its tables and attributes without a lock."""
    import sqlalchemy

    connection = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool).connect()
    connection.execute(sqlalchemy.text(statement))
    return connection


class Leases:
    """Leases on running trials, which show who is alive; process ids do not.

    A process id says nothing in another container, and after a restart it may belong to another process. The process
    that measures a trial renews its lease, dated by the database's clock. A trial whose lease has ended fails, and its
    λ is free again. A process may die between asking for a trial and leasing it: whoever finds a running trial without
    a lease starts one, and only a living owner renews it.
    """

    def __init__(self, backend: Any, study: Any) -> None:
        from optuna.storages import RDBStorage

        self.backend, self.study = backend, study
        self.shared = isinstance(backend, RDBStorage)  # no other process sees trials in memory

    def take(self, number: int) -> None:
        """Start a lease on a running trial."""
        if self.shared:
            place = self._place(number)
            self.backend.record_heartbeat(place)
            self.backend.set_trial_user_attr(place, LEASED, True)

    def take_over(self) -> None:
        """Fail the trials whose leases have ended, and lease those that have none."""
        import optuna

        if not self.shared:
            return
        optuna.storages.fail_stale_trials(self.study)
        for trial in self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            if LEASED not in trial.user_attrs:
                with suppress(optuna.exceptions.UpdateFinishedTrialError):
                    self.take(trial.number)

    @contextmanager
    def held(self, number: int) -> Iterator[None]:
        """Renew the lease of a trial every `BEAT` seconds, in a thread, while this context lasts."""
        if not self.shared:
            yield
            return
        place, over = self._place(number), Event()
        thread = Thread(target=self._renew, args=(place, over), name="onespike-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _renew(self, place: int, over: Event) -> None:
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import SQLAlchemyError

        while not over.wait(BEAT):
            with suppress(
                StorageInternalError, SQLAlchemyError
            ):  # the next beat may reach the database again
                self.backend.record_heartbeat(place)
        self.backend.remove_session()

    def _place(self, number: int) -> int:
        study = self.backend.get_study_id_from_name(self.study.study_name)
        place: int = self.backend.get_trial_id_from_study_id_trial_number(study, number)
        return place
