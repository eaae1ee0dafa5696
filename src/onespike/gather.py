"""Everything that a report shows, as one record ready for JSON: gathered here, rendered elsewhere."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onespike import pipeline, storage
from onespike.attach import neurons
from onespike.calibrate import device_of, evaluating
from onespike.convert import set_scale_, table
from onespike.detected import detected
from onespike.doctor.probe import Probe
from onespike.doctor.trail import trail
from onespike.energy import COLUMNS, DEFINITION
from onespike.errors import DataError, LoadError, UsageError
from onespike.invocation import convert_command
from onespike.neurons import Neuron
from onespike.objective import OverallObjective
from onespike.pipeline import Pair, Progress, no_progress
from onespike.report.scores import KINDS
from onespike.sensitivity import kind
from onespike.survey import Survey
from onespike.tasks import Coco, Detection, Items, batches, limit, read_image
from onespike.tune import FOLDER, METRICS
from onespike.tune import RECORD as SEARCH

VERSION = 1
PROBE_IMAGES = 32
SCALES = (1.0, 0.5, 0.25, 0.12)
EXAMPLES = 6
THUMBNAIL = 96
"""The longer side of a shown image, in pixels."""

Pictures = Callable[[Pair, Items, Tensor], list[dict[str, Any]]]
"""A task's own inputs and predictions: (networks, images, whether they agree on each) → rows for the page."""


