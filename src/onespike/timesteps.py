"""More than one timestep: T forwards on running means, with the membranes that neurons keep between them.

At pass t a neuron sees the mean of its input over t steps, x̄_t. The current of this step alone is
x(t) = t·x̄_t − (t−1)·x̄_{t−1}; the neuron integrates it, fires, and passes on the mean of all that it has fired.
Whatever stands between two neurons thus acts on means, which is expectation compensation without a rule for each
function, and for a linear map is rate coding itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from onespike.neurons import Neuron


@dataclass
class Membrane:
    """What one neuron keeps of the passes so far: the sums of its currents and of its output, and its potential."""

    received: Tensor
    potential: Tensor
    emitted: Tensor


class Clock:
    """The passes of one forward: which one is running, and every neuron's membrane.

    A module that runs several times in one pass has a membrane for each of its calls.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.now = 1
        self.membranes: dict[tuple[str, str, int], Membrane] = {}
        self.calls: dict[tuple[str, str], int] = {}
        self.mirrors: dict[Neuron, Neuron] = {}

    def run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """T passes over one input; the last one's output is the mean over all steps."""
        try:
            for now in range(1, self.steps + 1):
                self.now = now
                self.calls.clear()
                output = forward(*args, **kwargs)
            return output
        finally:
            self.now = 1
            for kept in (self.membranes, self.calls, self.mirrors):
                kept.clear()

    def fire(self, owner: str, key: str, neuron: Neuron, x: Tensor) -> tuple[Tensor, Tensor]:
        """The signed counts of this step, and the mean output over all steps so far in the type of x."""
        call = self.calls.get((owner, key), 0)
        self.calls[owner, key] = call + 1
        place = (owner, key, call)
        if self.now == 1:
            fired, value, potential = neuron.step(x.float(), None)
            self.membranes[place] = Membrane(x.float(), potential, value)
            return fired, value.to(x.dtype)
        kept, neuron = self.membranes[place], self._mirrored(neuron)
        received = self.now * x.float()
        fired, value, kept.potential = neuron.step(received - kept.received, kept.potential)
        kept.received, kept.emitted = received, kept.emitted + value
        return fired, (kept.emitted / self.now).to(x.dtype)

    def _mirrored(self, neuron: Neuron) -> Neuron:
        """From the second step a current can be negative even where the mean is not."""
        if neuron not in self.mirrors:
            self.mirrors[neuron] = neuron.mirrored()
        return self.mirrors[neuron]
