"""A spiking network beside the integer networks that it competes with, on the same inputs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from onespike.deploy.post_training import GRANULARITIES, Observed, Quantized, observe, with_integer_weights
from onespike.energy.columns import COLUMNS, integer_reading
from onespike.energy.ledger import or_none
from onespike.evaluation.pairwise import pairwise
from onespike.evaluation.side_by_side import Evaluation
from onespike.passes import no_progress
from onespike.passes.base import Progress
from onespike.runs.pair import NetworkPair
from onespike.tasks import Items, Metric

SPIKING, INTEGER = "spiking", "spiking, 8-bit weights"


@dataclass(frozen=True)
class Rival:
    """A network to compare with, and its energy column."""

    network: nn.Module
    column: str


def rivals(model: nn.Module, observed: Observed) -> dict[str, Rival]:
    """Return the original network as integers of 8 and of 4 bits: by our reference, and by torchao if it runs."""
    found = {
        f"{name.upper()}, per {granularity}": Rival(
            Quantized(model, observed, column.bits, granularity), name
        )
        for name, column in COLUMNS.items()
        if column.bits
        for granularity in GRANULARITIES
    }
    if (theirs := torchao(model)) is not None:
        found["W8A8, torchao (linear maps, per token)"] = Rival(theirs, "w8a8")
    return found


def torchao(model: nn.Module) -> nn.Module | None:
    """Return the network as torchao quantizes it, to 8-bit weights and activations; None if it is not installed.

    It takes linear maps only, and measures the range of every token at run time.
    """
    if not any(isinstance(module, nn.Linear) for module in model.modules()):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
        except ImportError:
            return None
        result = copy.deepcopy(model)
        quantize_(result, Int8DynamicActivationInt8WeightConfig())
    return result


def spiking_rivals(snn: nn.Module, model: nn.Module, observed: Observed, column: str) -> dict[str, Rival]:
    """Return the converted network and, for the integer reading of its column, the one with 8-bit weights."""
    found = {SPIKING: Rival(snn, column)}
    if (reading := integer_reading(column)) is not None:
        found[INTEGER] = Rival(with_integer_weights(snn, model, observed), reading)
    return found


def compared(
    model: nn.Module,
    networks: Mapping[str, Rival],
    batches: Iterable[tuple[Any, Any]],
    metric: Callable[[], Metric],
) -> list[dict[str, Any]]:
    """Return every network's figures against the original and against the first one, in one pass over the inputs.

    Args:
        model: the original.
        networks: the networks by name; the others are compared with the first.
        batches: (inputs, labels).
        metric: makes a metric of two networks; with `difference` and `standard_error` where it pairs them.
    """
    against, beside = ({name: metric() for name in networks} for _ in range(2))
    everyone = (model, *(rival.network for rival in networks.values()))
    for _, labels, (original, *outputs) in pairwise(everyone, batches):
        for name, output in zip(networks, outputs, strict=True):
            against[name].update(original, output, labels)
            beside[name].update(outputs[0], output, labels)
    return [
        {"network": name, "column": rival.column, **against[name].compute(), "beside": beside[name].compute()}
        for name, rival in networks.items()
    ]


def compare_pair(
    pair: NetworkPair,
    items: Items,
    calibration: Items,
    result: Evaluation,
    *,
    batch_size: int = 16,
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """A run that was evaluated, beside integer networks: figures, and the ratio of each one's column.

    Args:
        pair: the run.
        items: the inputs that it was evaluated on.
        calibration: those that it was calibrated on, which choose the integers' ranges, too.
        result: its evaluation: the ledger and the prices.
        batch_size: inputs of one forward.
        progress: wraps long loops.
    """

    def feed(source: Items, title: str) -> Iterable[tuple[Any, Any]]:
        return progress(title, -(-len(source) // batch_size))(pair.loaded.batches(source, batch_size))

    observed = observe(pair.ann, (x for x, _ in feed(calibration, "ranges of integers")))
    column = pair.recipe.energy
    networks = {**spiking_rivals(pair.snn, pair.ann, observed, column), **rivals(pair.ann, observed)}
    items = pair.loaded.task.named(items)
    rows = compared(pair.ann, networks, feed(items, "comparing"), lambda: pair.loaded.task.metric(items))
    return [
        {**row, "ratio": or_none(result.ledger.ratio(row["column"], prices=result.prices))} for row in rows
    ]
