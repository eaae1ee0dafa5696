"""An optuna study, which several processes may share: optuna's own storage and heartbeat, and trials that are sealed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from onespike.errors import LoadError, UsageError

LOWEST = 0.01
"""The smallest λ that is tried: below it every neuron saturates."""
BEAT, GRACE = 2, 20
"""Seconds between two signs of life of a running trial, and without any until another process measures it again."""


@dataclass(frozen=True)
class Trial:
    """One tried λ; `value` is None if it was given up early."""

    number: int
    scale: float
    value: float | None
    energy: float | None
    seconds: float


def sampler_of(name: str, seed: int) -> Any:
    from optuna.samplers import GPSampler, RandomSampler, TPESampler

    if name == "gp":
        return GPSampler(seed=seed, n_startup_trials=6, deterministic_objective=True)
    return TPESampler(seed=seed, n_startup_trials=6) if name == "tpe" else RandomSampler(seed=seed)


def _storage(url: str | None, attempts: int = 5) -> Any:
    from optuna import storages
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    if url is None:
        return storages.InMemoryStorage()
    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite:") else {"pool_pre_ping": True}
    again = storages.RetryHeartbeatStaleTrialCallback()
    try:
        return storages.RDBStorage(
            url, options, heartbeat_interval=BEAT, grace_period=GRACE, heartbeat_stale_trial_callback=again
        )
    except Exception as error:  # SQLAlchemy, its drivers and the operating system raise unrelated types
        made = isinstance(error, (IntegrityError, ProgrammingError)) or "already exists" in str(error)
        if attempts > 1 and made:
            time.sleep(0.5)  # another process is making the same tables
            return _storage(url, attempts - 1)
        raise _unusable(url, error) from error


def _unusable(url: str | None, error: Exception) -> UsageError:
    """Return the error without the rest of the URL, which may hold a password."""
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return UsageError(
        f"search: the storage {str(url).partition(':')[0]}:… cannot be used ({reason}). "
        "Give an optuna URL such as sqlite:///study.db or postgresql+psycopg://USER@HOST/DATABASE."
    )


@contextmanager
def connected(url: str | None) -> Iterator[Any]:
    """Yield the storage, and close its connections at the end."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    backend = _storage(url)
    try:
        yield backend
    except (SQLAlchemyError, StorageInternalError, sqlite3.Error) as error:  # a full disk, a damaged file
        raise _unusable(url, error) from error
    finally:
        if url is not None:
            backend.remove_session()
            backend.engine.dispose()


def open_study(
    backend: Any, name: str, identity: Mapping[str, Any], resume: bool, fresh: bool, maximize: bool
) -> Any:
    import optuna

    if fresh:
        _discard(backend, name)
    try:
        study = optuna.create_study(
            storage=backend,
            study_name=name,
            direction="maximize" if maximize else "minimize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
            load_if_exists=resume,
        )
    except optuna.exceptions.DuplicatedStudyError as error:
        raise UsageError(
            f"search: the study {name!r} has trials already. Continue it with resume=True, or start over with fresh=True."
        ) from error
    text = json.dumps(dict(identity), sort_keys=True)
    stored = study.user_attrs.get("identity")
    if stored is None:
        study.set_user_attr("identity", text)
    elif stored != text:
        differing = [k for k, v in json.loads(stored).items() if identity.get(k) != v]
        raise UsageError(
            f"search: this study belongs to another search (it differs in {', '.join(differing)}). "
            "Give the same run and options again, or start over with fresh=True."
        )
    return study


def _discard(backend: Any, name: str) -> None:
    """Delete a study, unless a process measures it right now."""
    import optuna

    try:
        study = optuna.load_study(study_name=name, storage=backend)
    except KeyError:
        return
    optuna.storages.fail_stale_trials(study)
    if trials_in(study, "RUNNING"):
        raise UsageError(
            f"search: a process is measuring the study {name!r}, or ended seconds ago. Wait half a minute, or take resume=True."
        )
    optuna.delete_study(study_name=name, storage=backend)


def plan(study: Any, wanted: Iterable[float]) -> None:
    """Queue the fixed values that are neither measured nor planned; a failed one is tried again."""
    alive = trials_in(study, "WAITING", "RUNNING", "COMPLETE")
    # a planned trial has not read its λ yet
    planned = {t.params.get("scale", t.system_attrs.get("fixed_params", {}).get("scale")) for t in alive}
    for scale in wanted:
        if scale not in planned:
            study.enqueue_trial({"scale": scale})


def trials_in(study: Any, *states: str) -> list[Any]:
    """Return trials by their states; those that run are measured here, by another process, or by one that died."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in states]


def revive(study: Any, blank_since: dict[int, float]) -> None:
    """Queue the trials again whose process died: their heartbeat is stale, or they had none and never read their λ."""
    import optuna

    optuna.storages.fail_stale_trials(study)
    now = time.monotonic()
    for trial in trials_in(study, "RUNNING"):
        if not trial.params and now - blank_since.setdefault(trial.number, now) > GRACE:
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def seal(*results: float | None) -> str:
    """Return the SHA-256 of a trial's results: a database checks its structure, not its numbers."""
    return hashlib.sha256(json.dumps(results).encode()).hexdigest()


def read_trial(frozen: Any) -> Trial:
    scale, value, attributes = frozen.params["scale"], frozen.value, frozen.user_attrs
    finished, energy = attributes.get("finished"), attributes.get("energy")
    if attributes.get("sha256") != seal(scale, value, finished, energy):
        raise LoadError(
            f"search: trial {frozen.number} of the study is damaged (it is not what was stored: its SHA-256 differs). "
            "Start over with fresh=True, or name another storage."
        )
    return Trial(frozen.number, scale, value if finished else None, energy, attributes.get("seconds", 0.0))


def finished(study: Any) -> list[Trial]:
    return [read_trial(trial) for trial in trials_in(study, "COMPLETE")]
