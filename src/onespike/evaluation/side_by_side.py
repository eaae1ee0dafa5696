"""Evaluation: the original and the converted network side by side, in one pass over the data."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from onespike.conversion.merging import merging
from onespike.conversion.network import merging_of, scale_of, set_scale_, steps_of
from onespike.energy.dead_work import dead_work
from onespike.energy.ledger import Ledger, or_none
from onespike.energy.metering import metered
from onespike.energy.profiles import Profile, profile
from onespike.errors import DataError, UsageError
from onespike.evaluation.pairwise import Once, pairwise
from onespike.runtime.batches import call, count, labeled, readable
from onespike.runtime.forward import check_module, clock, device_of, in_memory
from onespike.runtime.processes import ALONE, Processes
from onespike.sites import Visit, visiting
from onespike.tasks import Accuracy, Metric


@dataclass(frozen=True)
class Evaluation:
    """The figures of one evaluation: the task's `metrics` of both networks, and the `ledger` of the converted one."""

    metrics: dict[str, Any]
    ledger: Ledger
    images: int
    scale: float | None  # λ; None for neurons without one
    seconds: dict[str, float]  # of each network's forwards, without counting spikes
    steps: int = 1
    # of the original's MACs, whose result cannot reach its output; None if unknown
    dead_share: float | None = None
    prices: Profile = field(default_factory=profile)
    merged: dict[str, Any] | None = None  # figures of the original network with merged tokens, in floats

    def to_dict(self) -> dict[str, Any]:
        ratios = self.ledger.ratios(self.prices)
        return {
            **self.metrics,
            **({} if self.merged is None else {"merged": self.merged}),
            "energy": {k: or_none(r) for k, r in ratios.items()},
            "energy_parts": {k: self.ledger.parts(k, self.prices) for k in ratios},
            "profile": self.prices.name,
            "original_pj": self.ledger.original_pj(self.prices),
            "analog_share": self.ledger.analog_share,
            "edge_share": self.ledger.edge_products / max(self.ledger.macs, 1),
            "head_share": self.ledger.head_share,
            **{name: getattr(self, name) for name in ("dead_share", "images", "scale", "seconds")},
        }


def evaluate(
    ann: nn.Module,
    snn: nn.Module,
    batches: Iterable[tuple[Any, Any]],
    metric: Metric | None = None,
    *,
    processes: Processes = ALONE,
    ledger: Ledger | None = None,
) -> Evaluation:
    """Run both networks over (inputs, labels) batches and count every spike, in `ledger` if given.

    Without a metric both networks are scored as classifiers: accuracy, agreement and KL. A `DataLoader` works;
    labels may be None. Of several processes each gives its batches, and gets the figures of all, with summed seconds.
    """
    for network in (ann, snn):
        check_module("evaluate", network)
    score: Metric = Accuracy() if metric is None else metric
    if processes.count > 1 and not hasattr(score, "merge"):
        raise UsageError(f"evaluate: processes cannot share {type(score).__name__}. Run it in one.")
    total = Ledger() if ledger is None else ledger
    images, seconds, dead = 0, {"ann": 0.0, "snn": 0.0}, None
    fewer, of_merged = merging_of(snn), deepcopy(score)
    apart = not in_memory(ann)  # then several batches are counted side by side

    def original(inputs: Any) -> Any:
        with readable("evaluate", inputs):
            output, taken = _timed(ann, inputs)
        seconds["ann"] += taken
        return output

    def spiking(inputs: Any) -> tuple[Any, Ledger]:
        with metered(snn, Ledger(every=total.every) if apart else total) as counted:
            before = counted.seconds
            output, taken = _timed(snn, inputs)
        seconds["snn"] += taken - (counted.seconds - before)
        return output, counted

    def merged(inputs: Any) -> Any:
        network: Any = ann.model if isinstance(ann, Once) else ann
        with merging(network, {} if fewer is None else fewer.pairs), visiting(network, Visit(lambda _, x: x)):
            return call(network, inputs)

    forwards = [original, spiking, *([] if fewer is None else [merged])]
    checked = (labeled("evaluate", batch) for batch in batches)
    for inputs, labels, (expected, (actual, counted), *more) in pairwise((ann, snn), checked, forwards):
        if not images and count(inputs):
            with suppress(UsageError):  # a network for which it is unknown
                dead = sum(dead_work(ann.model if isinstance(ann, Once) else ann, inputs).values(), 0.0)
        if counted is not total:
            total.merge(counted)
        score.update(expected, actual, labels)
        for other in more:
            of_merged.update(expected, other, labels)
        images += count(inputs)
    mine = score, of_merged, total, images, seconds
    (score, of_merged, total, images, seconds), *others = processes.exchange(mine)
    for score_there, merged_there, counted, count_there, seconds_there in others:
        score.merge(score_there)
        of_merged.merge(merged_there)
        total.merge(counted)
        images += count_there
        seconds = {name: seconds[name] + seconds_there[name] for name in seconds}
    if not images:
        raise DataError("evaluate: there are no inputs. Give at least one batch.")
    result = Evaluation(score.compute(), total, images, scale_if_any(snn), seconds, steps_of(snn), dead)
    return result if fewer is None else replace(result, merged=of_merged.compute())


def scale_if_any(snn: nn.Module) -> float | None:
    with suppress(UsageError):
        return float(scale_of(snn).value)
    return None


@contextmanager
def at_scale(snn: nn.Module, scale: float | None) -> Iterator[None]:
    """Set another λ within this context, if there is one to set."""
    before = scale_if_any(snn)
    if scale is not None:
        set_scale_(snn, scale)
    try:
        yield
    finally:
        if before is not None:
            set_scale_(snn, before)


def _timed(model: nn.Module, inputs: Any) -> tuple[Any, float]:
    """The output, and the seconds it took, without those in which others had their turn."""
    device = torch.get_device_module(device_of(model))
    device.synchronize()
    started = clock()
    output = call(model, inputs)
    device.synchronize()
    return output, clock() - started
