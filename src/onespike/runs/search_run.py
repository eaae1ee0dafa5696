"""Search on a run: its images, its record, and the resulting λ (and steps) written back into the run."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from onespike import runs
from onespike.energy.columns import searchable
from onespike.energy.ledger import or_none
from onespike.energy.metering import metered
from onespike.energy.profiles import DEFAULT, profile
from onespike.errors import DataError, UsageError, unknown
from onespike.passes import no_progress
from onespike.passes.base import Progress
from onespike.recipe import Recipe, preset
from onespike.runs import storage
from onespike.runs.allocation import Allocation, allocate
from onespike.runs.contents import digest, images_digest
from onespike.runs.pair import NetworkPair
from onespike.runtime.atomic import sha256, try_file, write_atomically
from onespike.runtime.batches import call
from onespike.runtime.forward import evaluating
from onespike.runtime.validated import read_sealed, sealed
from onespike.scale_search import Report, Search, Trial, search
from onespike.scale_search.objective import ScaleObjective
from onespike.tasks import Items, Objective, Score, Task, check
from onespike.tasks import limit as limit_items

FOLDER, RECORD, STUDY = "search", "search.json", "study.db"
SHARE = 0.02
"""The paper's split: 2 % of the images, here at least 100."""


@dataclass(frozen=True)
class Spent:
    """Energy of the run before and after the search, counted on the first batch in the column of its recipe.

    Both are None for neurons whose spikes have no count. `analog_share` is the share of MACs that stay analog.
    """

    column: str
    before: float | None
    after: float | None
    budget: float | None
    analog_share: float

    @property
    def rises(self) -> bool:
        """Whether the kept network spends over 5 % more than the one before, or than the run's budget."""
        if self.before is None or self.after is None:
            return False
        return self.after > 1.05 * (self.before if self.budget is None else min(self.before, self.budget))


@dataclass(frozen=True)
class Outcome:
    """The result of a search and its cost."""

    search: Search
    objective: str
    title: str
    energy: str | None
    images: int
    available: int
    forwards: int
    seconds: float
    spent: Spent
    per_site: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        def row(trial: Trial) -> dict[str, Any]:
            return {name: value for name, value in dataclasses.asdict(trial).items() if name != "number"}

        record = {
            "trials": [row(t) for t in self.search.trials],
            "best": row(self.search.best),
            "seconds": self.seconds,
            "forwards": self.forwards,
            "full_evaluation_forwards": self.available,
            "objective": self.objective,
            "images": self.images,
            "budget": self.search.budget,
            "energy": self.energy,
            "front": [row(t) for t in self.search.front()],
            "spent": dataclasses.asdict(self.spent),
        }
        return record if self.per_site is None else {**record, "per_site": self.per_site}


def search_images(
    pair: NetworkPair, data: str, count: int | None, annotations: Path | None = None, labeled: bool = True
) -> tuple[Items, int]:
    """Return images that calibration has not seen, evenly spaced, and their total number; labels only where asked for.

    They are shuffled (always the same way), so that the first of them cover all classes: these decide whether a trial
    is given up, and spikes are counted on them.
    """
    if labeled or annotations is not None:
        everything = runs.choose_labeled(pair.loaded, data, annotations)
    else:
        everything = runs.choose(data, None, pair.loaded.task)
    seen = set(runs.overlap(pair.data, everything))
    free = runs.without(everything, seen)
    if not free:
        raise DataError(f"{data}: calibration has used all of its inputs. Give other ones.")
    count = max(round(SHARE * len(free)), 100) if count is None else count
    chosen = limit_items(free, count)
    order = random.Random(0).sample(range(len(chosen)), len(chosen))  # noqa: S311 - no secret
    shuffled = tuple(chosen[place] for place in order)
    return dataclasses.replace(chosen, items=shuffled), len(everything)


@dataclass(frozen=True)
class _Measured:
    scale: float
    value: float | None
    energy: float | None


@dataclass(frozen=True)
class _Record:
    """The schema of the record that a search leaves in its run, as far as it is read."""

    trials: tuple[_Measured, ...]
    best: _Measured
    objective: str
    images: int
    energy: str | None
    source: str
    used: tuple[str, ...]


def searched(folder: Path) -> dict[str, Any]:
    """Return the record of the last search in a run, including the images that it used; nothing if there was none."""
    return read_sealed(_Record, folder / FOLDER / RECORD, "Remove it, or search again.") or {}


def measurable(
    folder: Path,
    pair: NetworkPair,
    data: str,
    annotations: Path | None = None,
    count: int | None = None,
    *,
    held_out: bool = False,
) -> Items:
    """Return inputs to measure a run on; `held_out` leaves out what calibration or a search has used."""
    if not held_out:
        return runs.choose_labeled(pair.loaded, data, annotations, count)
    items = runs.choose_labeled(pair.loaded, data, annotations)
    for used in (pair.data, {"sha256": searched(folder).get("used", ())}):
        items = runs.without(items, runs.overlap(used, items))
    if not items:
        raise DataError(f"{data}: calibration or a search has used all of its inputs. Give other ones.")
    return items if count is None else limit_items(items, count)


