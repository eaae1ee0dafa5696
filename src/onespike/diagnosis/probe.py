"""A few inputs in memory: variants of a converted network are compared with the original, and its sites looked at."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from onespike.conversion.firing import is_spiking
from onespike.energy.ledger import or_none
from onespike.energy.metering import counted
from onespike.energy.survey import decibels
from onespike.evaluation.pairwise import Once, pairwise
from onespike.evaluation.side_by_side import at_scale
from onespike.runtime.batches import call, take, to
from onespike.runtime.forward import device_of, evaluating
from onespike.sites import Operand, Site, Visit, visiting
from onespike.tasks import Meaning, Task
from onespike.tasks.base import exact

COUNTED = 8  # inputs on which a sweep counts spikes: energy hardly varies, and counting takes time
SAMPLED = 1 << 16  # elements of a site that a trail compares, evenly spaced: enough for a power
FAR = 1.5  # a value is an outlier if it is this many times the value of the largest level
NAMED = 3


class Distance(NamedTuple):
    """A network's distance from the original: the task's mean KL (nats), and per input whether they agree."""

    kl: float
    agrees: Tensor


def beyond_chance(better: Tensor, worse: Tensor) -> bool:
    """Return whether b gained inputs outweigh c lost ones by over 3·√(b + c): McNemar's test at three standard errors.

    >>> beyond_chance(torch.ones(20) > 0, torch.arange(20) < 8), beyond_chance(torch.ones(20) > 0, torch.arange(20) < 16)
    (True, False)
    """
    gained, lost = int((better & ~worse).sum()), int((worse & ~better).sum())
    return gained - lost > 3 * math.sqrt(gained + lost)


class Probe:
    """Inputs with the original network's answers; `distance(snn)` is one forward pass over them."""

    def __init__(self, ann: nn.Module, batches: Iterable[Any], task: Meaning) -> None:
        self.ann, self.task, self.original = ann, task, Once(ann)
        self.parts = [to(inputs, device_of(ann)) for inputs in batches]

    def distance(self, snn: nn.Module) -> Distance:
        total, agrees = 0.0, []
        for _, _, outputs in pairwise((self.original, snn), ((inputs, None) for inputs in self.parts)):
            expected, actual = map(exact, outputs)
            total += float(self.task.divergence(expected, actual))
            agrees.append(self.task.differences(expected, actual) == 0)
        together = torch.cat(agrees).cpu()
        return Distance(total / len(together), together)

    def at(self, snn: nn.Module, scale: float, column: str, before: Distance) -> dict[str, Any]:
        """Return kl, agreement (%) and energy at another λ, and whether more answers are right than before."""
        with at_scale(snn, scale):
            distance = self.distance(snn)
            ledger = counted(snn, take(self.parts[0], slice(0, COUNTED)))
        return {
            "scale": scale,
            "kl": distance.kl,
            "agreement": 100 * float(distance.agrees.double().mean()),
            "energy": or_none(ledger.ratio(column)),
            "better": beyond_chance(distance.agrees, before.agrees),
        }


def analog(snn: nn.Module, chosen: Callable[[Site], bool]) -> AbstractContextManager[Any]:
    """Let the chosen sites of a converted network pass their activations on unchanged within this context."""
    return visiting(snn, Visit(lambda operand, x: x if chosen(operand.site) else operand.value(x)))


def trail(snn: nn.Module, inputs: Any) -> list[tuple[str, float]]:
    """Return how far a batch departs from the network with all sites analog: signal to noise in dB, site by site."""
    originals = dict[Site, list[Tensor]]()
    ratios = list[tuple[str, float]]()

    def sample(x: Tensor) -> Tensor:
        return x.detach().flatten()[:: max(1, x.numel() // SAMPLED)].double()

    def original(operand: Operand, x: Tensor) -> Tensor:
        originals.setdefault(operand.site, []).append(sample(x))
        return x

    def spiking(operand: Operand, x: Tensor) -> Tensor:
        site = operand.site
        if originals.get(site):
            expected, actual = originals[site].pop(0), sample(x)
            if expected.shape == actual.shape:
                noise = float((expected - actual).square().sum())
                ratios.append((str(site), decibels(float(expected.square().sum()), noise)))
        return operand.value(x)

    inputs = to(inputs, device_of(snn))
    for visit in (original, spiking):
        with evaluating(snn), visiting(snn, Visit(visit)):
            call(snn, inputs)
    return ratios


def outliers(snn: nn.Module, batches: Iterable[Any], task: Task) -> dict[str, dict[str, Any]]:
    """Return the sites whose largest level is far below their largest value in the original: the farthest first.

    A row states the `largest` value, its `reach` (the value of the largest level there), how many `rows` (tokens) were
    seen, how many are `carrying` such a value and are `first` in their input as well, and the most frequent, as `named`.
    """
    rows: dict[Site, dict[str, Any]] = {}
    batch: Any = None

    def visit(operand: Operand, x: Tensor) -> Tensor:
        neuron = operand.neuron()
        if not is_spiking(neuron) or operand.site.operation != "linear" or x.dim() < 2:
            return x
        empty = {"largest": 0.0, "reach": 0.0, "rows": 0, "carrying": 0, "first": 0, "named": Counter()}
        row = rows.setdefault(operand.site, empty)
        sent = neuron(x).abs()
        far = (neuron.counts(x).abs() == neuron.largest) & (x.abs() > FAR * sent)
        carrying = far.any(-1)
        row["rows"] += carrying.numel()
        if not bool(far.any()):
            return x
        farthest = (x.abs() * far).argmax()
        if (value := float(x.abs().flatten()[farthest])) > row["largest"]:
            row["largest"], row["reach"] = value, float(sent.flatten()[farthest])
        row["carrying"] += int(carrying.sum())
        if carrying.dim() == 2:
            row["first"] += int(carrying[:, 0].sum())
            names = (task.row(batch, number, token) for number, token in torch.nonzero(carrying).tolist())
            row["named"].update(name for name in names if name is not None)
        return x

    with evaluating(snn), visiting(snn, Visit(visit)):
        for inputs in batches:
            batch = to(inputs, device_of(snn))
            call(snn, batch)
    far_ones = [(site, row) for site, row in rows.items() if row["carrying"]]
    far_ones.sort(key=lambda pair: -pair[1]["largest"] / max(pair[1]["reach"], 1e-30))
    return {str(site): {**row, "named": dict(row["named"].most_common(NAMED))} for site, row in far_ones}
