"""Values beyond the largest level of their site, and the tokens that carry them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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


def outliers(snn: nn.Module, batches: Iterable[Any], task: Task) -> dict[str, dict[str, Any]]:
    """Return the sites whose largest level is far below their largest value in the original: the farthest first.

    A row states the `largest` value, its `reach` (the value of the largest level there), how many `rows` (tokens)
    were seen and how many are `carrying` such a value, the `first` ones of their inputs among these, and the most
    frequent ones as the task has `named` them.
    """
    rows: dict[str, dict[str, Any]] = {}
    batch: Any = None

    def visit(operand: Operand, x: Tensor) -> Tensor:
        neuron = operand.neuron(x)
        if not isinstance(neuron, Neuron) or operand.site.operation != "linear" or x.dim() < 2:
            return x
        empty = {"largest": 0.0, "reach": 0.0, "rows": 0, "carrying": 0, "first": 0, "named": Counter()}
        row = rows.setdefault(str(operand.site), empty)
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
    return {site: {**row, "named": dict(row["named"].most_common(NAMED))} for site, row in far_ones}
