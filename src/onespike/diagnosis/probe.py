"""A probe: a few inputs in memory, on which variants of a converted network are compared with the original."""

from __future__ import annotations

import copy
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
from onespike.energy.ledger import known
from onespike.energy.metering import metered
from onespike.runs import Progress, no_progress
from onespike.runtime.batches import call, count, take, to
from onespike.runtime.forward import device_of, evaluating
from onespike.runtime.remembered import Remembered
from onespike.sites import Operand, Visit, visiting
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
        self.task = task
        self.ann, self.answers = ann, Remembered()
        device = device_of(ann)
        self.parts: list[tuple[int, Any]] = [(place, to(x, device)) for place, x in enumerate(batches)]

    def _expected(self, place: int, inputs: Any) -> Any:
        """Return the original network's answer in double precision: kept, or computed again if it is large."""

        def compute() -> Any:
            with evaluating(self.ann):
                return exact(call(self.ann, inputs))

        return self.answers(place, compute)

    @property
    def images(self) -> int:
        """Return the number of inputs."""
        return sum(count(inputs) for _, inputs in self.parts)

    def halves(self) -> tuple[list[Any], Probe]:
        """Return the inputs of every second batch, and a probe of the others: to calibrate on one and measure on the other."""
        rest = copy.copy(self)  # which knows the same answers
        rest.parts = self.parts[1::2] or self.parts
        return [inputs for _, inputs in self.parts[::2]], rest

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
                call(snn, take(self.parts[0][1], slice(0, COUNTED)))
            agreement = 100 * float(found.agrees.double().mean())
            energy = known(ledger.ratio(column))
            figures = {"kl": found.kl, "agreement": agreement, "energy": energy}
            rows.append({"scale": scale, **figures, "better": found.beats(before)})
        set_scale_(snn, own)
        return rows

    def distance(self, snn: nn.Module) -> Distance:
        total, agrees = 0.0, []
        with evaluating(snn):
            for place, inputs in self.parts:
                expected, found = self._expected(place, inputs), exact(call(snn, inputs))
                total += float(self.task.divergence(expected, found))
                agrees.append(self.task.differences(expected, found) == 0)
        together = torch.cat(agrees).cpu()
        return Distance(total / len(together), together)


@contextmanager
def analog(snn: nn.Module, chosen: Callable[[str], bool]) -> Iterator[None]:
    """Let the chosen sites of a converted network pass their activations on unchanged within this context."""

    def visit(operand: Operand, x: Tensor) -> Tensor:
        return x if chosen(str(operand.site)) else operand.value(x)

    with visiting(snn, Visit(visit)):
        yield
