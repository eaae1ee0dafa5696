"""A probe: a few inputs in memory, on which variants of a converted network are compared with the original."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onespike.conversion.attach import named_neurons
from onespike.conversion.network import set_scale_
from onespike.energy.columns import PAPER
from onespike.energy.ledger import or_none
from onespike.energy.metering import metered
from onespike.evaluation.pairwise import pairwise
from onespike.runs import Progress, no_progress
from onespike.runtime.batches import call, take, to
from onespike.runtime.forward import device_of, evaluating
from onespike.runtime.remembered import Once
from onespike.sites import Operand, Site, Visit, visiting
from onespike.tasks import Meaning
from onespike.tasks.base import exact

COUNTED = 8
"""Inputs on which a sweep counts spikes: energy hardly varies between inputs, and counting takes time."""


@dataclass(frozen=True)
class Distance:
    """A network's distance from the original: the task's mean KL (nats), and per input whether they agree."""

    kl: float
    agrees: Tensor

    def beats(self, other: Distance) -> bool:
        """Return whether more answers became right than by chance: over three standard errors, paired."""
        return beyond_chance(self.agrees, other.agrees)


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
        self.ann, self.task = ann, task
        device = device_of(ann)
        self.parts = [to(inputs, device) for inputs in batches]
        self.original = Once(ann)

    def halves(self) -> tuple[list[Any], Probe]:
        """Return the inputs of every second batch, and a probe of the others: to calibrate on one and measure on the other."""
        return self.parts[::2], Probe(self.ann, self.parts[1::2] or self.parts, self.task)

    def sweep(
        self,
        snn: nn.Module,
        scales: Sequence[float],
        own: float,
        column: str = PAPER,
        progress: Progress = no_progress,
    ) -> list[dict[str, Any]]:
        """Return kl, agreement (%) and energy over λ, and whether it `beats` the run's λ, which is set at the end."""
        if not any(getattr(neuron, "scale", None) is not None for _, neuron in named_neurons(snn)):
            return []
        before, rows = self.distance(snn), list[dict[str, Any]]()
        for scale in progress("λ", len(scales))(scales):
            set_scale_(snn, scale)
            found = self.distance(snn)
            with evaluating(snn), metered(snn) as ledger:
                call(snn, take(self.parts[0], slice(0, COUNTED)))
            agreement = 100 * float(found.agrees.double().mean())
            energy = or_none(ledger.ratio(column))
            figures = {"kl": found.kl, "agreement": agreement, "energy": energy}
            rows.append({"scale": scale, **figures, "better": found.beats(before)})
        set_scale_(snn, own)
        return rows

    def distance(self, snn: nn.Module) -> Distance:
        total, agrees = 0.0, []
        unlabeled = ((inputs, None) for inputs in self.parts)
        for _, _, outputs in pairwise((self.original, snn), unlabeled):
            expected, actual = map(exact, outputs)
            total += float(self.task.divergence(expected, actual))
            agrees.append(self.task.differences(expected, actual) == 0)
        together = torch.cat(agrees).cpu()
        return Distance(total / len(together), together)


@contextmanager
def analog(snn: nn.Module, chosen: Callable[[Site], bool]) -> Iterator[None]:
    """Let the chosen sites of a converted network pass their activations on unchanged within this context."""

    def visit(operand: Operand, x: Tensor) -> Tensor:
        return x if chosen(operand.site) else operand.value(x)

    with visiting(snn, Visit(visit)):
        yield
