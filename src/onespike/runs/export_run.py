"""A run's network for another runtime, compared on inputs of the run's task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onespike.conversion.network import scale_of
from onespike.deploy.exports import Exported, export
from onespike.errors import UsageError
from onespike.runs.inputs import batches_of, choose, without
from onespike.runs.pair import NetworkPair
from onespike.runtime.provenance import versions
from onespike.tasks import limit as evenly


def facts_of(pair: NetworkPair) -> dict[str, Any]:
    """Return the facts about a network that its file states."""
    try:
        scale: float | None = float(scale_of(pair.snn).value)
    except UsageError:
        scale = None
    return {
        "network": pair.loaded.spec,
        "weights": pair.loaded.weights,
        "preprocessing": pair.loaded.reading.preprocessing,
        "classes": list(pair.loaded.task.class_names or ()),
        "scale": scale,
        "recipe": pair.recipe.to_dict(),
        "versions": versions(),
    }


def real_inputs(pair: NetworkPair, data: str | None, count: int, batch_size: int) -> list[Any]:
    """Return a few batches of a folder, or of the inputs that the run was calibrated on."""
    if count < 2 or batch_size < 2:
        raise UsageError(
            "export: at least two inputs are needed, so that the size of a batch can be left open."
        )
    if data is None:
        items = choose(pair.data["source"], None, pair.loaded.task)
        names = set(pair.data["names"])
        items = evenly(without(items, {item.name for item in items} - names), count)
    else:
        items = choose(data, count, pair.loaded.task)
    return list(batches_of(items, pair.loaded, batch_size))


def export_pair(
    pair: NetworkPair,
    format: str,
    out: Path,
    *,
    data: str | None = None,
    limit: int = 16,
    integer: bool | None = None,
    batch_size: int = 4,
) -> Exported:
    """Export the network of a run, and compare it on these inputs or on those of its calibration."""
    inputs = real_inputs(pair, data, limit, batch_size)
    return export(
        pair.snn, format, out, inputs,
        integer=integer, facts=facts_of(pair), differences=pair.loaded.task.differences,
    )  # fmt: skip
