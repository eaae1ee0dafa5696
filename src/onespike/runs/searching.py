"""Search for λ: of a network in memory, or of a run, whose trials and result are kept in its folder.

A trial is one forward pass of the converted network, with the λ that `scale_search` proposes.
"""

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from onespike.calibration.inputs import batch_count
from onespike.conversion.network import set_scale_
from onespike.energy.columns import column_of, searchable
from onespike.energy.ledger import Ledger, or_none
from onespike.energy.metering import counted, metered
from onespike.energy.profiles import profile
from onespike.errors import DataError, UsageError, unknown
from onespike.evaluation.pairwise import Once, pairwise
from onespike.recipe import preset
from onespike.runs import storage
from onespike.runs.inputs import choose, choose_labeled, digest, images_digest, overlap, without
from onespike.runs.pair import NetworkPair, in_memory, with_recipe
from onespike.runtime.atomic import sha256, try_file, write_atomically
from onespike.runtime.batches import call, count, to
from onespike.runtime.forward import device_of
from onespike.runtime.progress import progress
from onespike.runtime.validated import read_sealed, sealed
from onespike.scale_search import LOWEST, Hopeless, Measurement, Search, Trial
from onespike.scale_search import search as search_scale
from onespike.tasks import Items, Objective, Task
from onespike.tasks import limit as limit_items

FOLDER, RECORD, STUDY = "search", "search.json", "study.db"
SHARE = 0.02  # the paper's split: 2 % of the images, here at least 100
EVERY = 64
"""A full count would double the cost of a forward, so a search counts one row of elements in 64 of the first batch."""


class ScaleObjective:
    """Measure one λ on a fixed set of inputs in memory, with the original's outputs while there is room.

    A trial is one forward of the converted network over the inputs. If energy is wanted, spikes of the first batch are
    counted. `forwards` is how many inputs went through either network so far.
    """

    def __init__(
        self,
        ann: nn.Module,
        snn: nn.Module,
        batches: Iterable[tuple[Any, Any]],
        objective: Objective,
        items: Items,
        energy: str | None = None,
    ) -> None:
        self.snn, self.objective, self.items, self.energy = snn, objective, items, energy
        device = device_of(ann)
        self.parts = [(to(inputs, device), labels) for inputs, labels in batches]
        self.forwards = 0
        if objective.labeled and any(labels is None for _, labels in self.parts):
            raise DataError("search: the images have no labels. Use objective='kl', which needs none.")
        self.original = Once(ann)
        if not objective.labeled:
            self.forwards += sum(count(inputs) for inputs, _, _ in pairwise((self.original,), self.parts))

    def __call__(self, scale: float, hopeless: Hopeless) -> Measurement:
        set_scale_(self.snn, scale)
        score, column = self.objective.score(self.items), self.energy
        # some columns have parts that must be whole
        ledger = Ledger(every=EVERY if column is None or not column_of(column).strict_of else 1)
        quarters = {max(1, round(len(self.parts) * q / 4)) for q in (1, 2, 3)}

        def original(inputs: Any) -> Any:
            if self.objective.labeled:
                return None
            self.forwards += 0 if self.original.place in self.original.answers else count(inputs)
            return call(self.original, inputs)

        def spiking(inputs: Any) -> Any:
            self.forwards += count(inputs)
            is_first = column is not None and not ledger.inputs
            with metered(self.snn, ledger) if is_first else nullcontext():
                return call(self.snn, inputs)

        answered = pairwise((self.original, self.snn), self.parts, (original, spiking))
        for step, (inputs, labels, (expected, actual)) in enumerate(answered, 1):
            score.update(expected, actual, labels, count(inputs))
            # where energy counts too, a trial with a poor metric may be on the front
            asks = column is None and self.objective.partial and step in quarters
            if asks and step < len(self.parts) and hopeless(step, score.value()):
                return Measurement(score.value(), finished=False)
        return Measurement(score.value(), None if column is None else ledger.ratio(column))


def scale_within(snn: nn.Module, inputs: Any, column: str, ratio: float, halvings: int = 12) -> float:
    """Return the smallest λ whose energy on these inputs is within a ratio: energy falls as λ grows."""
    low, high = LOWEST, 1.0
    for _ in range(halvings):
        middle = (low * high) ** 0.5
        set_scale_(snn, middle)
        low, high = (low, middle) if counted(snn, inputs).ratio(column) <= ratio else (middle, high)
    return high


def search(
    model: nn.Module,
    snn: nn.Module,
    loader: Iterable[tuple[Any, Any]],
    *,
    objective: str | None = None,
    trials: int = 50,
    sampler: str = "gp",
    budget: float | None = None,
    energy: str | None = None,
    task: Task | None = None,
) -> Search:
    """Find the best λ of a converted network and set it there.

    The loader gives (inputs, labels) that neither calibration nor a later evaluation sees; labels may be None. The
    objective is `kl`, which needs no labels, or another of the task; by default its accuracy where there are labels.
    The sampler is `gp`, `tpe` or `grid`; the budget is a ratio in the energy column, that of the recipe by default.
    """
    pair, items = in_memory(model, snn, loader, task)
    column = None if budget is None else energy or pair.recipe.energy
    aim = aim_of(pair, objective or pair.loaded.task.objective(items))
    _, run = _scales(pair, items, aim, column, len(items))
    result = run(trials=trials, sampler=sampler, budget=budget)
    set_scale_(snn, result.best.scale)
    return result


def aim_of(pair: NetworkPair, name: str) -> Objective:
    """Return the objective of this name, which must be one of the network's task."""
    objectives = pair.loaded.task.objectives
    if name not in objectives:
        raise unknown("objective", name, objectives)
    return objectives[name]


