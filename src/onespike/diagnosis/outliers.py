"""Values beyond the largest level of their site, and the tokens that carry them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onespike.neurons import Neuron
from onespike.runtime.batches import call, to
from onespike.runtime.forward import device_of, evaluating
from onespike.sites import Operand, Visit, visiting
from onespike.tasks import Task

FAR = 1.5
"""A value is an outlier if it is this many times the value of the largest level."""
NAMED = 3


@dataclass
class Outliers:
    """The values beyond the largest level of one site, in the original network.

    Attributes:
        largest: the largest value.
        reach: the value of the largest level there.
        rows: number of rows (tokens) seen.
        carrying: rows with such a value.
        first: rows among them that are the first of their input.
        named: the task's name for a row → its number of occurrences.
    """

    largest: float = 0.0
    reach: float = 0.0
    rows: int = 0
    carrying: int = 0
    first: int = 0
    named: Counter[str] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "named": dict((self.named or Counter()).most_common(NAMED))}


def outliers(snn: nn.Module, batches: Iterable[Any], task: Task) -> dict[str, dict[str, Any]]:
    """Return the sites whose largest level is far below their largest value: by name, the farthest first."""
    found: dict[str, Outliers] = {}
    batch: Any = None

    def visit(operand: Operand, x: Tensor) -> Tensor:
        neuron = operand.neuron(x)
        if isinstance(neuron, Neuron) and operand.site.operation == "linear" and x.dim() > 1:
            sent = neuron(x)
            far = (neuron.counts(x).abs() == neuron.largest) & (x.abs() > FAR * sent.abs())
            row = found.setdefault(str(operand.site), Outliers(named=Counter()))
            carrying = far.any(-1)
            row.rows += carrying.numel()
            if bool(far.any()):
                place = (x.abs() * far).argmax()
                if float(x.abs().flatten()[place]) > row.largest:
                    row.largest = float(x.abs().flatten()[place])
                    row.reach = float(sent.abs().flatten()[place])
                _name(row, carrying, batch, task)
        return x

    with evaluating(snn), visiting(snn, Visit(visit)):
        for inputs in batches:
            batch = to(inputs, device_of(snn))
            call(snn, batch)
    known = {site: row for site, row in found.items() if row.carrying}
    return {
        site: row.to_dict()
        for site, row in sorted(known.items(), key=lambda pair: -pair[1].largest / max(pair[1].reach, 1e-30))
    }


def _name(row: Outliers, carrying: Tensor, batch: Any, task: Task) -> None:
    """Count the rows that carry outliers, by name."""
    row.carrying += int(carrying.sum())
    if carrying.dim() != 2 or row.named is None:
        return
    row.first += int(carrying[:, 0].sum())
    for number, place in torch.nonzero(carrying).tolist():
        if (name := task.row(batch, number, place)) is not None:
            row.named[name] += 1
