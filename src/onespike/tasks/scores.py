"""Scores of outputs, for metrics and objectives: double precision, divergence, means over inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from onespike.errors import DataError
from onespike.runtime.batches import logits

NETWORKS = {"ann": "original", "snn": "spiking"}
"""Both networks: their names in records and in words."""


def exact(output: Any) -> Any:
    """Return an output in double precision."""
    return tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, logits(output))


def refuse_nan(scores: Tensor, network: str, inputs: str) -> None:
    """Refuse NaN; −∞, which masks out a class, may stand."""
    if bool(scores.isnan().any()):
        raise DataError(
            f"the output of the {NETWORKS[network]} network is NaN. Check its weights, and {inputs}."
        )


def relative_entropy(expected: Tensor, actual: Tensor) -> Tensor:
    """Return KL(expected ‖ actual) over the last dimension of logits; classes of probability 0 add nothing."""
    log_p, log_q = expected.log_softmax(-1), actual.log_softmax(-1)
    p = log_p.exp()
    return (p * (log_p - log_q)).masked_fill(p == 0, 0.0).sum(-1)


@dataclass
class Mean:
    """A score that is a mean over inputs: `values_of` (expected, actual, labels) gives one value per input, or their sum.

    `of_mean` turns the mean into the score.
    """

    values_of: Callable[[Any, Any, Any], Tensor]
    of_mean: Callable[[float], float] = float
    total: float = 0.0
    inputs: int = 0

    def update(self, expected: Any, actual: Any, labels: Any, size: int) -> None:
        self.total += float(self.values_of(expected, actual, labels).detach().double().sum())
        self.inputs += size

    def value(self) -> float:
        return self.of_mean(self.total / self.inputs)
