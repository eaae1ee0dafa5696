"""A converted network as a function of λ, for a search to measure."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from torch import nn

from onespike.conversion.network import set_scale_
from onespike.energy.columns import column_of
from onespike.energy.ledger import Ledger
from onespike.energy.metering import counted, metered
from onespike.errors import DataError
from onespike.evaluation.pairwise import Once, pairwise
from onespike.runtime.batches import call, count, to
from onespike.runtime.forward import device_of
from onespike.scale_search import LOWEST, Hopeless, Measurement
from onespike.tasks import Items, Objective

EVERY = 64
"""A full count would double the cost of a forward, so a search counts one row of elements in 64 of the first batch."""


class ScaleObjective:
    """Measure one λ on a fixed set of inputs in memory, with the original's outputs while there is room.

    A trial is one forward of the converted network over the inputs. If energy is wanted, spikes of the first batch are
    counted. `images` is the number of inputs, `forwards` how many went through either network so far.
    """

    def __init__(
        self,
        ann: nn.Module,
        snn: nn.Module,
        batches: Iterable[tuple[Any, Any]],
        objective: Objective,
        items: Items,
        energy: str | None = None,
    ) -> None:
        self.snn, self.objective, self.items, self.energy = snn, objective, items, energy
        device = device_of(ann)
        self.parts = [(to(inputs, device), labels) for inputs, labels in batches]
        self.images, self.forwards = sum(count(inputs) for inputs, _ in self.parts), 0
        if objective.labeled and any(labels is None for _, labels in self.parts):
            raise DataError("search: the images have no labels. Use objective='kl', which needs none.")
        self.original = Once(ann)
        if objective.compares:
            self.forwards += sum(count(inputs) for inputs, _, _ in pairwise((self.original,), self.parts))

    def __call__(self, scale: float, hopeless: Hopeless) -> Measurement:
        set_scale_(self.snn, scale)
        score, column = self.objective.score(self.items), self.energy
        # some columns have parts that must be whole
        ledger = Ledger(every=EVERY if column is None or not column_of(column).strict_of else 1)
        quarters = {max(1, round(len(self.parts) * q / 4)) for q in (1, 2, 3)}

        def original(inputs: Any) -> Any:
            if not self.objective.compares:
                return None
            self.forwards += 0 if self.original.place in self.original.answers else count(inputs)
            return call(self.original, inputs)

        def spiking(inputs: Any) -> Any:
            self.forwards += count(inputs)
            is_first = column is not None and not ledger.inputs
            with metered(self.snn, ledger) if is_first else nullcontext():
                return call(self.snn, inputs)

        answered = pairwise((self.original, self.snn), self.parts, (original, spiking))
        for step, (inputs, labels, (expected, actual)) in enumerate(answered, 1):
            score.update(expected, actual, labels, count(inputs))
            # where energy counts too, a trial with a poor metric may be on the front
            asks = column is None and self.objective.partial and step in quarters
            if asks and step < len(self.parts) and hopeless(step, score.value()):
                return Measurement(score.value(), finished=False)
        return Measurement(score.value(), None if column is None else ledger.ratio(column))


def scale_within(snn: nn.Module, inputs: Any, column: str, ratio: float, halvings: int = 12) -> float:
    """Return the smallest λ whose energy on these inputs is within a ratio: energy falls as λ grows."""
    low, high = LOWEST, 1.0
    for _ in range(halvings):
        middle = (low * high) ** 0.5
        set_scale_(snn, middle)
        enough = counted(snn, inputs).ratio(column) <= ratio
        low, high = (low, middle) if enough else (middle, high)
    return high
