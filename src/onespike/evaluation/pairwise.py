"""The one loop over batches in which several networks answer the same inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from onespike.runtime.batches import call, to
from onespike.runtime.forward import device_of, evaluating, in_turn
from onespike.runtime.remembered import Once


class Answered(NamedTuple):
    """A batch and what every network made of it."""

    inputs: Any
    labels: Any
    outputs: tuple[Any, ...]


def pairwise(
    networks: Sequence[nn.Module],
    batches: Iterable[tuple[Any, Any]],
    forwards: Sequence[Callable[[Any], Any]] | None = None,
) -> Iterator[Answered]:
    """Yield each batch with the outputs of all networks, which are in evaluation and inference mode meanwhile.

    The first network says where inputs go; if it lies in blocks, as many batches as fit go through it together.

    Args:
        networks: the original and those that are compared with it; a `Once` starts again with its first answer.
        batches: (inputs, labels).
        forwards: what runs on the inputs, if that is more than each network.

    >>> import torch
    >>> double = nn.Linear(1, 1, bias=False).requires_grad_(False)
    >>> _ = double.weight.fill_(2)
    >>> [(float(x), float(y)) for x, _, (y, _) in pairwise((double, nn.Identity()), [(torch.ones(1), None)])]
    [(1.0, 2.0)]
    """
    first, waiting = networks[0], deque[tuple[Any, Any]]()
    device = device_of(first)
    forwards = [partial(call, network) for network in networks] if forwards is None else forwards

    def works() -> Iterator[Callable[[], Any]]:
        for inputs, labels in batches:
            inputs = to(inputs, device)
            waiting.append((inputs, labels))
            yield from (partial(forward, inputs) for forward in forwards)

    with ExitStack() as stack:
        for network in networks:
            stack.enter_context(evaluating(network))
            if isinstance(network, Once):
                network.place = 0
        results = in_turn(first, works())
        for outputs in zip(*[results] * len(forwards), strict=True):
            yield Answered(*waiting.popleft(), outputs)
