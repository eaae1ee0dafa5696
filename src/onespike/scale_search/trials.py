"""Trials of λ: ask a sampler, measure, tell, until the requested number is finished."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onespike.errors import LoadError, UsageError, unknown
from onespike.runtime.validated import understood
from onespike.scale_search.study import (
    LOWEST,
    Trial,
    connected,
    finished,
    open_study,
    plan,
    read_trial,
    revive,
    sampler_of,
    seal,
    trials_in,
)

SAMPLERS = ("gp", "tpe", "grid")
DAMAGED = "Remove search/study.db from the run to search anew, or name another storage."


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
Report = Callable[[Trial, int, int], None]


def front(points: Sequence[tuple[float, float]], maximize: bool) -> list[int]:
    """Return the places of the (energy, value) points that no other point beats in both, by rising energy.

    >>> front([(0.1, 5), (0.2, 4), (0.3, 9)], maximize=True)
    [0, 2]
    >>> front([(0.1, 5), (0.2, 4), (0.3, 9), (0.4, 1)], maximize=False)
    [0, 1, 3]
    """
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
    """Return `count` values of λ from 1 down in a geometric sequence.

    >>> grid(3)
    [1.0, 0.1, 0.01]
    """
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
    identity: Mapping[str, Any] | None = None,
    resume: bool = False,
    fresh: bool = False,
    seed: int = 0,
    report: Report = lambda trial, done, total: None,
) -> Search:
    """Find the best λ in (0, 1] in so many trials, including the `fixed` ones, tried first, and those of an earlier search.

    With a `budget`, the best is chosen among trials with at most this energy. `storage` is an optuna URL that several
    processes may share, `name` the study's name there; None keeps the trials in memory. A study that exists is continued
    with `resume`, deleted with `fresh`, and refused if its `identity` is another. After each trial `report` gets it, the
    number finished and the total.

    >>> result = search(lambda scale, hopeless: Measurement(-(scale - 0.3) ** 2), trials=12)
    >>> abs(result.best.scale - 0.3) < 0.05
    True
    """
    try:
        import optuna
    except ImportError as error:
        raise LoadError("search: it needs optuna. Install it with: pip install 'onespike[search]'") from error
    if trials < 1:
        raise UsageError(f"trials must be at least 1, not {trials}. The paper uses 50.")
    if resume and fresh:
        raise UsageError(
            "search: resume=True continues a search, and fresh=True starts over. Give one of them."
        )
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a trial that fails ends in an error here
    wanted = tuple(dict.fromkeys(grid(trials) if sampler == "grid" else fixed))[:trials]
    experimental = optuna.exceptions.ExperimentalWarning
    with warnings.catch_warnings(action="ignore", category=experimental), connected(storage) as backend:
        with understood(f"search: the study {name}", DAMAGED):
            study = open_study(backend, name, identity or {}, resume, fresh, maximize)
            finished(study)
        plan(study, wanted)
        study.sampler = sampler_of(sampler, seed + len(study.trials))  # resumed, it draws other numbers
        _run(study, objective, trials, wanted, budget, report)
        measured = finished(study)
    valued = [t for t in measured if t.value is not None and t.value == t.value]
    if budget is not None:
        valued = _within(valued, budget)
    if not valued:
        raise UsageError("search: no trial gave a number. Check the data, or try more values.")
    best = max(valued, key=lambda t: ((t.value or 0.0) * (1 if maximize else -1), t.scale))
    return Search(tuple(measured), best, maximize, budget)


def _within(measured: Sequence[Trial], budget: float) -> list[Trial]:
    inside = [t for t in measured if t.energy is not None and t.energy <= budget]
    if not inside and measured:
        least = min(measured, key=lambda t: t.energy if t.energy is not None else float("inf"))
        raise UsageError(
            f"search: no λ stays within the budget {budget:g}; the least is {least.energy:.3f} of all MACs at λ = {least.scale:g}. "
            "Allow more energy, or use fewer levels."
        )
    return inside


def _run(
    study: Any,
    objective: Objective,
    trials: int,
    wanted: Sequence[float],
    budget: float | None,
    report: Report,
) -> None:
    """Let optuna ask, measure and tell until enough trials are finished; processes that share a study may add one each."""

    def reported(study: Any, frozen: Any) -> None:
        if frozen.state.name == "COMPLETE":
            report(read_trial(frozen), len(finished(study)), trials)

    blank_since: dict[int, float] = {}
    while (missing := trials - len(finished(study))) > 0:
        if missing > len(trials_in(study, "RUNNING")):
            study.optimize(lambda t: _measure(study, t, objective, budget), n_trials=1, callbacks=[reported])
        else:  # another process measures what is missing, or died while it did
            time.sleep(0.2)
            revive(study, blank_since)
            plan(study, wanted)


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
        raise UsageError(
            f"search: the metric is not a number at λ = {scale:g}. Check the data and the network's outputs."
        )
    facts: dict[str, Any] = {"seconds": time.perf_counter() - started, "finished": measured.finished}
    if measured.energy is not None:
        facts["energy"] = measured.energy
        if budget is not None:
            trial.set_constraint("budget", measured.energy - budget)
    facts["sha256"] = seal(scale, measured.value, measured.finished, measured.energy)
    for name, fact in facts.items():
        trial.set_user_attr(name, fact)
    # Told as complete even if given up: the GP ignores pruned trials and would ask for them again.
    return measured.value
