"""Trials of λ in an optuna study: ask a sampler, measure, tell, until the requested number is finished.

It knows numbers, not networks. Several processes may share a study through optuna's own storage and heartbeat; each
stored trial is sealed.
"""

import math
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from onespike.errors import LoadError, UsageError, first_line, require, unknown
from onespike.runtime.progress import note
from onespike.runtime.validated import checksum, understood

SAMPLERS = ("gp", "tpe", "grid")
DAMAGED = "Remove search/study.db from the run to search anew, or name another storage."
LOWEST = 0.01  # the smallest λ that is tried: below it every neuron saturates
BEAT, GRACE = 2, 20
"""Seconds between two signs of life of a running trial, and without any until another process measures it again."""


@dataclass(frozen=True)
class Trial:
    """One tried λ; `value` is None if it was given up early."""

    scale: float
    value: float | None
    energy: float | None
    seconds: float = 0.0

    def __str__(self) -> str:
        value = "given up early" if self.value is None else f"{self.value:.4g}"
        cost = "" if self.energy is None else f", energy {self.energy:.3f}"
        return f"λ = {self.scale:.4f}, {value}{cost} ({self.seconds:.1f} s)"


@dataclass(frozen=True)
class Measurement:
    """The result of one trial: the metric, and the energy ratio if requested.

    A trial that was given up early is not `finished`; its value so far still informs the sampler.
    """

    value: float
    energy: float | None = None
    finished: bool = True


Hopeless = Callable[[int, float], bool]
Objective = Callable[[float, Hopeless], Measurement]
"""objective(scale, hopeless) → Measurement; it may call hopeless(step, value so far) and give up."""


def front(points: Sequence[tuple[float, float]], maximize: bool) -> list[int]:
    """Return the places of the (energy, value) points that no other point beats in both, by rising energy."""
    sign = 1 if maximize else -1
    unbeaten: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: (points[i][0], -sign * points[i][1])):
        if not unbeaten or sign * points[place][1] > sign * points[unbeaten[-1]][1]:
            unbeaten.append(place)
    return unbeaten


@dataclass(frozen=True)
class Search:
    """All finished trials in order, and the best of them."""

    trials: tuple[Trial, ...]
    best: Trial
    maximize: bool
    budget: float | None = None

    def front(self) -> tuple[Trial, ...]:
        """Return the trials that no other trial beats in both metric and energy, by rising energy."""
        points = {t: (t.energy, t.value) for t in self.trials if t.value is not None and t.energy is not None}
        return tuple([*points][place] for place in front([*points.values()], self.maximize))


def grid(count: int) -> list[float]:
    """Return `count` values of λ from 1 down in a geometric sequence."""
    return [round(LOWEST ** (i / max(count - 1, 1)), 12) for i in range(count)]


def search(
    objective: Objective,
    *,
    trials: int = 50,
    maximize: bool = True,
    fixed: Iterable[float] = (1.0,),
    sampler: str = "gp",
    budget: float | None = None,
    storage: str | None = None,
    name: str = "scale",
    identity: str = "",
    resume: bool = False,
    fresh: bool = False,
) -> Search:
    """Find the best λ in (0, 1] in so many trials, including the `fixed` ones, tried first, and those of an earlier search.

    With a `budget`, the best is chosen among trials with at most this energy. `storage` is an optuna URL that several
    processes may share, `name` the study's name there; None keeps the trials in memory. A study that exists is continued
    with `resume`, deleted with `fresh`, and refused if its `identity`, that of its inputs, is another.
    """
    optuna = require("optuna", "search", "search")
    if trials < 1:
        raise UsageError(f"trials must be at least 1, not {trials}. The paper uses 50.")
    if resume and fresh:
        raise UsageError("search: resume=True goes on, and fresh=True starts over. Give one of them.")
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a trial that fails ends in an error here
    wanted = tuple(dict.fromkeys(grid(trials) if sampler == "grid" else fixed))[:trials]
    experimental = optuna.exceptions.ExperimentalWarning
    with warnings.catch_warnings(action="ignore", category=experimental), connected(storage) as backend:
        with understood(f"search: the study {name}", DAMAGED):
            study = open_study(backend, name, identity, resume, fresh, maximize)
            finished(study)
        plan(study, wanted)
        study.sampler = sampler_of(sampler, len(study.trials))  # resumed, it draws other numbers
        blank_since, expected = dict[int, float](), len(study.trials)

        def measure(trial: Any) -> float:
            nonlocal expected
            if trial.number > expected:  # another process draws, too, and perhaps by the same seed
                study.sampler = sampler_of(sampler, trial.number)
            expected = max(expected, trial.number + 1)
            return _measure(study, trial, objective, budget)

        def reported(study: Any, frozen: Any) -> None:
            note(f"trial {len(finished(study))}/{trials}: {read_trial(frozen)}")

        while (missing := trials - len(finished(study))) > 0:  # processes that share a study may add one each
            if missing > len(trials_in(study, "RUNNING")):
                try:
                    study.optimize(measure, n_trials=1, callbacks=[reported])
                except ValueError as error:
                    # SQLite lets two processes take one planned trial: who ends first has told it
                    if not str(error).startswith("Cannot tell"):
                        raise
            else:  # another process measures what is missing, or died while it did
                time.sleep(0.2)
                revive(study, blank_since)
                plan(study, wanted)
        measured = finished(study)
    valued = [t for t in measured if t.value is not None]
    inside = [t for t in valued if budget is None or (t.energy is not None and t.energy <= budget)]
    if not inside:
        least = min(valued, key=lambda t: math.inf if t.energy is None else t.energy)
        raise UsageError(
            f"search: no λ stays within the budget {budget:g}; the least is {least.energy:.3f} of all MACs at λ = {least.scale:g}. "
            "Allow more energy, or use fewer levels."
        )
    best = max(inside, key=lambda t: ((t.value or 0.0) * (1 if maximize else -1), t.scale))
    return Search(tuple(measured), best, maximize, budget)


