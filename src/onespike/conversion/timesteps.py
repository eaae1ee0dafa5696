"""More than one timestep: T forwards on running means, with the membranes that neurons keep between them.

At pass t a neuron sees the mean of its input over t steps, x̄_t. The current of this step alone is
x(t) = t·x̄_t − (t−1)·x̄_{t−1}. The neuron integrates it, fires, and passes on the mean of all that it has fired.
"""

import copy
import threading
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor
from torch.utils._pytree import tree_map

from onespike.neurons import Neuron
from onespike.sites import Site


class Clock(threading.local):
    """T, and the passes of each thread's forward; copies and pickles keep T alone."""

    def __init__(self, timesteps: int) -> None:
        self.timesteps, self.now, self.running = timesteps, 1, False
        # of each call of a site within a pass: the sum of currents so far, the potential, and the sum of outputs
        self.membranes: dict[tuple[Site, int], tuple[Tensor, Tensor, Tensor]] = {}
        self.calls: dict[Site, int] = {}  # how often each site was reached in this pass

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (self.timesteps,)

    def run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run T passes over one input; the last one's output is the mean over all steps.

        Passes before the last get copies of the input: what a network does to its input in place happens once. So a
        cache of earlier tokens holds their means over all steps, and grows by one call, not by T.
        """
        self.running = True
        try:
            for now in range(1, self.timesteps + 1):
                self.now = now
                self.calls.clear()
                inputs, named = (args, kwargs) if now == self.timesteps else _copied((args, kwargs))
                output = forward(*inputs, **named)
            return output
        finally:
            self.now, self.running = 1, False
            self.membranes.clear()
            self.calls.clear()

    def fire(self, site: Site, neuron: Neuron, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signed counts of this step, and the mean output over all steps so far in the type of x."""
        call = self.calls.get(site, 0)
        # the network may overwrite x and the output later, so the membrane shares memory with neither
        received = self.now * x.float()
        if self.now == 1:
            fired, emitted, potential = neuron.step(received, None)
        else:
            before, charge, sent = self.membranes[site, call]
            fired, value, potential = neuron.step(received - before, charge)
            emitted = sent + value
        if self.running:  # else only a part of the network runs
            self.membranes[site, call], self.calls[site] = (received, potential, emitted), call + 1
        return fired, (emitted / self.now).to(x.dtype)


def _copied(inputs: Any) -> Any:
    """Copy all tensors, and objects that may hold some, such as a cache.

    An object given twice is copied once, since attention tests whether q is k.
    """
    copies: dict[int, Any] = {}

    def copied(x: Any) -> Any:
        if isinstance(x, Tensor):
            return copies.setdefault(id(x), x.clone())
        return copy.deepcopy(x, copies) if hasattr(x, "__dict__") and not callable(x) else x

    return tree_map(copied, inputs)