def gather(
    run: Path,
    pair: Pair,
    items: Items | None,
    *,
    batch_size: int = 16,
    pictures: Pictures | None = None,
    coco: Coco | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Evaluate a run once, with a survey of its sites, and describe it.

    Args:
        run: its folder; a search in it gives the front, otherwise a short sweep of λ does.
        pair: the loaded run.
        items: images to measure on; without them the record holds what calibration knows.
        batch_size: inputs of one forward.
        pictures: shows inputs and predictions of a classifier; `classified` by default.
        coco: the annotations of the images, for a detector.
        progress: wraps long loops.
    """
    record: dict[str, Any] = {
        "version": VERSION,
        "run": str(run),
        "network": {
            "spec": pair.loaded.spec,
            "weights": pair.loaded.weights,
            "preprocessing": pair.loaded.preprocessing,
            "attention": pair.loaded.attention,
            "published_top1": pair.loaded.published_top1,
        },
        "recipe": {k: _plain(v) for k, v in pair.recipe.to_dict().items() if k != "version"},
        "calibration": {"source": pair.data["source"], "images": len(pair.data["names"])},
        "versions": storage.versions(),
        "command": convert_command(pair, run),
        "energy_columns": COLUMNS,
        "energy_definition": DEFINITION,
        "evaluation": None,
        "data": None,
        "front": _searched(run),
        "sites": _listed(pair),
        "examples": [],
    }
    if items is None:
        return record
    survey = Survey(visits=max(1, PROBE_IMAGES // batch_size))
    metric = pipeline.metric_for(pair, items, coco)
    result = pipeline.evaluate_pair(
        pair, items, metric=metric, batch_size=batch_size, progress=progress, ledger=survey
    )
    few = limit(items, PROBE_IMAGES)
    record["evaluation"] = result.to_dict()
    record["data"] = {
        "source": items.source,
        "images": len(items),
        "overlap": len(pipeline.overlap(pair.data, items)),
        "surveyed": len(few),
    }
    record["sites"] = _measured(record["sites"], survey)
    if isinstance(metric, Detection):
        record["front"] = record["front"] or _swept_precision(pair, items, metric, batch_size, progress)
        record["examples"] = detected(pair, items, metric)
        return record
    probe = Probe(pair.ann, (x for x, _ in batches(few, pair.loaded.transform, batch_size)))
    record["front"] = record["front"] or _swept(pair, probe, progress)
    record["examples"] = (pictures or classified)(pair, few, probe.distance(pair.snn).agrees)
    return record


def _plain(value: Any) -> Any:
    """As JSON gives it back: lists in place of tuples."""
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _searched(run: Path) -> dict[str, Any] | None:
    """The trials that `onespike search` left in a run, where energy was measured."""
    file = run / FOLDER / SEARCH
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        points = [
            {"scale": t["scale"], "value": t["value"], "energy": t["energy"]}
            for t in found["trials"]
            if t["value"] is not None and t["energy"] is not None
        ]
        metric, images = METRICS[found["objective"]], found["images"]
    except (ValueError, KeyError, TypeError) as error:
        raise LoadError(
            f"{file}: the record of the search is damaged ({error}). Remove it, or search again."
        ) from error
    if not points:
        return None
    return {"from": "search", "metric": metric, "energy": found["energy"], "images": images, "points": points,
            "chosen": found["best"]["scale"]}  # fmt: skip


def _swept(pair: Pair, probe: Probe, progress: Progress) -> dict[str, Any] | None:
    own = pair.recipe.scale
    rows = probe.sweep(pair.snn, sorted({*SCALES, own}, reverse=True), own, progress)
    images = sum(len(inputs) for inputs, _ in probe.parts)
    points = [
        {"scale": r["scale"], "value": r["agreement"], "energy": r["counts"]}
        for r in rows
        if r["counts"] is not None  # neurons in place of ReLUs have no count of spikes
    ]
    if not points:
        return None
    return {"from": "sweep", "metric": "agreement with the original, %", "energy": "counts", "images": images,
            "points": points, "chosen": own}  # fmt: skip


def _swept_precision(
    pair: Pair, items: Items, metric: Detection, batch_size: int, progress: Progress
) -> dict[str, Any] | None:
    """AP over λ on so few images that the sweep takes about half as many forwards as the evaluation did."""
    own, few = pair.recipe.scale, limit(items, min(PROBE_IMAGES, max(4, len(items) // 10)))
    feed = batches(few, pair.loaded.transform, batch_size, collate=pair.loaded.collate)
    objective = OverallObjective(pair.snn, feed, metric.precision, "counts")
    scales, points = sorted({*SCALES, own}, reverse=True), []
    try:
        for scale in progress("λ", len(scales))(scales):
            found = objective(scale, lambda step, value: False)
            points.append({"scale": scale, "value": found.value, "energy": found.energy})
    except (DataError, UsageError):  # these few show no object; neurons without a λ
        return None
    finally:
        if points:
            set_scale_(pair.snn, own)
    return {"from": "sweep", "metric": f"{KINDS[metric.kinds[-1]]} AP, %", "energy": "counts", "images": len(few),
            "points": points, "chosen": own}  # fmt: skip


def _listed(pair: Pair) -> list[dict[str, Any]]:
    """All sites in the order of execution, with what stands there."""
    rows = {row["site"]: row for row in table(pair.snn)}
    largest = {str(site): neuron for site, neuron in neurons(pair.snn) if isinstance(neuron, Neuron)}
    order = [
        *(site for site in pair.thresholds if site in rows),
        *(s for s in rows if s not in pair.thresholds),
    ]
    return [
        {
            "site": site,
            "kind": kind(site),
            "block": _block(site),
            "role": rows[site]["role"],
            "spiking": site in largest,
            "neuron": rows[site]["neuron"],
        }
        for site in order
    ]


def _block(site: str) -> str:
    """The part of a site's owner up to its first number: what a picture draws as one row.

    >>> _block("blocks.3.attn.qkv:linear0_input"), _block("head:linear0_input")
    ('blocks.3', 'head')
    """
    parts = site.rpartition(":")[0].split(".")
    number = next((i for i, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join(parts[: number + 1]) or "network"


def _measured(rows: list[dict[str, Any]], survey: Survey) -> list[dict[str, Any]]:
    total = survey.accumulates("counts") or 1.0
    ledger = {row["site"]: row for row in survey.table()}
    result = []
    for row in rows:
        counted, detail = ledger.get(row["site"]), survey.details.get(row["site"])
        if counted is not None:
            row = {
                **row,
                "energy_share": counted["counts"] / total if counted["drives"] else 0.0,
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


def classified(pair: Pair, items: Items, agrees: Tensor) -> list[dict[str, Any]]:
    """A few images with both networks' best three classes, and where their activations part; disagreement first."""
    order = [*torch.nonzero(~agrees).flatten().tolist(), *torch.nonzero(agrees).flatten().tolist()]
    names = pair.loaded.class_names or items.class_names
    apart = min(EXAMPLES // 2, int((~agrees).sum()))
    chosen = [*order[:apart], *order[int((~agrees).sum()) :][: EXAMPLES - apart]]
    shown = []
    for index in chosen:
        item = items[index]
        inputs = pair.loaded.transform(read_image(item))[None]
        shown.append(
            {
                "name": item.name,
                "label": None if item.label is None else _class(item.label, names),
                "image": thumbnail(read_image(item)),
                "agree": bool(agrees[index]),
                "ann": _best(pair.ann, inputs, names),
                "snn": _best(pair.snn, inputs, names),
                "trail": [[site, round(db, 2)] for site, db in trail(pair.snn, inputs)],
            }
        )
    return shown


def _class(index: int, names: tuple[str, ...] | None) -> str:
    return names[index] if names is not None and index < len(names) else f"class {index}"


def _best(model: Any, inputs: Tensor, names: tuple[str, ...] | None) -> list[list[Any]]:
    with evaluating(model):
        output = model(inputs.to(device_of(model)))
    logits = getattr(output, "logits", output)[0]
    values, classes = logits.softmax(-1).topk(min(3, len(logits)))
    return [[_class(int(c), names), float(v)] for v, c in zip(values, classes, strict=True)]


def thumbnail(image: Any) -> str:
    """An image as a small PNG in a data URI, whatever its size."""
    image = image.copy()
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
