"""Evaluation: the original and the converted network side by side, in one pass over the data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from onespike.calibrate import device_of, evaluating
from onespike.convert import scale_of, steps_of
from onespike.energy import Ledger, metered
from onespike.errors import DataError, UsageError
from onespike.processes import ALONE, Processes
from onespike.trace import call, logits, samples


class Metric(Protocol):
    """What a task measures: fed with both networks' outputs, asked for its figures at the end.

    It receives an output's logits, if there are such, or what its own `take(output)` returns.
    """

    def update(self, ann: Any, snn: Any, labels: Any) -> None: ...

    def compute(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Evaluation:
    """The figures of one evaluation.

    Attributes:
        metrics: what the task computed: `ann` and `snn` figures, agreement, kl.
        ledger: operation counts of the converted network on these very inputs.
        images: number of inputs.
        scale: λ, or None for neurons without one.
        seconds: forward time of each network; the counting of spikes is left out.
        steps: T, the timesteps of the converted network.
    """

    metrics: dict[str, Any]
    ledger: Ledger
    images: int
    scale: float | None
    seconds: dict[str, float]
    steps: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.metrics,
            "energy": {k: None if math.isnan(r) else r for k, r in self.ledger.ratios().items()},
            "images": self.images,
            "scale": self.scale,
            "seconds": self.seconds,
        }


def evaluate(
    ann: nn.Module,
    snn: nn.Module,
    batches: Iterable[tuple[Any, Any]],
    metric: Metric,
    *,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = lambda batches: batches,
    processes: Processes = ALONE,
    ledger: Ledger | None = None,
) -> Evaluation:
    """Run both networks over (inputs, labels) batches and count every spike on the way, in `ledger` if given.

    Where several processes share the work, each gives its own batches and gets the figures of all of them; the
    seconds are then summed over the processes. Their metric needs `merge(other)`.
    """
    if processes.count > 1 and not hasattr(metric, "merge"):
        raise UsageError(
            f"evaluate: {type(metric).__name__} cannot be shared between processes. Run it in one."
        )
    take = getattr(metric, "take", logits)
    ledger = ledger if ledger is not None else Ledger()
    images, seconds = 0, {"ann": 0.0, "snn": 0.0}
    device = device_of(ann)
    with ExitStack() as stack:
        stack.enter_context(evaluating(ann))
        stack.enter_context(evaluating(snn))
        for inputs, labels in progress(batches):
            inputs = tree_map_only(Tensor, lambda x: x.to(device), inputs)
            expected, seconds["ann"] = _timed(ann, inputs, seconds["ann"])
            with metered(snn, ledger):
                before = ledger.seconds
                actual, seconds["snn"] = _timed(snn, inputs, seconds["snn"])
                seconds["snn"] -= ledger.seconds - before
            metric.update(take(expected), take(actual), labels)
            images += samples(inputs)
    metric, ledger, images, seconds = _merged(processes, metric, ledger, images, seconds)
    if not images:
        raise DataError("evaluate: there are no inputs. Give at least one batch.")
    try:
        scale: float | None = float(scale_of(snn).value)
    except UsageError:
        scale = None
    return Evaluation(metric.compute(), ledger, images, scale, seconds, steps_of(snn))


def _merged(
    processes: Processes, metric: Any, ledger: Ledger, images: int, seconds: dict[str, float]
) -> tuple[Any, Ledger, int, dict[str, float]]:
    parts = processes.exchange((metric, ledger, images, seconds))
    metric, ledger = parts[0][:2]
    for other, counted, _, _ in parts[1:]:
        metric.merge(other)
        ledger.merge(counted)
    totals = {name: sum(part[3][name] for part in parts) for name in seconds}
    return metric, ledger, sum(part[2] for part in parts), totals


def _timed(model: nn.Module, inputs: Any, before: float) -> tuple[Any, float]:
    device = device_of(model)
    _synchronise(device)
    started = time.perf_counter()
    output = call(model, inputs)
    _synchronise(device)
    return output, before + time.perf_counter() - started


def _synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
