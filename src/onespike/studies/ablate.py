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
from onespike.errors import DataError
from onespike.passes import TRAITS, PassContext, PassState, chain, check_passes, check_recipe
from onespike.passes.budget import check_budget, fit, target
from onespike.presets import PRESETS
from onespike.runs import Inputs, Progress, no_progress
from onespike.runs.inputs import images_digest, network_digest
from onespike.runs.storage import THRESHOLDS
from onespike.runtime.atomic import sha256, try_file, write_atomically
from onespike.runtime.validated import parse, read_sealed, sealed, understood
from onespike.tasks import Headline

FOLDER, RECORD = "ablation", "ablation.json"
AGAIN = "Remove it to measure again."
QUICK = tuple(name for name in PRESETS["best"].settings["passes"] if name != "tune")
"""The default passes to ablate: tuning in every row would take hours."""


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
    headline: Headline

    def to_dict(self) -> dict[str, Any]:
        return {"what": self.what, "passes": list(self.passes), **self.figures}


def choices(names: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """Return no pass, each alone (with what it needs), each left out (with what needs it), and all; each choice once.

    >>> choices(("nearest", "allocate"))
    [('none', ()), ('nearest alone', ('nearest',)), ('allocate alone', ('allocate',)), ('all', ('nearest', 'allocate'))]
    """
    every: list[tuple[str, tuple[str, ...]]] = [("none", ())]
    every += [(f"{name} alone", check_passes((*TRAITS[name].needs, name))) for name in names]
    for name in names:
        others = tuple(n for n in names if n != name and name not in TRAITS[n].needs)
        every.append((f"without {name}", others))
    every.append(("all", names))
    titles = {passes: what for what, passes in reversed(every)}
    return [(what, passes) for what, passes in every if titles[passes] == what]


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
    images, or at another energy, are kept beside them. The passes are those of the run by default, or else those of the
    preset `best` without `tune`; the budget is the run's, or the energy of its recipe without passes.
    """
    pair = runs.load(folder, device=device)
    items = runs.choose_labeled(pair.loaded, data, annotations, limit)
    if runs.overlap(pair.data, items):
        raise DataError(f"{data}: calibration has used some of these images. Give other ones.")
    names = check_passes(passes or pair.recipe.passes or QUICK)
    column = energy or pair.recipe.energy
    check_budget(budget, column)
    recipe = pair.recipe.replace(passes=(), budget=None, max_drop=None, energy=column, factors=())
    check_recipe(recipe.replace(passes=names))
    ratio = budget if budget is not None else pair.recipe.budget
    file = folder / FOLDER / RECORD
    identity = {
        "run": sha256(folder / THRESHOLDS),
        "weights": network_digest(pair.ann),
        "recipe": json.loads(json.dumps(recipe.to_dict())),
        "images": images_digest(items),
        "budget": ratio,
        "energy": column,
    }
    rows = {tuple(row["passes"]): row for row in _others(file, identity)[1]}
    try_file(file)
    start: PassState | None = None
    for what, chosen in choices(names):
        if chosen not in rows:
            if start is None:
                inputs = Inputs(runs.calibration_images(pair.loaded, pair.data), pair.loaded)
                thresholds = calibrate(pair.ann, progress("calibrating", len(inputs))(inputs), recipe)
                start = PassState(thresholds, recipe)
                context = PassContext(
                    pair.ann, inputs, ratio, column, progress=progress, task=pair.loaded.task
                )
                context = dataclasses.replace(context, budget=target(start, context))
            # the literal method has the energy of the others
            state = chain(start, context, chosen) if chosen else fit(start, context, target(start, context))
            spiking = dataclasses.replace(pair, snn=state.network(pair.ann))
            result = runs.evaluate_pair(spiking, items, batch_size=batch_size, progress=progress, title=what)
            figures = {k: v for k, v in result.to_dict().items() if k not in ("scale", "seconds")}
            rows[chosen] = {"what": what, "passes": list(chosen), **figures}
            mine = {**identity, "source": items.source, "rows": list(rows.values())}
            file.parent.mkdir(exist_ok=True)
            write_atomically(file, sealed({"ablations": [*_others(file, identity)[0], mine]}))
        figures = {name: value for name, value in rows[chosen].items() if name not in ("what", "passes")}
        with understood(file, AGAIN):
            headline = pair.loaded.task.headline(figures)
        parse(Headline, json.dumps(dataclasses.asdict(headline)), file, AGAIN)
        yield Row(what, chosen, figures, headline)


def _others(file: Path, identity: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the other ablations that a file holds, and the rows of this one."""
    record = read_sealed(_Record, file, AGAIN) or {"ablations": ()}
    others, rows = [], []
    for ablation in record["ablations"]:
        if {name: ablation.get(name) for name in identity} == identity:
            rows = list(ablation["rows"])
        else:
            others.append(ablation)
    return others, rows
