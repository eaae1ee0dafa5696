"""λ by Bayesian optimisation: ask a sampler, measure, tell. It knows numbers and no networks."""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from onespike.errors import LoadError, UsageError, unknown

SAMPLERS = ("gp", "tpe", "grid")
LOWEST = 0.01
"""The smallest λ that is tried: below it every neuron saturates."""


@dataclass(frozen=True)
class Measurement:
    """What one trial found: the metric, and the energy ratio where it was asked for.

    A trial that was given up early is not `finished`; its value is the one so far, from which the sampler learns.
    """

    value: float
    energy: float | None = None
    finished: bool = True


Hopeless = Callable[[int, float], bool]
Objective = Callable[[float, Hopeless], Measurement]
"""objective(scale, hopeless) → Measurement; it may ask hopeless(step, value so far) and give up."""


@dataclass(frozen=True)
class Trial:
    """One λ that was tried; `value` is None where it was given up early."""

    number: int
    scale: float
    value: float | None
    energy: float | None
    seconds: float


Report = Callable[[Trial, int, int], None]


@dataclass(frozen=True)
class Search:
    """All finished trials in their order, and the best of them."""

    trials: tuple[Trial, ...]
    best: Trial
    maximise: bool
    budget: float | None = None

    def front(self) -> tuple[Trial, ...]:
        """The trials that no other one beats in both metric and energy, by rising energy.

        >>> trials = [Trial(i, s, v, e, 0.0) for i, (s, v, e) in enumerate([(1, 5, 0.1), (0.5, 4, 0.2), (0.2, 9, 0.3)])]
        >>> [t.scale for t in Search(tuple(trials), trials[2], True).front()]
        [1, 0.2]
        """
        sign = 1 if self.maximise else -1
        known = [t for t in self.trials if t.value is not None and t.energy is not None]
        kept: list[Trial] = []
        for trial in sorted(known, key=lambda t: (t.energy, -sign * (t.value or 0.0))):
            if not kept or sign * (trial.value or 0.0) > sign * (kept[-1].value or 0.0):
                kept.append(trial)
        return tuple(kept)


def _storage(url: str | None, attempts: int = 5) -> Any:
    import optuna
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    if url is None:
        return optuna.storages.InMemoryStorage()
    scheme = url.partition(":")[0]
    try:
        options = {"connect_args": {"timeout": 60}} if scheme == "sqlite" else {"pool_pre_ping": True}
        return optuna.storages.RDBStorage(url, engine_kwargs=options)
    except Exception as error:  # SQLAlchemy, its drivers and the operating system have families of their own
        if attempts > 1 and isinstance(error, (IntegrityError, ProgrammingError)):
            time.sleep(0.5)  # another process is making the same tables
            return _storage(url, attempts - 1)
        raise _unusable(scheme, error) from error


def _unusable(scheme: str, error: Exception) -> UsageError:
    """Without the rest of the URL, which may hold a password."""
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return UsageError(
        f"search: the storage {scheme}:… cannot be used ({reason}). "
        "Give an optuna URL such as sqlite:///study.db or postgresql+psycopg://USER@HOST/DATABASE."
    )


def _sampler(name: str, seed: int) -> Any:
    from optuna.samplers import GPSampler, RandomSampler, TPESampler

    if name == "gp":
        return GPSampler(seed=seed, n_startup_trials=6, deterministic_objective=True)
    if name == "tpe":
        return TPESampler(seed=seed, n_startup_trials=6)
    return RandomSampler(seed=seed)


def grid(count: int) -> list[float]:
    """`count` values of λ from 1 down, each the same factor below the one before.

    >>> grid(3)
    [1.0, 0.1, 0.01]
    """
    return [round(LOWEST ** (i / max(count - 1, 1)), 12) for i in range(count)]


@contextmanager
def _connected(url: str | None) -> Iterator[Any]:
    """The storage, whose connections are closed in the end."""
    backend = _storage(url)
    try:
        yield backend
    finally:
        if url is not None:
            backend.remove_session()
            backend.engine.dispose()


