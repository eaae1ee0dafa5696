"""A few inputs kept in memory, on which variants of a converted network are compared with the original."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onespike.attach import Neurons, neurons
from onespike.calibrate import device_of, evaluating
from onespike.convert import set_scale_
from onespike.doctor.trail import passed_on, visited_by
from onespike.energy import metered
from onespike.pipeline import Progress, no_progress
from onespike.sites import Site

COUNTED = 8
"""Inputs on which a sweep counts spikes: energy hardly varies between inputs, and counting takes time."""


@dataclass(frozen=True)
class Distance:
    """How far a network is from the original: KL (nats, a mean), and for each input whether the answers agree."""

    kl: float
    agrees: Tensor

    def beats(self, other: Distance) -> bool:
        """Whether more answers turned right than chance would turn: over three standard errors, paired."""
        return beyond_chance(self.agrees, other.agrees)


def beyond_chance(better: Tensor, worse: Tensor) -> bool:
    """Whether b inputs gained outweigh c lost by over 3·√(b + c), McNemar's test at three standard errors.

    >>> beyond_chance(torch.ones(20) > 0, torch.arange(20) < 8), beyond_chance(torch.ones(20) > 0, torch.arange(20) < 16)
    (True, False)
    """
    gained, lost = int((better & ~worse).sum()), int((worse & ~better).sum())
    return gained - lost > 3 * math.sqrt(gained + lost)


class Probe:
    """Inputs with the original network's answers; `distance(snn)` is one forward pass over them."""

    def __init__(self, ann: nn.Module, batches: Iterable[Tensor]) -> None:
        self.parts: list[tuple[Tensor, Tensor]] = []
        device = device_of(ann)
        with evaluating(ann):
            for inputs in batches:
                inputs = inputs.to(device)
                self.parts.append((inputs, _log_probabilities(ann(inputs))))

    def halves(self) -> tuple[list[Tensor], Probe]:
        """Inputs of every second batch, and a probe of the others: to calibrate on one and measure on the other."""
        rest = object.__new__(Probe)
        rest.parts = self.parts[1::2] or self.parts
        return [inputs for inputs, _ in self.parts[::2]], rest

    def sweep(
        self, snn: nn.Module, scales: Sequence[float], own: float, progress: Progress = no_progress
    ) -> list[dict[str, Any]]:
        """kl, agreement (%) and energy over λ, and whether it `beats` the run's own λ, which is set at the end."""
        if not any(getattr(neuron, "scale", None) is not None for _, neuron in neurons(snn)):
            return []
        before, rows = self.distance(snn), list[dict[str, Any]]()
        for scale in progress("λ", len(scales))(scales):
            set_scale_(snn, scale)
            found = self.distance(snn)
            with evaluating(snn), metered(snn) as ledger:
                snn(self.parts[0][0][:COUNTED])
            agreement = 100 * float(found.agrees.double().mean())
            energy = ledger.ratio("counts")
            counts = None if math.isnan(energy) else energy
            figures = {"kl": found.kl, "agreement": agreement, "counts": counts}
            rows.append({"scale": scale, **figures, "better": found.beats(before)})
        set_scale_(snn, own)
        return rows

    def distance(self, snn: nn.Module) -> Distance:
        total, agrees = 0.0, []
        with evaluating(snn):
            for inputs, expected in self.parts:
                found = _log_probabilities(snn(inputs))
                total += float((expected.exp() * (expected - found)).nan_to_num(0.0).sum())
                agrees.append(found.argmax(-1) == expected.argmax(-1))
        together = torch.cat(agrees).cpu()
        return Distance(total / len(together), together)


def _log_probabilities(output: Any) -> Tensor:
    logits: Tensor = getattr(output, "logits", output)
    return logits.double().log_softmax(-1)


@contextmanager
def analog(snn: nn.Module, chosen: Callable[[str], bool]) -> Iterator[None]:
    """Within this context the chosen sites of a converted network pass their activations on as they are."""

    def visit(owner: Neurons, key: str, x: Tensor, count: Any) -> Tensor:
        return x if chosen(str(Site(owner.owner, key))) else passed_on(owner, key, x, count)

    with visited_by(snn, visit):
        yield
