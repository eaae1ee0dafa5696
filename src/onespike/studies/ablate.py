"""Ablation of a run's passes: each alone, each left out, and all together, at one energy."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from onespike import runs
from onespike.calibration.stream import calibrate
from onespike.errors import DataError
from onespike.passes import PASSES, PassContext, PassState, chain, check_passes, check_recipe
from onespike.passes.budget import check_budget, fit, target
from onespike.presets import FAST
from onespike.reports.record import EvaluationRecord
from onespike.runs import Inputs, NetworkPair
from onespike.runs.inputs import images_digest, network_digest
from onespike.runs.storage import THRESHOLDS
from onespike.runtime.atomic import sha256, try_file
from onespike.runtime.progress import progress
from onespike.runtime.validated import parse, understood
from onespike.studies.finished import REMEDY, Finished
from onespike.tasks import Headline, Items

FOLDER, RECORD = "ablation", "ablation.json"


@dataclass(frozen=True)
class Row:
    """One choice of passes and its result; `headline` is the figure that networks of its task are compared by."""

    what: str
    passes: tuple[str, ...]
    figures: dict[str, Any]
    headline: Headline

    def to_dict(self) -> dict[str, Any]:
        return {"what": self.what, "passes": list(self.passes), **self.figures}


def choices(names: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """Return no pass, each alone (with what it needs), each left out (with what needs it), and all; each choice once."""
    titles: dict[tuple[str, ...], str] = {(): "none"}
    for name in names:
        titles.setdefault(check_passes((*PASSES[name].needs, name)), f"{name} alone")
    for name in names:
        others = tuple(n for n in names if n != name and name not in PASSES[n].needs)
        titles.setdefault(others, f"without {name}")
    titles.setdefault(names, "all")
    return [(what, passes) for passes, what in titles.items()]


def ablate_run(
    folder: Path,
    pair: NetworkPair,
    items: Items,
    *,
    passes: tuple[str, ...] | None = None,
    budget: float | None = None,
    energy: str | None = None,
    batch_size: int = 16,
) -> Iterator[Row]:
    """Calibrate a run's network again on its images, and measure each choice of passes at the same energy.

    Every finished row is stored in the run at once; a second call measures only the missing ones. Rows on other
    images, or at another energy, are kept beside them. The passes are those of the run by default, or else those of the
    preset `fast`, since tuning in every row would take hours; the budget is the run's, or the energy of its recipe without passes.
    """
    if runs.overlap(pair.data, items):
        raise DataError(f"{items.source}: calibration has used some of these images. Give other ones.")
    column, ratio = energy or pair.recipe.energy, pair.recipe.budget if budget is None else budget
    check_budget(ratio, column)
    recipe = pair.recipe.replace(passes=(), budget=None, max_drop=None, energy=column, factors=())
    names = check_recipe(recipe.replace(passes=passes or pair.recipe.passes or FAST))
    file = folder / FOLDER / RECORD
    finished = Finished(file, {})
    try_file(file)
    identity = {  # in every key: rows at another energy are kept beside these
        "run": sha256(folder / THRESHOLDS),
        "weights": network_digest(pair.ann),
        "recipe": recipe.to_dict(),
        "images": images_digest(items),
        "budget": ratio,
        "energy": column,
    }

    @cache
    def start() -> tuple[PassState, PassContext]:
        inputs = Inputs(runs.calibration_images(pair.loaded, pair.data), pair.loaded)
        state = PassState(calibrate(pair.ann, progress("calibrating", len(inputs))(inputs), recipe), recipe)
        context = PassContext(pair.ann, inputs, ratio, column, task=pair.loaded.task)
        return state, dataclasses.replace(context, budget=target(state, context))

    for what, chosen in choices(names):

        def measure(what: str = what, chosen: tuple[str, ...] = chosen) -> dict[str, Any]:
            state, context = start()
            # the literal method has the energy of the others
            state = chain(state, context, chosen) if chosen else fit(state, context, target(state, context))
            spiking = dataclasses.replace(pair, snn=state.network(pair.ann))
            return runs.evaluate_pair(spiking, items, batch_size=batch_size, title=what).to_dict()

        figures = finished.once(json.dumps({**identity, "passes": chosen}), measure)
        parse(EvaluationRecord, json.dumps(figures), file, REMEDY)
        with understood(file, REMEDY):
            headline = pair.loaded.task.headline(figures)
        parse(Headline, json.dumps(dataclasses.asdict(headline)), file, REMEDY)
        yield Row(what, chosen, figures, headline)
