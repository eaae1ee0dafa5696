"""The contents of a report as one record, ready for JSON: gathered here, rendered elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike import runs
from onespike.conversion.firing import named_neurons
from onespike.conversion.network import set_scale_, table
from onespike.diagnosis.probe import trail
from onespike.energy.columns import DEFINITION, meanings, reading_of
from onespike.energy.metering import metered
from onespike.energy.survey import Survey
from onespike.errors import LoadError
from onespike.evaluation.pairwise import Answered, pairwise
from onespike.neurons import Neuron
from onespike.runs import NetworkPair, Progress, no_progress
from onespike.runs.as_command import convert_command, spike_call
from onespike.runs.recipe_file import recipe_text
from onespike.runs.search_run import searched
from onespike.runtime.batches import count
from onespike.runtime.provenance import made, versions
from onespike.runtime.remembered import Once
from onespike.sites import Site
from onespike.tasks import Items, Objective, Score, limit
from onespike.tasks.intervals import Bounds, share_interval

VERSION = 4
PROBE_IMAGES = 32
DRAWN_SCALES = (1.0, 0.5, 0.25, 0.12)
EXAMPLES = 6


def gather(
    run: Path | None,
    pair: NetworkPair,
    items: Items | None,
    *,
    batch_size: int = 16,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Evaluate a run once, with a survey of its sites, and describe it.

    Args:
        run: its folder, with its search if there was one; None for networks in Python.
        pair: the loaded run.
        items: images to measure on; without them the record holds what calibration knows.
        batch_size: inputs per forward.
        progress: wraps long loops.
    """
    record: dict[str, Any] = {
        "version": VERSION,
        "run": "Python" if run is None else str(run),
        "network": {
            "spec": pair.loaded.spec,
            "weights": pair.loaded.weights,
            "preprocessing": pair.loaded.preprocessing,
            "attention": pair.loaded.attention,
            "published_top1": pair.loaded.published_top1,
        },
        "recipe": {k: _plain(v) for k, v in pair.recipe.to_dict().items() if k != "version"},
        "calibration": {"source": pair.data["source"], "images": len(pair.data["names"])},
        "versions": versions(),
        "made": made(),
        "recipe_text": recipe_text(pair.recipe),
        "command": spike_call() if run is None else convert_command(pair, run),
        "unit": getattr(pair.loaded.task, "unit", "images"),
        "energy": pair.recipe.energy,
        "energy_columns": meanings(),
        "energy_definition": DEFINITION,
        "evaluation": None,
        "data": None,
        "front": None,
        "search": None if run is None else _searched(run, pair),
        "sites": _listed(pair),
        "examples": [],
    }
    if items is None:
        return record
    task = pair.loaded.task
    items = task.named(items, pair.loaded)
    survey = Survey(visits=max(1, PROBE_IMAGES // batch_size))
    objective = task.objectives[task.front(items)]
    original = Once(pair.ann) if objective.compares else pair.ann
    result = runs.evaluate_pair(
        dataclasses.replace(pair, ann=original),
        items,
        batch_size=batch_size,
        progress=progress,
        ledger=survey,
    )
    few = limit(items, PROBE_IMAGES)
    record["evaluation"] = result.to_dict()
    record["data"] = {
        "source": items.source,
        "images": len(items),
        "overlap": len(runs.overlap(pair.data, items)),
        "surveyed": len(few),
    }
    record["sites"] = _measured(record["sites"], survey, pair.recipe.energy)
    record["front"] = _swept(pair, original, items, objective, record["evaluation"], batch_size, progress)
    record["examples"] = _examples(pair, few, batch_size)
    return record


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back: lists instead of tuples."""
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _searched(run: Path, pair: NetworkPair) -> dict[str, Any] | None:
    """Return the trials that `onespike search` left in a run, if energy was measured."""
    found = searched(run)
    points = [
        {"scale": t["scale"], "value": t["value"], "energy": t["energy"]}
        for t in found.get("trials", ())
        if t["value"] is not None and t["energy"] is not None
    ]
    if not points:
        return None
    objective = pair.loaded.task.objectives.get(found["objective"])
    if objective is not None:
        points = [_bounded(point, objective, found["images"]) for point in points]
    if objective is None:
        raise LoadError(
            f"{run}: its search was by {found['objective']}, which {pair.loaded.spec} does not have. Search again."
        )
    return {
        **{name: found[name] for name in ("energy", "images", "source")},
        "metric": objective.title,
        "maximize": objective.maximize,
        "points": points,
        "chosen": found["best"]["scale"],
    }


def _swept(
    pair: NetworkPair,
    original: nn.Module,
    items: Items,
    objective: Objective,
    evaluation: dict[str, Any],
    batch_size: int,
    progress: Progress,
) -> dict[str, Any] | None:
    """Return the headline of the evaluation at other λ, on the same images."""
    own, column = evaluation["scale"], pair.recipe.energy
    value, energy = pair.loaded.task.headline(evaluation).spiking, evaluation["energy"][column]
    if own is None or energy is None or value is None:
        return None  # neurons without λ, or in place of ReLUs, which have no count of spikes; images without an object
    bounds = pair.loaded.task.headline(evaluation).bounds
    points = [{"scale": own, "value": value, "energy": energy, **_reach(bounds)}]
    try:
        for scale in (scale for scale in DRAWN_SCALES if scale != own):
            set_scale_(pair.snn, scale)
            feed = progress(f"λ = {scale:g}", -(-len(items) // batch_size))(
                pair.loaded.batches(items, batch_size)
            )
            score = objective.score(items, pair.loaded)
            energy = _at(original, pair.snn, feed, objective, score, column)
            points.append(
                {"scale": scale, "value": score.value(), "energy": energy, **_reach(score.interval())}
            )
    finally:
        set_scale_(pair.snn, own)
    points.sort(key=lambda point: -point["scale"])
    return {"metric": objective.title, "maximize": objective.maximize, "energy": column, "images": len(items),
            "points": points, "chosen": own}  # fmt: skip


def _reach(bounds: Bounds | None) -> dict[str, float]:
    return {} if bounds is None else {"low": bounds[0], "high": bounds[1]}


def _bounded(point: dict[str, Any], objective: Objective, images: int) -> dict[str, Any]:
    """A trial with its 95 % interval, where that follows from the number of images."""
    if not objective.share:
        return point
    return {**point, **_reach(share_interval(point["value"], images))}


def _at(
    original: nn.Module, snn: nn.Module, feed: Iterable[Any], objective: Objective, score: Score, column: str
) -> float:
    """Score a network on these batches; its energy."""
    networks = (original, snn) if objective.compares else (snn,)
    with metered(snn) as ledger:
        for inputs, labels, outputs in pairwise(networks, feed):
            score.update(outputs[0] if objective.compares else None, outputs[-1], labels, count(inputs))
    return ledger.ratio(column)


def _listed(pair: NetworkPair) -> list[dict[str, Any]]:
    """Return all sites in execution order, with their neuron or the reason they are analog."""
    rows = {row["site"]: row for row in table(pair.snn)}
    largest = {str(site): neuron for site, neuron in named_neurons(pair.snn) if isinstance(neuron, Neuron)}
    order = [
        *(str(site) for site in pair.thresholds if str(site) in rows),
        *(s for s in rows if s not in pair.thresholds),
    ]
    return [
        {
            "site": site,
            "kind": Site.parse(site).kind,
            "block": block_of(site),
            "role": rows[site]["role"],
            "spiking": site in largest,
            "neuron": rows[site]["neuron"],
        }
        for site in order
    ]


def block_of(site: str) -> str:
    """Return the part of a site's owner up to its first number, which a picture draws as one row.

    >>> block_of("blocks.3.attn.qkv:linear0_input"), block_of("head:linear0_input")
    ('blocks.3', 'head')
    """
    parts = site.rpartition(":")[0].split(".")
    number = next((i for i, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join(parts[: number + 1]) or "network"


def _measured(rows: list[dict[str, Any]], survey: Survey, column: str) -> list[dict[str, Any]]:
    total, reading = survey.accumulates(column) or 1.0, reading_of(column).name
    ledger = {row["site"]: row for row in survey.table()}
    result = []
    for row in rows:
        counted, detail = ledger.get(row["site"]), survey.details.get(row["site"])
        if counted is not None:
            row = {
                **row,
                "energy_share": counted[reading] / total if counted["drives"] else 0.0,
                "drives": counted["drives"],
                "macs": counted["macs"],
                "spikes": counted["spikes per neuron"],
                "active": counted["active share"],
                "saturated": counted["saturated share"],
            }
        if detail is not None:
            row = {**row, **detail.to_dict()}
        result.append(row)
    return result


def _examples(pair: NetworkPair, items: Items, batch_size: int) -> list[dict[str, Any]]:
    """Return a few inputs with both networks' answers and where their activations part; the largest differences first."""
    task, loaded = pair.loaded.task, pair.loaded

    def both(some: Items) -> Iterator[Answered]:
        return pairwise((pair.ann, pair.snn), loaded.batches(some, batch_size))

    found = torch.cat([task.differences(*outputs).cpu() for _, _, outputs in both(items)])
    order, apart = found.argsort(descending=True, stable=True).tolist(), int((found > 0).sum())
    half = min(apart, max(EXAMPLES // 2, EXAMPLES - (len(order) - apart)))
    shown = []
    for item in (items[place] for place in [*order[:half], *order[apart:]][:EXAMPLES]):
        [(inputs, _, (expected, actual))] = both(dataclasses.replace(items, items=(item,)))
        example = task.example(item, expected, actual, items, loaded)
        steps = [[site, round(db, 2)] for site, db in trail(pair.snn, inputs)]
        shown.append({"name": item.name, **example, "trail": steps})
    return shown
