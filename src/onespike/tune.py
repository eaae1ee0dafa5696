"""Search on a run: its own images, its own record, and the λ (and steps) it finds put back into the run."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onespike import pipeline, storage
from onespike.convert import convert
from onespike.energy import COLUMNS
from onespike.errors import DataError, LoadError, UsageError, unknown
from onespike.files import sha256, write_atomically
from onespike.objective import HALVINGS, OBJECTIVES, OverallObjective, ScaleObjective, every_of, scale_within
from onespike.pipeline import Pair, Progress, no_progress
from onespike.recipe import preset
from onespike.search import Report, Search, Trial, search
from onespike.sensitivity import factors, sensitivities
from onespike.tasks import Coco, Items, batches
from onespike.tasks import limit as limit_items

FOLDER, RECORD, STUDY = "search", "search.json", "study.db"
METRICS = {"top1": "top-1 accuracy, %", "kl": "KL to the original, nats", "ap": "AP, %"}
SHARE = 0.02
"""The paper's split: 2 % of the images, at least 100 of them here."""


@dataclass(frozen=True)
class Outcome:
    """What a search found and what it cost."""

    search: Search
    objective: str
    energy: str | None
    images: int
    available: int
    forwards: int
    seconds: float
    per_site: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        def row(trial: Trial) -> dict[str, Any]:
            return {
                "scale": trial.scale,
                "value": trial.value,
                "energy": trial.energy,
                "seconds": trial.seconds,
            }

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
        }
        return record if self.per_site is None else {**record, "per_site": self.per_site}


def search_images(
    pair: Pair, data: str, count: int | None, annotations: Path | None = None
) -> tuple[Items, int, Coco | None]:
    """Images that calibration has not seen, evenly spaced, how many there are in all, and a detector's truth.

    They are shuffled (always alike), so that the first of them, which decide whether a trial is given up and on which
    spikes are counted, are of all classes.
    """
    everything, coco = pipeline.choose_labelled(pair.loaded, data, annotations, None)
    seen = set(pipeline.overlap(pair.data, everything))
    free = pipeline.without(everything, seen)
    if not free:
        raise DataError(f"{data}: calibration has used all of its images. Give a folder with other ones.")
    count = max(round(SHARE * len(free)), 100) if count is None else count
    chosen = limit_items(free, count)
    order = random.Random(0).sample(range(len(chosen)), len(chosen))  # noqa: S311 - no secret
    shuffled = tuple(chosen[place] for place in order)
    return dataclasses.replace(chosen, items=shuffled), len(everything), coco


def searched(folder: Path) -> dict[str, Any]:
    """What the last search in a run has recorded, the images that it used included; nothing where there was none."""
    file = folder / FOLDER / RECORD
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LoadError(
            f"{file}: the record of the search is damaged. Remove it, or search again."
        ) from error
    return record


