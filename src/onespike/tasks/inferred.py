"""The meaning of an output without a task: the scores of classes, or numbers with normal noise."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_leaves

from onespike.errors import DataError
from onespike.runtime.batches import logits
from onespike.tasks.base import Drawing, Meaning
from onespike.tasks.classification import Classification


def numbers_in(output: Any) -> list[Tensor]:
    parts = vars(output) if hasattr(output, "__dict__") and not isinstance(output, Tensor) else output
    numbers = [x for x in tree_leaves(parts) if isinstance(x, Tensor) and x.is_floating_point()]
    if not numbers:
        raise DataError(
            f"the network's output, of type {type(output).__name__}, holds no numbers to compare. "
            "Return tensors, or wrap the network so that it does."
        )
    return numbers


def _spread(x: Tensor) -> Tensor:
    """Return the standard deviation of an output's numbers; 1 if they are all equal."""
    spread = (x.detach() - x.detach().mean()).square().mean().sqrt()
    return torch.where(spread > 0, spread, torch.ones_like(spread))


class Numbers(Meaning):
    """Any output: its numbers are normal, with the standard deviation of the output itself."""

    def drawn(self, output: Any, sources: Sequence[Generator]) -> Tensor:
        """Sample with normal noise on every number; each tensor counts as one, regardless of size."""
        total = []
        for x in numbers_in(output):
            noise = torch.randn(x.shape, generator=sources[0]).to(x)
            total.append((noise * x).sum() / _spread(x) / max(x.numel() / len(sources), 1) ** 0.5)
        return torch.stack(total).sum()  # log N up to terms without a gradient

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """Return ½·((expected − actual)/spread)², averaged over the numbers of an input, summed over inputs."""
        terms = []
        for a, b in zip(numbers_in(expected), numbers_in(actual), strict=True):
            inputs = len(a) if a.dim() else 1
            terms.append(0.5 * ((a - b) / _spread(a)).square().sum() * inputs / max(a.numel(), 1))
        return torch.stack(terms).sum()

    def lost(self, expected: Any, actual: Any) -> Tensor:
        """Return the share of the numbers' variance that is not explained."""
        a, b = numbers_in(expected)[0], numbers_in(actual)[0]
        return ((a - b) / _spread(a)).flatten(1).square().mean(1)

    def differences(self, expected: Any, actual: Any) -> Tensor:
        """Return 1 where an input's numbers differ by more than their spread."""
        return (self.lost(expected, actual) > 1).float()


def infer(output: Any) -> Meaning:
    """Return classes for logits of shape (inputs, classes), numbers for anything else."""
    scores = logits(output)
    classes = isinstance(scores, Tensor) and scores.dim() == 2 and scores.shape[1] > 1
    return Classification() if classes else Numbers()


class Inferred(Meaning):
    """The meaning that the original's output implies, for networks without a task."""

    def drawing(self, size: int, generator: Generator) -> Drawing:
        drawing = cache(lambda kind: kind().drawing(size, generator))  # made once, of the first output
        return lambda output, places: drawing(type(infer(output)))(output, places)

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        return infer(expected).divergence(expected, actual)

    def lost(self, expected: Any, actual: Any) -> Tensor:
        return infer(expected).lost(expected, actual)

    def differences(self, expected: Any, actual: Any) -> Tensor:
        return infer(expected).differences(expected, actual)

    def right(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        return infer(output).right(output, labels)