def _measure(study: Any, trial: Any, objective: Objective, budget: float | None) -> float:
    """Run one trial, from its λ to the storage."""
    scale = trial.suggest_float("scale", LOWEST, 1.0, log=True)
    if any(t.scale == scale for t in finished(study)):
        # nothing to learn from (all values alike), so the sampler would ask for this λ over and over
        study.sampler = sampler_of("random", trial.number)

    def hopeless(step: int, value: float) -> bool:
        trial.report(value, step)
        # a trial within the budget may be worse than most that are not, and yet the best
        return budget is None and bool(trial.should_prune())

    started = time.perf_counter()
    measured = objective(scale, hopeless)
    if measured.value != measured.value:
        raise UsageError(f"search: the metric is not a number at λ = {scale:g}. Check the data and network.")
    if measured.energy is not None and budget is not None:
        trial.set_constraint("budget", measured.energy - budget)
    facts = {
        "seconds": time.perf_counter() - started,
        "finished": measured.finished,
        "energy": measured.energy,
        # a database checks its structure, not its numbers
        "sha256": checksum((scale, measured.value, measured.finished, measured.energy)),
    }
    for name, fact in facts.items():
        trial.set_user_attr(name, fact)
    # Told as complete even if given up: the GP ignores pruned trials and would ask for them again.
    return measured.value


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
    return UsageError(
        f"search: the storage {str(url).partition(':')[0]}:… cannot be used ({first_line(error)}). "
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


def open_study(backend: Any, name: str, identity: str, resume: bool, fresh: bool, maximize: bool) -> Any:
    import optuna

    if fresh and name in optuna.get_all_study_names(backend):
        old = optuna.load_study(study_name=name, storage=backend)
        optuna.storages.fail_stale_trials(old)
        if trials_in(old, "RUNNING"):
            raise UsageError(
                f"search: a process is measuring the study {name!r}, or ended seconds ago. Wait half a minute, or take resume=True."
            )
        optuna.delete_study(study_name=name, storage=backend)
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
    stored = study.user_attrs.get("identity")
    if stored is None:
        study.set_user_attr("identity", identity)
    elif stored != identity:
        raise UsageError(
            f"search: the study {name!r} is of other inputs. Give the same ones again, or start over with fresh=True."
        )
    return study


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


def read_trial(frozen: Any) -> Trial:
    scale, value, attributes = frozen.params["scale"], frozen.value, frozen.user_attrs
    finished, energy = attributes.get("finished"), attributes.get("energy")
    if attributes.get("sha256") != checksum((scale, value, finished, energy)):
        raise LoadError(
            f"search: trial {frozen.number} of the study is damaged (it is not what was stored: its SHA-256 differs). "
            "Start over with fresh=True, or name another storage."
        )
    return Trial(scale, value if finished else None, energy, attributes.get("seconds", 0.0))


def finished(study: Any) -> list[Trial]:
    return [read_trial(trial) for trial in trials_in(study, "COMPLETE")]
