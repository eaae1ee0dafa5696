"""The contents of a report as one record, ready for JSON: gathered here, rendered elsewhere."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from onespike import runs
from onespike.calibration.inputs import batches_of
from onespike.conversion.firing import named_neurons
from onespike.conversion.network import table
from onespike.deploy.exports.base import hardware as sheet_of
from onespike.diagnosis.probe import trail
from onespike.energy.columns import reading_of
from onespike.energy.survey import Survey
from onespike.evaluation.pairwise import Once, pairwise
from onespike.evaluation.side_by_side import at_scale
from onespike.runs import NetworkPair
from onespike.runs.forms import real_inputs
from onespike.runs.recipe_text import convert_command, recipe_text, spike_call
from onespike.runs.searching import aim_of, searched
from onespike.runtime.provenance import made, versions
from onespike.tasks import Items, limit
from onespike.tasks.intervals import Bounds, share_interval

VERSION = 4


@dataclass(frozen=True)
class EvaluationRecord:
    """The schema of a stored evaluation, as far as it is read again."""

    task: str
    ann: dict[str, Any]
    snn: dict[str, Any]
    energy: dict[str, float | None]
    analog_share: float
    images: int
    profile: str
    seconds: dict[str, float]
    kl: float | None = None


@dataclass(frozen=True)
class ReportRecord:
    """The schema of a report, as far as it is read again."""

    version: int
    evaluation: EvaluationRecord | None


PROBE_IMAGES = 32
DRAWN_SCALES = (1.0, 0.5, 0.25, 0.12)
EXAMPLES = 6


def gather(
    run: Path | None, pair: NetworkPair, items: Items | None, *, batch_size: int = 16, hardware: bool = False
) -> dict[str, Any]:
    """Evaluate a run, with a survey of its sites, and describe it.

    Without a folder, for networks in Python, there is no search; without items the record holds what calibration knows.
    """
    loaded, column = pair.loaded, pair.recipe.energy
    recipe = json.loads(json.dumps(pair.recipe.to_dict()))  # lists instead of tuples, as it is read again
    del recipe["version"]
    record: dict[str, Any] = {
        "version": VERSION,
        "run": "Python" if run is None else str(run),
        "network": {
            **{name: getattr(loaded, name) for name in ("spec", "weights", "attention", "published_top1")},
            "preprocessing": loaded.reading.preprocessing,
        },
        "recipe": recipe,
        "calibration": {"source": pair.data["source"], "images": len(pair.data["names"])},
        "versions": versions(),
        "made": made(),
        "recipe_text": recipe_text(pair.recipe),
        "command": spike_call() if run is None else convert_command(pair, run),
        "unit": loaded.task.unit,
        "energy": column,
        "evaluation": None,
        "data": None,
        "front": None,
        "search": None if run is None else _searched(run, pair),
        "sites": _listed(pair),
        "hardware": _sheet(pair, items) if hardware else None,
        "examples": [],
    }
    if items is None:
        return record
    items = loaded.task.named(items)
    survey = Survey(visits=max(1, PROBE_IMAGES // batch_size))
    once = dataclasses.replace(pair, ann=Once(pair.ann))
    evaluation = runs.evaluate_pair(once, items, batch_size=batch_size, ledger=survey).to_dict()
    few = limit(items, PROBE_IMAGES)
    return record | {
        "evaluation": evaluation,
        "data": {
            "source": items.source,
            "images": len(items),
            "overlap": len(runs.overlap(pair.data, items)),
            "surveyed": len(few),
        },
        "sites": _measured(record["sites"], survey, column),
        "front": _front(once, items, evaluation, batch_size),
        "examples": _examples(pair, few, batch_size),
    }


def _sheet(pair: NetworkPair, items: Items | None) -> dict[str, Any]:
    """Return the sheet for hardware, on a few of these inputs, or of those that calibrated."""
    if items is None:
        return sheet_of(pair.snn, real_inputs(pair, None, 8, 4)).to_dict()
    return sheet_of(pair.snn, list(batches_of(limit(items, 8), pair.loaded, 4))).to_dict()


def _searched(run: Path, pair: NetworkPair) -> dict[str, Any] | None:
    """Return the trials that `onespike search` left in a run, if energy was measured."""
    search = searched(run)
    trials = [t for t in search.get("trials", ()) if None not in (t["value"], t["energy"])]
    points = [{name: trial[name] for name in ("scale", "value", "energy")} for trial in trials]
    if not points:
        return None
    objective = aim_of(pair, search["objective"])
    if objective.share:  # its interval follows from the number of images
        points = [{**p, **_reach(share_interval(p["value"], search["images"]))} for p in points]
    return {
        **{name: search[name] for name in ("energy", "images", "source")},
        "metric": objective.title,
        "maximize": objective.maximize,
        "points": points,
        "chosen": search["best"]["scale"],
    }


def _reach(bounds: Bounds | None) -> dict[str, float]:
    return {} if bounds is None else {"low": bounds[0], "high": bounds[1]}


def _front(
    pair: NetworkPair, items: Items, evaluation: dict[str, Any], batch_size: int
) -> dict[str, Any] | None:
    """Return the headline against energy: of the evaluation, and at other λ on the same images."""
    task, column, run_scale = pair.loaded.task, pair.recipe.energy, evaluation["scale"]
    head = task.headline(evaluation)
    if None in (run_scale, evaluation["energy"][column], head.spiking):
        return None  # neurons without λ, or in place of ReLUs, which have no count of spikes; images without an object
    points: list[dict[str, float | None]] = []
    for scale in sorted({run_scale, *DRAWN_SCALES}, reverse=True):
        swept = evaluation
        if scale != run_scale:
            with at_scale(pair.snn, scale):
                result = runs.evaluate_pair(pair, items, batch_size=batch_size, title=f"λ = {scale:g}")
            swept = result.to_dict()
        headline, energy = task.headline(swept), swept["energy"][column]
        reach = _reach(headline.bounds)
        points.append({"scale": scale, "value": headline.spiking, "energy": energy, **reach})
    higher = {aim.title: aim.maximize for aim in task.aims.values()}  # whether that is better
    return {"metric": head.title, "maximize": higher.get(head.title, True), "energy": column, "images": len(items),
            "points": points, "chosen": run_scale}  # fmt: skip


def _listed(pair: NetworkPair) -> list[dict[str, Any]]:
    """Return all sites in execution order, with their neuron or the reason they are analog."""
    rows = dict(zip((site for site, _ in named_neurons(pair.snn)), table(pair.snn), strict=True))
    calibrated = [site for site in pair.thresholds if site in rows]
    return [
        {
            "site": str(site),
            "kind": site.kind,
            "block": block_of(str(site)),
            "role": rows[site]["role"],
            "spiking": rows[site]["spikes"],
            "neuron": rows[site]["neuron"],
        }
        for site in dict.fromkeys((*calibrated, *rows))
    ]


def block_of(site: str) -> str:
    """Return the part of a site's owner up to its first number, as blocks.3, which a picture draws as one row."""
    parts = site.rpartition(":")[0].split(".")
    number = next((i for i, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join(parts[: number + 1]) or "network"


def _measured(rows: list[dict[str, Any]], survey: Survey, column: str) -> list[dict[str, Any]]:
    total, reading = survey.accumulates(column) or 1.0, reading_of(column).name
    counted = {
        row["site"]: {
            "energy_share": row[reading] / total if row["drives"] else 0.0,
            "drives": row["drives"],
            "macs": row["macs"],
            "spikes": row["spikes per neuron"],
            "active": row["active share"],
            "saturated": row["saturated share"],
        }
        for row in survey.table()
    }
    details = {site: detail.to_dict() for site, detail in survey.details.items()}
    return [{**row, **counted.get(row["site"], {}), **details.get(row["site"], {})} for row in rows]


def _examples(pair: NetworkPair, items: Items, batch_size: int) -> list[dict[str, Any]]:
    """Return a few inputs with both networks' answers and where their activations part; the largest differences first."""
    task, loaded = pair.loaded.task, pair.loaded

    def both(some: Items) -> Iterator[Any]:
        return pairwise((pair.ann, pair.snn), loaded.batches(some, batch_size))

    different = torch.cat([task.differences(*outputs).cpu() for _, _, outputs in both(items)])
    order, apart = different.argsort(descending=True, stable=True).tolist(), int((different > 0).sum())
    half = min(apart, max(EXAMPLES // 2, EXAMPLES - (len(order) - apart)))
    examples = []
    for item in (items[place] for place in [*order[:half], *order[apart:]][:EXAMPLES]):
        [(inputs, _, (expected, actual))] = both(dataclasses.replace(items, items=(item,)))
        example = task.example(item, expected, actual, items)
        path = [[site, round(db, 2)] for site, db in trail(pair.snn, inputs)]
        examples.append({"name": item.name, **example, "trail": path})
    return examples