def search_run(
    folder: Path,
    data: str,
    *,
    annotations: Path | None = None,
    trials: int = 50,
    objective: str | None = None,
    sampler: str = "gp",
    budget: float | None = None,
    energy: str = "counts",
    front: bool = False,
    per_site: str | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    device: str = "cpu",
    compiled: bool = False,
    url: str | None = None,
    resume: bool = False,
    report: Report = lambda trial, done, total: None,
    progress: Progress = no_progress,
) -> Outcome:
    """Search λ of a run on images of its own, store every trial, and keep the best λ in the run.

    Classifiers are searched by top-1 accuracy or by KL, detectors by AP with `annotations`.
    """
    started = time.perf_counter()
    if objective is not None and objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    if energy not in COLUMNS or energy in ("w8a8", "w4a4"):
        raise unknown("energy column", energy, ("counts", "nonzero", "binary", "strict"))
    if budget is not None and not budget > 0:
        raise UsageError(
            f"the budget must be above 0, not {budget:g}. The paper's networks use 0.15 to 0.19."
        )
    if per_site not in (None, "site", "kind"):
        raise unknown("per-site choice", per_site, ("site", "kind"))
    pair = pipeline.load_run(folder, device=device)
    _check_task(pair, objective, per_site, compiled)
    if pair.recipe.factors:  # a search starts from one λ for all
        pair = pipeline.with_recipe(pair, pair.recipe.replace(factors=()))
    items, available, coco = search_images(pair, data, limit, annotations)
    column = energy if budget is not None or front or per_site else None
    inputs = batches(items, pair.loaded.transform, batch_size, collate=pair.loaded.collate)
    measure: ScaleObjective | OverallObjective
    if coco is not None:
        objective, score = "ap", pipeline.detection(pair.loaded, coco).precision
        measure = OverallObjective(pair.snn, inputs, score, column)
    else:
        objective = objective or ("top1" if items.labelled else "kl")
        shown = progress("original network", -(-len(items) // batch_size))(inputs)
        measure = ScaleObjective(pair.ann, pair.snn, shown, objective, column, compiled)
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    found = search(
        measure,
        trials=trials,
        maximise=OBJECTIVES[objective],
        fixed=(1.0, preset(pair.recipe.preset).scale),
        sampler=sampler,
        budget=budget,
        storage=url or f"sqlite:///{place / STUDY}",
        name=f"onespike-{_identity(folder)[:16]}",
        identity={
            "run": _identity(folder),
            "objective": objective,
            "images": list(items.names),
            "sampler": sampler,
            "budget": budget,
            "energy": column,
        },
        resume=resume,
        report=report,
    )
    chosen = None
    if isinstance(measure, ScaleObjective) and per_site is not None:
        chosen = allocate(pair, measure, found, per_site, items, batch_size)
    outcome = Outcome(
        found, objective, column, len(items), available, measure.forwards, time.perf_counter() - started,
        None if chosen is None else chosen.to_dict(),
    )  # fmt: skip
    _keep(folder, pair, items, outcome, chosen)
    return outcome


def _check_task(pair: Pair, objective: str | None, per_site: str | None, compiled: bool) -> None:
    """Detectors are measured by AP, and have no logits from which a sensitivity follows."""
    spec, detects = pair.loaded.spec, pair.loaded.results is not None
    if objective is not None and (objective == "ap") != detects:
        fitting = "ap" if detects else "top1 or kl"
        raise UsageError(
            f"search: the objective of {spec} is {fitting}, not {objective}. Leave --objective out."
        )
    if detects and (per_site or compiled):
        raise UsageError(f"search: --per-site and --compile are for classifiers. Leave them out for {spec}.")


@dataclass(frozen=True)
class Allocation:
    """Steps for each site at the energy of the best single λ, kept only if the metric is better."""

    by: str
    scale: float
    value: float
    energy: float
    single: float
    better: bool
    factors: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


SENSITIVITY_IMAGES = 48


def allocate(
    pair: Pair, measure: ScaleObjective, found: Search, by: str, items: Items, batch_size: int
) -> Allocation:
    """Steps ∝ (fan-out·E|x| / g)^⅓ from measured sensitivity, at the energy that the best single λ has."""
    few = limit_items(items, SENSITIVITY_IMAGES)
    inputs = (x for x, _ in batches(few, pair.loaded.transform, batch_size))
    measured = sensitivities(pair.ann, pair.thresholds, pair.recipe, inputs)
    measure.forwards += len(few)
    found_factors = factors(pair.thresholds, measured, by)
    recipe = pair.recipe.replace(factors=found_factors)
    snn = convert(pair.ann, pair.thresholds, recipe, share_weights=True)
    column, budget = measure.energy or "counts", found.best.energy
    if budget is None:
        raise UsageError(
            "search: the best trial has no energy to compare with. Search again without --resume."
        )
    first = measure.parts[0][0]
    scale = scale_within(snn, first, column, budget, every_of(column))
    measure.forwards += HALVINGS * len(first)
    objective = copy.copy(measure)
    objective.snn = objective.run = snn
    result = objective(scale, lambda step, value: False)
    measure.forwards = objective.forwards
    if result.energy is None or found.best.value is None:
        raise UsageError("search: the allocation could not be measured. Give more images with --limit.")
    sign = 1 if found.maximise else -1
    better = result.energy <= budget and sign * result.value > sign * found.best.value
    return Allocation(by, scale, result.value, result.energy, found.best.value, better, found_factors)


def _identity(folder: Path) -> str:
    """What stays the same while λ changes: the thresholds, and through them the network and its calibration."""
    return sha256(folder / storage.THRESHOLDS)


def _keep(folder: Path, pair: Pair, items: Items, outcome: Outcome, chosen: Allocation | None) -> None:
    record = {**outcome.to_dict(), "source": items.source, "names": list(items.names),
              "sha256": [pipeline.digest(item) for item in items]}  # fmt: skip
    write_atomically(folder / FOLDER / RECORD, json.dumps(record, indent=1) + "\n")
    recipe = pair.recipe.replace(scale=outcome.search.best.scale, factors=())
    if chosen is not None and chosen.better:
        recipe = pair.recipe.replace(scale=chosen.scale, factors=chosen.factors)
    storage.replace_recipe(folder, recipe)