def _scales(
    pair: NetworkPair, items: Items, aim: Objective, column: str | None, batch_size: int
) -> tuple[ScaleObjective, Callable[..., Search]]:
    """Return what measures a λ, and the search that asks it: λ = 1 and the preset's value are always tried."""
    bar = progress("original network", batch_count(items, batch_size))
    batches = bar(pair.loaded.batches(items, batch_size))
    measure = ScaleObjective(pair.ann, pair.snn, batches, aim, items, column)
    fixed = 1.0, preset(pair.recipe.preset).scale
    return measure, partial(search_scale, measure, maximize=aim.maximize, fixed=fixed)


def search_images(
    pair: NetworkPair, data: str, count: int | None, annotations: Path | None = None, labeled: bool = True
) -> tuple[Items, int]:
    """Return images that calibration has not seen, evenly spaced, and their total number; labels only where asked for.

    They are shuffled (always the same way), so that the first of them cover all classes: these decide whether a trial
    is given up, and spikes are counted on them.
    """
    if labeled or annotations is not None:
        everything = choose_labeled(pair.loaded, data, annotations)
    else:
        everything = choose(data, None, pair.loaded.task)
    free = _unused(everything, pair.data)
    chosen = limit_items(free, max(round(SHARE * len(free)), 100) if count is None else count)
    shuffled = random.Random(0).sample(chosen.items, len(chosen))  # noqa: S311 - no secret
    return dataclasses.replace(chosen, items=tuple(shuffled)), len(everything)


@dataclass(frozen=True)
class _Record:
    """The schema of the record that a search leaves in its run, as far as it is read."""

    trials: tuple[Trial, ...]
    best: Trial
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
    items = choose_labeled(pair.loaded, data, annotations)
    if held_out:
        items = _unused(items, *uses(folder, pair).values())
    return limit_items(items, count)


def uses(folder: Path, pair: NetworkPair) -> dict[str, Mapping[str, Any]]:
    """Return what a run has used inputs for, with their hashes: a figure on them is not held-out."""
    return {"calibration": pair.data, "the search": {"sha256": searched(folder).get("used", ())}}


def _unused(items: Items, *records: Mapping[str, Any]) -> Items:
    for record in records:
        items = without(items, overlap(record, items))
    if not items:
        raise DataError(f"{items.source}: calibration or a search has used all of its inputs. Give others.")
    return items


def search_run(
    folder: Path,
    pair: NetworkPair,
    data: str,
    *,
    annotations: Path | None = None,
    objective: str | None = None,
    sampler: str = "gp",
    budget: float | None = None,
    energy: str | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    url: str | None = None,
    **options: Any,
) -> tuple[Search, dict[str, Any], NetworkPair]:
    """Search λ of a run on separate images, store every trial, and keep the best λ in the run.

    Return the search, its record with what it cost, and the run's new pair. The objective must be one that the network's
    task has. Energy is measured if there is a budget, or a column for it; in the record, `spent` is the energy of the run
    before and after, on the first batch in the column of its recipe. `options` are those of `scale_search.search`:
    `trials`, `resume` and `fresh`.
    """
    started = time.perf_counter()
    if energy is not None and energy not in searchable():
        raise unknown("energy column", energy, searchable())
    if budget is not None and not budget > 0:
        raise UsageError(f"the budget must be above 0, not {budget:g}. The paper has 0.15 to 0.19.")
    try_file(folder / FOLDER / RECORD)
    labeled = objective is None or aim_of(pair, objective).labeled
    before_search, own_column = pair.snn, pair.recipe.energy
    if pair.recipe.factors:  # a search starts from one λ for all
        pair = with_recipe(pair, pair.recipe.replace(factors=()))
    items, available = search_images(pair, data, limit, annotations, labeled)
    column = energy or own_column if budget is not None or energy is not None else None
    objective = objective or pair.loaded.task.objective(items)
    measure, run = _scales(pair, items, aim_of(pair, objective), column, batch_size)
    before = counted(before_search, measure.parts[0][0])
    (folder / FOLDER).mkdir(exist_ok=True)
    # Each request is a separate study, so that one run may be searched in several ways. The thresholds stand for the
    # network and its calibration.
    parts = (sha256(folder / storage.THRESHOLDS)[:16], objective, sampler, budget, column, profile().name)
    result = run(
        sampler=sampler,
        budget=budget,
        storage=url or f"sqlite:///{folder / FOLDER / STUDY}",
        name="-".join(["onespike", *(str(part) for part in parts if part is not None)]),
        identity=images_digest(items),
        **options,
    )
    pair = with_recipe(pair, pair.recipe.replace(scale=result.best.scale))
    after = counted(pair.snn, measure.parts[0][0])
    record = {
        **dataclasses.asdict(result),
        "seconds": time.perf_counter() - started,
        "forwards": measure.forwards,
        "full_evaluation_forwards": available,
        "objective": objective,
        "images": len(items),
        "energy": column,
        "front": [dataclasses.asdict(trial) for trial in result.front()],
        "spent": {
            "column": own_column,
            "before": or_none(before.ratio(own_column)),  # None for neurons whose spikes have no count
            "after": or_none(after.ratio(own_column)),
            "budget": pair.recipe.budget,
            "analog_share": after.analog_share,
        },
    }
    images = {"source": items.source, "names": list(items.names), "used": [digest(item) for item in items]}
    write_atomically(folder / FOLDER / RECORD, sealed({**record, **images}))
    storage.replace_recipe(folder, pair.recipe)
    return result, record, pair