def _open(
    backend: Any, name: str, identity: Mapping[str, Any], resume: bool, maximise: bool, sampler: Any
) -> Any:
    import optuna

    try:
        study = optuna.create_study(
            storage=backend,
            study_name=name,
            direction="maximize" if maximise else "minimize",
            sampler=sampler,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
            load_if_exists=resume,
        )
    except optuna.exceptions.DuplicatedStudyError as error:
        raise UsageError(
            f"search: the study {name!r} has trials already. Continue it with --resume, or name another --storage."
        ) from error
    text = json.dumps(dict(identity), sort_keys=True)
    known = study.user_attrs.get("identity")
    if known is None:
        study.set_user_attr("identity", text)
    elif known != text:
        differing = [k for k, v in json.loads(known).items() if identity.get(k) != v]
        raise UsageError(
            f"search: this study belongs to another search (it differs in {', '.join(differing)}). "
            "Give the same run and options again, or name another --storage."
        )
    return study


def _abandon_dead(study: Any) -> None:
    """A trial whose process was killed never finishes and does not count.

    On this machine the process is looked for; on another one, a trial is given up that has run for twenty times as
    long as the longest so far.
    """
    from optuna.trial import TrialState

    longest = max((t.seconds for t in _finished(study)), default=0.0)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        host, _, process = trial.user_attrs.get("process", "").partition(":")
        age = (datetime.now() - trial.datetime_start).total_seconds()
        here = host == socket.gethostname()
        if (here and not _alive(int(process))) or (not here and age > max(600.0, 20 * longest)):
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


class _Turn(AbstractContextManager[None]):
    """One process at a time asks a study in SQLite, which locks no rows; the kernel frees it when a process dies."""

    def __init__(self, url: str | None) -> None:
        file = url is not None and url.startswith("sqlite:///")
        self.path = f"{str(url).removeprefix('sqlite:///')}.lock" if file else None
        self.file: Any = None

    def __enter__(self) -> None:
        if self.path is not None:
            import fcntl

            try:
                self.file = Path(self.path).open("w")
            except OSError as error:
                raise _unusable("sqlite", error) from error
            fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *failure: object) -> None:
        if self.file is not None:
            self.file.close()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def search(
    objective: Objective,
    *,
    trials: int = 50,
    maximise: bool = True,
    fixed: Iterable[float] = (1.0,),
    sampler: str = "gp",
    budget: float | None = None,
    storage: str | None = None,
    name: str = "scale",
    identity: Mapping[str, Any] | None = None,
    resume: bool = False,
    seed: int = 0,
    report: Report = lambda trial, done, total: None,
) -> Search:
    """Find the best λ in (0, 1].

    Args:
        objective: measures one λ.
        trials: how many λ in all, the fixed ones and those of an interrupted search included.
        maximise: whether larger values are better.
        fixed: values that are always among the trials, first.
        sampler: `gp`, `tpe` or `grid`.
        budget: the best is chosen among trials whose energy is at most this.
        storage: an optuna URL; several processes may share it. None keeps the trials in memory.
        name: the study's name in that storage.
        identity: what the search belongs to; a study with another identity is refused.
        resume: continue a study that exists.
        seed: of the sampler.
        report: called after each trial, with how many are finished and how many there are to be.

    >>> found = search(lambda scale, hopeless: Measurement(-(scale - 0.3) ** 2), trials=12)
    >>> abs(found.best.scale - 0.3) < 0.05
    True
    """
    try:
        import optuna
    except ImportError as error:
        raise LoadError("search: it needs optuna. Install it with: pip install 'onespike[search]'") from error
    if trials < 1:
        raise UsageError(f"trials must be at least 1, not {trials}. The paper uses 50.")
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    turn = _Turn(storage)
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        with turn:
            backend = stack.enter_context(_connected(storage))
            study = _open(backend, name, identity or {}, resume, maximise, _sampler(sampler, seed))
            _abandon_dead(study)
            wanted = list(dict.fromkeys(grid(trials) if sampler == "grid" else fixed))[:trials]
            for scale in wanted:
                if scale not in map(
                    _scale, _alive_trials(study, waiting=True)
                ):  # one that failed is tried again
                    study.enqueue_trial({"scale": scale})
        _run(study, objective, trials, budget, turn, report)
        found = _finished(study)
    measured = [t for t in found if t.value is not None and t.value == t.value]
    if budget is not None:
        measured = _within(measured, budget)
    if not measured:
        raise UsageError("search: no trial gave a number. Check the data, or widen the trials.")
    best = max(measured, key=lambda t: ((t.value or 0.0) * (1 if maximise else -1), t.scale))
    return Search(tuple(found), best, maximise, budget)


