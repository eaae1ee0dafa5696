"""A converted network as a function of λ, for a search to measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from onespike.conversion.network import set_scale_
from onespike.energy.columns import column_of
from onespike.energy.ledger import Ledger
from onespike.energy.metering import metered
from onespike.errors import DataError
from onespike.runtime.batches import call, count, to
from onespike.runtime.forward import device_of, evaluating
from onespike.runtime.remembered import Remembered
from onespike.scale_search import LOWEST, Hopeless, Measurement
from onespike.tasks import Objective, Score

EVERY = 64
"""A full count would double the cost of a forward, so a search counts one row of elements in 64 of the first batch."""


def every_of(column: str | None) -> int:
    """Return the sampling interval of a column: one row in so many; some columns have parts that must be whole."""
    return EVERY if column is None or column_of(column).sampled else 1


class ScaleObjective:
    """Measure one λ on a fixed set of inputs in memory, with the original's outputs while there is room.

    A trial is one forward of the converted network over the inputs. If energy is wanted, spikes of the first
    batch are counted (one row in `EVERY`, always the same rows), so that counting costs little. A compiled network is
    compiled once: it reads λ as a value.

    Args:
        ann: the original network.
        snn: the converted network.
        batches: (inputs, labels).
        objective: the quantity to measure.
        score: makes a new score for each trial.
        energy: the ledger's column to measure.
        compiled: compile the converted network.

    Attributes:
        images: number of inputs.
        forwards: inputs that went through either network so far.
    """

    def __init__(
        self,
        ann: nn.Module,
        snn: nn.Module,
        batches: Iterable[tuple[Any, Any]],
        objective: Objective,
        score: Callable[[], Score],
        energy: str | None = None,
        compiled: bool = False,
    ) -> None:
        self.snn, self.objective, self.score, self.energy = snn, objective, score, energy
        self.run: Callable[..., Any] = torch.compile(snn) if compiled else snn
        self.ann, self.answers = ann, Remembered()
        self.parts: list[tuple[Any, Any]] = []
        self.images = self.forwards = 0
        device = device_of(ann)
        with evaluating(ann):
            for inputs, labels in batches:
                inputs, size = to(inputs, device), count(inputs)
                if objective.labeled and labels is None:
                    raise DataError(
                        "search: the images have no labels. Use --objective kl, which needs none."
                    )
                self.parts.append((inputs, labels))
                if objective.compares:
                    self._expected(len(self.parts) - 1)
                self.images += size
        if not self.images:
            raise DataError(
                "search: there are no images to search on. Give a folder with images of their own."
            )

    def _expected(self, place: int) -> Any:
        """Return the original network's output: kept, or computed again if it is large."""

        def compute() -> Any:
            inputs, _ = self.parts[place]
            self.forwards += count(inputs)
            with evaluating(self.ann):
                return call(self.ann, inputs)

        return self.answers(place, compute) if self.objective.compares else None

    def __call__(self, scale: float, hopeless: Hopeless) -> Measurement:
        set_scale_(self.snn, scale)
        score, ledger = self.score(), Ledger(every=every_of(self.energy))
        quarters = {max(1, round(len(self.parts) * q / 4)) for q in (1, 2, 3)}
        with evaluating(self.snn):
            for step, (inputs, labels) in enumerate(self.parts, 1):
                if step == 1 and self.energy is not None:
                    with metered(self.snn, ledger):
                        output = call(self.snn, inputs)
                else:
                    output = call(self.run, inputs)
                score.update(self._expected(step - 1), output, labels, count(inputs))
                self.forwards += count(inputs)
                # where energy counts too, a trial with a poor metric may be on the front
                asks = self.energy is None and self.objective.partial and step in quarters
                if asks and step < len(self.parts) and hopeless(step, score.value()):
                    return Measurement(score.value(), finished=False)
        return Measurement(score.value(), None if self.energy is None else ledger.ratio(self.energy))


HALVINGS = 12


def scale_within(snn: nn.Module, inputs: Any, column: str, ratio: float, every: int = 1) -> float:
    """Return the smallest λ whose energy on these inputs, counted on one row in `every`, is within a ratio.

    Energy falls as λ grows; the interval is halved `HALVINGS` times.
    """
    low, high = LOWEST, 1.0
    with evaluating(snn):
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            set_scale_(snn, middle)
            with metered(snn, Ledger(every=every)) as ledger:
                call(snn, inputs)
            low, high = (low, middle) if ledger.ratio(column) <= ratio else (middle, high)
    return high
