"""Ablation of a run's passes: each alone, each left out, and all together, at one energy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onespike import runs
from onespike.calibration.stream import calibrate
from onespike.conversion.network import convert
from onespike.errors import DataError
from onespike.evaluation.side_by_side import evaluate
from onespike.passes import TRAITS, PassContext, PassState, chain, check_passes, check_recipe
from onespike.passes.budget import check_budget, fit, target
from onespike.recipe import PRESETS, Recipe
from onespike.runs import Inputs, NetworkPair, Progress, no_progress
from onespike.runs.contents import images_digest, network_digest
from onespike.runs.storage import THRESHOLDS
from onespike.runtime.atomic import sha256, try_file, write_atomically
from onespike.runtime.validated import parse, read_sealed, sealed, understood
from onespike.tasks import Headline, Items

FOLDER, RECORD = "ablation", "ablation.json"
AGAIN = "Remove it to measure again."
QUICK = tuple(name for name in PRESETS["best"].settings["passes"] if name != "tune")
"""The default passes to ablate: tuning in every row would take hours."""


UNKNOWN = Headline("", None, None)


@dataclass(frozen=True)
class _Figures:
    what: str
    passes: tuple[str, ...]
    ann: dict[str, Any]
    snn: dict[str, Any]
    energy: dict[str, float | None]
    kl: float = 0.0


@dataclass(frozen=True)
class _Ablation:
    rows: tuple[_Figures, ...]


@dataclass(frozen=True)
class _Record:
    """The schema of the ablations in a run."""

    ablations: tuple[_Ablation, ...]


@dataclass(frozen=True)
class Row:
    """One choice of passes and its result; `headline` is the figure that networks of its task are compared by."""

    what: str
    passes: tuple[str, ...]
    figures: dict[str, Any]
    headline: Headline = UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        return {"what": self.what, "passes": list(self.passes), **self.figures}


def choices(names: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """Return no pass, each alone (with what it needs), each left out (with what needs it), and all; each choice once.

    >>> choices(("nearest", "allocate"))
    [('none', ()), ('nearest alone', ('nearest',)), ('allocate alone', ('allocate',)), ('all', ('nearest', 'allocate'))]
    """
    found: list[tuple[str, tuple[str, ...]]] = [("none", ())]
    found += [(f"{name} alone", check_passes((*TRAITS[name].needs, name))) for name in names]
    for name in names:
        kept = tuple(n for n in names if n != name and name not in TRAITS[n].needs)
        found.append((f"without {name}", kept))
    found.append(("all", names))
    once = {kept: what for what, kept in reversed(found)}
    return [(what, kept) for what, kept in found if once[kept] == what]


def ablate_run(
    folder: Path,
    data: str,
    *,
    annotations: Path | None = None,
    passes: tuple[str, ...] | None = None,
    budget: float | None = None,
    energy: str | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    device: str = "cpu",
    progress: Progress = no_progress,
) -> Iterator[Row]:
    """Calibrate a run's network again on its images, and measure each choice of passes at the same energy.

    Every finished row is stored in the run at once; a second call measures only the missing ones. Rows on other
    images, or at another energy, are kept beside them.

    Args:
        folder: the run.
        data: images to measure on; calibration must not have seen them.
        annotations: the objects on the images, for tasks that need them.
        passes: the passes to ablate; those of the run by default, or else those of the preset `best` without `tune`.
        budget: the energy ratio of all rows; by default the run's, or that of its recipe without passes.
        energy: the ledger's column for the budget.
        limit: number of images, evenly spaced.
        batch_size: images per forward pass.
        device: where both networks run.
        progress: progress(title, total) wraps the batches of a long stage.
    """
    pair = runs.load_run(folder, device=device)
    items = runs.choose_labeled(pair.loaded, data, annotations, limit)
    if runs.overlap(pair.data, items):
        raise DataError(f"{data}: calibration has used some of these images. Give other ones.")
    names = check_passes(passes or pair.recipe.passes or QUICK)
    column = energy or pair.recipe.energy
    check_budget(budget, column)
    recipe = pair.recipe.replace(passes=(), budget=None, max_drop=None, energy=column, factors=())
    check_recipe(recipe.replace(passes=names))
    wanted = budget if budget is not None else pair.recipe.budget
    place = folder / FOLDER / RECORD
    identity = {
        "run": sha256(folder / THRESHOLDS),
        "weights": network_digest(pair.ann),
        "recipe": json.loads(json.dumps(recipe.to_dict())),
        "images": images_digest(items),
        "budget": wanted,
        "energy": column,
    }
    known = _rows(next((found for found in _read(place) if _same(found, identity)), {"rows": []}))
    try_file(place)
    state: PassState | None = None
    for what, kept in choices(names):
        row = known.get(kept)
        if row is None:
            if state is None:
                state, given = _start(pair, recipe, wanted, progress)
            figures = _measure(
                pair,
                chain(state, given, kept) if kept else _plain(state, given),
                items,
                batch_size,
                progress,
                what,
            )
            row = known[kept] = Row(what, kept, figures)
            _keep(place, identity, known, items.source)
        with understood(place, AGAIN):
            headline = pair.loaded.task.headline(row.figures)
        parse(Headline, json.dumps(dataclasses.asdict(headline)), place, AGAIN)
        yield dataclasses.replace(row, what=what, headline=headline)


def _plain(state: PassState, given: PassContext) -> PassState:
    """Return the literal method at the energy of the others."""
    return fit(state, given, given.budget or target(state, given))


def _start(
    pair: NetworkPair, recipe: Recipe, budget: float | None, progress: Progress
) -> tuple[PassState, PassContext]:
    items = calibration_images(pair)
    inputs = Inputs(items, pair.loaded)
    thresholds = calibrate(pair.ann, progress("calibrating", len(inputs))(inputs), recipe)
    state = PassState(thresholds, recipe)
    given = PassContext(pair.ann, inputs, budget, recipe.energy, progress=progress, task=pair.loaded.task)
    return state, dataclasses.replace(given, budget=target(state, given))


def calibration_images(pair: NetworkPair) -> Items:
    """Return the images that a run was calibrated on, checked by name and contents."""
    everything = runs.choose(pair.data["source"], None, pair.loaded.task)
    names = set(pair.data["names"])
    chosen = dataclasses.replace(everything, items=tuple(i for i in everything if i.name in names))
    if len(runs.overlap(pair.data, chosen)) != len(names):
        raise DataError(
            f"{pair.data['source']}: the images that the run was calibrated on are not all there. Convert again."
        )
    return chosen


def _measure(
    pair: NetworkPair, state: PassState, items: Items, batch_size: int, progress: Progress, title: str
) -> dict[str, Any]:
    snn = convert(pair.ann, state.thresholds, state.recipe, share_weights=True)
    steps = -(-len(items) // batch_size)
    found = evaluate(
        pair.ann,
        snn,
        pair.loaded.batches(items, batch_size),
        runs.metric_for(pair, items),
        progress=progress(title, steps),
    )
    return {name: value for name, value in found.to_dict().items() if name not in ("scale", "seconds")}


def _read(place: Path) -> list[dict[str, Any]]:
    """Return every ablation in a run, with its identity."""
    record = read_sealed(_Record, place, AGAIN)
    return [] if record is None else list(record["ablations"])


def _rows(found: dict[str, Any]) -> dict[tuple[str, ...], Row]:
    rows = [dict(row) for row in found["rows"]]
    return {tuple(r["passes"]): Row(r.pop("what"), tuple(r.pop("passes")), r) for r in rows}


def _same(found: dict[str, Any], identity: dict[str, Any]) -> bool:
    return {name: found.get(name) for name in identity} == identity


def _keep(place: Path, identity: dict[str, Any], known: dict[tuple[str, ...], Row], source: str) -> None:
    """Store the rows of one ablation beside those of the others."""
    others = [found for found in _read(place) if not _same(found, identity)]
    mine = {**identity, "source": source, "rows": [row.to_dict() for row in known.values()]}
    place.parent.mkdir(exist_ok=True)
    write_atomically(place, sealed({"ablations": [*others, mine]}))