def search_run(
    folder: Path,
    data: str,
    *,
    annotations: Path | None = None,
    trials: int = 50,
    objective: str | None = None,
    sampler: str = "gp",
    budget: float | None = None,
    energy: str | None = None,
    front: bool = False,
    per_site: str | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    device: str = "cpu",
    compiled: bool = False,
    url: str | None = None,
    resume: bool = False,
    fresh: bool = False,
    report: Report = lambda trial, done, total: None,
    progress: Progress = no_progress,
) -> Outcome:
    """Search λ of a run on separate images, store every trial, and keep the best λ in the run.

    The objective must be one that the network's task has.
    """
    started = time.perf_counter()
    if energy is not None and energy not in searchable():
        raise unknown("energy column", energy, searchable())
    if budget is not None and not budget > 0:
        raise UsageError(
            f"the budget must be above 0, not {budget:g}. The paper's networks use 0.15 to 0.19."
        )
    if per_site not in (None, "site", "kind"):
        raise unknown("per-site choice", per_site, ("site", "kind"))
    pair = runs.load_run(folder, device=device)
    try_file(folder / FOLDER / RECORD)
    task = pair.loaded.task
    _check_task(task, pair.loaded.spec, objective, compiled)
    given, own = pair.snn, pair.recipe.energy
    if pair.recipe.factors:  # a search starts from one λ for all
        pair = runs.with_recipe(pair, pair.recipe.replace(factors=()))
    labeled = objective is None or task.objectives[objective].labeled
    items, available = search_images(pair, data, limit, annotations, labeled)
    column = (energy or own) if budget is not None or front or per_site else None
    objective = objective or task.objective(items)
    aim = task.objectives[objective]
    inputs = pair.loaded.batches(items, batch_size)
    shown = progress("original network", -(-len(items) // batch_size))(inputs)
    measure = objective_of(pair, items, shown, aim, column, compiled)
    before, _ = _energy(given, measure.parts[0][0], own)
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    # each request is a separate study, so that one run may be searched in several ways
    prices = None if profile().name == DEFAULT else profile().name
    parts = (
        objective, sampler, budget and f"{budget:g}", column, "pareto" if front else None, per_site, prices
    )  # fmt: skip
    asked = [str(part) for part in parts if part is not None]
    found = search(
        measure,
        trials=trials,
        maximize=aim.maximize,
        fixed=(1.0, preset(pair.recipe.preset).scale),
        sampler=sampler,
        budget=budget,
        storage=url or f"sqlite:///{place / STUDY}",
        name="-".join(["onespike", _identity(folder)[:16], *asked]),
        identity={
            "run": _identity(folder),
            "objective": objective,
            "images": images_digest(items),
            "sampler": sampler,
            "budget": budget,
            "energy": column,
        },
        resume=resume,
        fresh=fresh,
        report=report,
    )
    chosen = None if per_site is None else allocate(pair, measure, found, per_site, items, batch_size)
    recipe = _kept(pair, found, chosen)
    after, analog = _energy(runs.with_recipe(pair, recipe).snn, measure.parts[0][0], own)
    outcome = Outcome(
        found, objective, aim.title, column, len(items), available, measure.forwards, time.perf_counter() - started,
        Spent(own, before, after, pair.recipe.budget, analog), None if chosen is None else chosen.to_dict(),
    )  # fmt: skip
    _keep(folder, items, outcome, recipe)
    return outcome


def _energy(snn: nn.Module, inputs: Any, column: str) -> tuple[float | None, float]:
    with evaluating(snn), metered(snn) as ledger:
        call(snn, inputs)
    return or_none(ledger.ratio(column)), ledger.analog_share


def _kept(pair: NetworkPair, found: Search, chosen: Allocation | None) -> Recipe:
    """Return the recipe of the best λ, or of the steps that are better."""
    if chosen is not None and chosen.better:
        return pair.recipe.replace(scale=chosen.scale, factors=chosen.factors)
    return pair.recipe.replace(scale=found.best.scale, factors=())


def _check_task(task: Task, spec: str, objective: str | None, compiled: bool) -> None:
    """Refuse objectives and options that the network's task does not have."""
    if objective is not None and objective not in task.objectives:
        known = " or ".join(task.objectives)
        raise UsageError(
            f"search: the objective of {spec} is {known}, not {objective}. Leave --objective out."
        )
    if compiled:
        check(task, "compile")


def objective_of(
    pair: NetworkPair,
    items: Items,
    batches: Iterable[tuple[Any, Any]],
    objective: Objective,
    energy: str | None = None,
    compiled: bool = False,
) -> ScaleObjective:
    """Return a run's network as a function of λ, on batches of these images."""

    def score() -> Score:
        return objective.score(items)

    return ScaleObjective(pair.ann, pair.snn, batches, objective, score, energy, compiled)


def _identity(folder: Path) -> str:
    """Return what stays the same while λ changes: the thresholds, and through them the network and its calibration."""
    return sha256(folder / storage.THRESHOLDS)


def _keep(folder: Path, items: Items, outcome: Outcome, recipe: Recipe) -> None:
    record = {**outcome.to_dict(), "source": items.source, "names": list(items.names),
              "used": [digest(item) for item in items]}  # fmt: skip
    write_atomically(folder / FOLDER / RECORD, sealed(record))
    storage.replace_recipe(folder, recipe)
