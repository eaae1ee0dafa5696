"""More than one timestep: T forwards on running means, with the membranes that neurons keep between them.

At pass t a neuron sees the mean of its input over t steps, x̄_t. The current of this step alone is
x(t) = t·x̄_t − (t−1)·x̄_{t−1}. The neuron integrates it, fires, and passes on the mean of all that it has fired.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from onespike.neurons import Neuron
from onespike.sites import Site


@dataclass
class Passes:
    """The passes of one forward: the current pass, and a membrane for each call of a site within a pass."""

    now: int = 1
    # the sum of currents so far, the potential, and the sum of outputs
    membranes: dict[tuple[Site, int], tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    calls: dict[Site, int] = field(default_factory=dict)  # how often each site was reached in this pass


class Clock:
    """T, and the current passes of each thread's forward; copies and pickles keep T alone."""

    def __init__(self, timesteps: int) -> None:
        self.timesteps = timesteps
        self._running = threading.local()

    def __reduce__(self) -> tuple[type[Clock], tuple[int]]:
        return Clock, (self.timesteps,)

    @property
    def passes(self) -> Passes:
        """Return the passes of this thread's forward; outside a forward of the whole network, temporary ones."""
        running: Passes | None = getattr(self._running, "passes", None)
        return Passes() if running is None else running

    def run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run T passes over one input; the last one's output is the mean over all steps.

        Passes before the last get copies of the input: what a network does to its input in place happens once. So a
        cache of earlier tokens holds their means over all steps, and grows by one call, not by T.
        """
        running = self._running.passes = Passes()
        try:
            for now in range(1, self.timesteps + 1):
                running.now = now
                running.calls.clear()
                inputs, named = (args, kwargs) if now == self.timesteps else _copied((args, kwargs))
                output = forward(*inputs, **named)
            return output
        finally:
            self._running.passes = None

    def fire(self, site: Site, neuron: Neuron, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signed counts of this step, and the mean output over all steps so far in the type of x."""
        passes = self.passes
        call = passes.calls.get(site, 0)
        passes.calls[site] = call + 1
        # the network may overwrite x and the output later, so the membrane shares memory with neither
        received = passes.now * x.float()
        if passes.now == 1:
            fired, emitted, potential = neuron.step(received, None)
        else:
            before, charge, sent = passes.membranes[site, call]
            fired, value, potential = neuron.step(received - before, charge)
            emitted = sent + value
        passes.membranes[site, call] = received, potential, emitted
        return fired, (emitted / passes.now).to(x.dtype)


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