def _within(measured: Sequence[Trial], budget: float) -> list[Trial]:
    inside = [t for t in measured if t.energy is not None and t.energy <= budget]
    if not inside and measured:
        least = min(measured, key=lambda t: t.energy if t.energy is not None else float("inf"))
        raise UsageError(
            f"search: no λ stays within the budget {budget:g}; the least is {least.energy:.3f} at λ = {least.scale:g}. "
            "Allow more energy, or use fewer levels."
        )
    return inside


def _run(
    study: Any,
    objective: Objective,
    trials: int,
    budget: float | None,
    turn: AbstractContextManager[None],
    report: Report,
) -> None:
    from optuna.trial import TrialState

    own, repeated = study.sampler, False
    while True:
        if len(_alive_trials(study)) >= trials:
            return
        with turn:
            # A sampler that has nothing to learn from (all values alike) asks for one λ again and again.
            study.sampler = _sampler("random", len(study.trials)) if repeated else own
            trial = study.ask()
            trial.set_user_attr("process", f"{socket.gethostname()}:{os.getpid()}")
            scale = trial.suggest_float("scale", LOWEST, 1.0, log=True)
        earlier = _started_before(study, trial)
        repeated = scale in map(_scale, earlier)
        if len(earlier) >= trials or repeated:
            study.tell(trial, state=TrialState.FAIL)  # another process has this one
            continue
        started = time.perf_counter()

        def hopeless(step: int, value: float, trial: Any = trial) -> bool:
            trial.report(value, step)
            # a trial within the budget may be worse than most that are not, and yet the best
            return budget is None and bool(trial.should_prune())

        try:
            measured = objective(scale, hopeless)
        except BaseException:
            study.tell(trial, state=TrialState.FAIL)
            raise
        trial.set_user_attr("seconds", time.perf_counter() - started)
        trial.set_user_attr("finished", measured.finished)
        if measured.energy is not None:
            trial.set_user_attr("energy", measured.energy)
            if budget is not None:
                trial.set_constraint("budget", measured.energy - budget)
        failed = measured.value != measured.value
        # Told as complete also where it was given up: the GP overlooks pruned trials and would ask for them again.
        frozen = study.tell(trial, None if failed else measured.value, TrialState.FAIL if failed else None)
        if failed:
            raise UsageError(
                f"search: the metric is not a number at λ = {scale:g}. Check the data and the network's outputs."
            )
        report(_trial(frozen), len(_finished(study)), trials)


def _started_before(study: Any, trial: Any) -> list[Any]:
    """Trials that other processes began before this one and that are running or finished."""
    mine = (trial.datetime_start, trial.number)
    return [t for t in _alive_trials(study) if (t.datetime_start, t.number) < mine]


def _alive_trials(study: Any, waiting: bool = False) -> list[Any]:
    """Trials that are running or finished, and by choice those that are planned."""
    from optuna.trial import TrialState

    planned = (TrialState.WAITING,) if waiting else ()
    found: list[Any] = study.get_trials(
        deepcopy=False, states=(TrialState.RUNNING, TrialState.COMPLETE, *planned)
    )
    return found


def _scale(frozen: Any) -> float | None:
    """λ of a trial, also of a planned one that has not read it yet."""
    planned = frozen.system_attrs.get("fixed_params", {}).get("scale")
    scale: float | None = frozen.params.get("scale", planned)
    return scale


def _trial(frozen: Any) -> Trial:
    attributes = frozen.user_attrs
    return Trial(
        frozen.number,
        frozen.params["scale"],
        frozen.value if attributes.get("finished") else None,
        attributes.get("energy"),
        attributes.get("seconds", 0.0),
    )


def _finished(study: Any) -> list[Trial]:
    from optuna.trial import TrialState

    return [_trial(t) for t in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))]
