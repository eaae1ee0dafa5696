"""A network's answers to repeated inputs: kept while there is room, then computed again."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

ROOM = 1 << 30
"""Bytes that all answers may take. Next-token scores of a text take megabytes per line."""


class Once(nn.Module):
    """A network that runs once per input when the same inputs repeat in order, while its outputs fit.

    With `place` 0 it starts again with its first answer.

    >>> import torch
    >>> network = Once(nn.Flatten(0), room=8)
    >>> for _ in range(2):
    ...     network.place = 0
    ...     print([float(network(torch.full((1, 2), x)).sum()) for x in (1.0, 2.0)], list(network.answers))
    [2.0, 4.0] [0]
    [2.0, 4.0] [0]
    """

    def __init__(self, model: nn.Module, room: int | None = None) -> None:
        super().__init__()
        self.model, self.room = model, ROOM if room is None else room
        self.answers: dict[int, Any] = {}
        self.place = 0

    @property
    def remembers(self) -> bool:
        """Whether the next answer is there already."""
        return self.place in self.answers

    def forward(self, *inputs: Any, **named: Any) -> Any:
        place = self.place
        self.place += 1
        if place in self.answers:
            return self.answers[place]
        output = self.model(*inputs, **named)
        inside = hasattr(output, "__dict__") and not isinstance(output, (Tensor, dict))
        leaves = tree_leaves(vars(output) if inside else output)
        size = sum(x.numel() * x.element_size() for x in leaves if isinstance(x, Tensor))
        if size <= self.room:
            self.room -= size
            self.answers[place] = output
        return output
