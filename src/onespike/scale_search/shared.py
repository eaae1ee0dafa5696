"""The database of a study, which several processes may share: optuna's own storage and heartbeat."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onespike.errors import UsageError

BEAT, GRACE = 2, 20
"""Seconds between two signs of life of a running trial, and without any until another process measures it again."""


def _storage(url: str | None, attempts: int = 5) -> Any:
    import optuna
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    if url is None:
        return optuna.storages.InMemoryStorage()
    scheme = url.partition(":")[0]
    try:
        options = {"connect_args": {"timeout": 60}} if scheme == "sqlite" else {"pool_pre_ping": True}
        again = optuna.storages.RetryHeartbeatStaleTrialCallback()
        return optuna.storages.RDBStorage(
            url,
            engine_kwargs=options,
            heartbeat_interval=BEAT,
            grace_period=GRACE,
            heartbeat_stale_trial_callback=again,
        )
    except Exception as error:  # SQLAlchemy, its drivers and the operating system raise unrelated types
        made = isinstance(error, (IntegrityError, ProgrammingError)) or "already exists" in str(error)
        if attempts > 1 and made:
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
