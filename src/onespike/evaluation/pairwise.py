"""The one loop over batches in which several networks answer the same inputs, and a network that remembers its answers."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from onespike.runtime.batches import call, to
from onespike.runtime.forward import device_of, evaluating, in_turn

ROOM = 1 << 30  # bytes that all answers of a `Once` may take; scores of a text take megabytes per line


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

    def __init__(self, model: nn.Module, room: int = ROOM) -> None:
        super().__init__()
        self.model, self.room = model, room
        self.answers: dict[int, Any] = {}
        self.place = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        place = self.place
        self.place += 1
        if place in self.answers:
            return self.answers[place]
        output = self.model(*inputs, **named)
        inside = hasattr(output, "__dict__") and not isinstance(output, (Tensor, dict))
        leaves = tree_leaves(vars(output) if inside else output)
        size = sum(x.nbytes for x in leaves if isinstance(x, Tensor))
        if size <= self.room:
            self.room -= size
            self.answers[place] = output
        return output


def pairwise(
    networks: Sequence[nn.Module],
    batches: Iterable[tuple[Any, Any]],
    forwards: Sequence[Callable[[Any], Any]] | None = None,
) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    """Yield (inputs, labels, outputs of all networks), which are in evaluation and inference mode meanwhile.

    The first network says where inputs go; if it lies in blocks, as many batches as fit go through it together. A `Once`
    starts again with its first answer. `forwards` run on the inputs, if that is more than each network.

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
            yield *waiting.popleft(), outputs
