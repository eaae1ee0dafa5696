"""A neuron that is its code: the code defines what it fires, and the kernels do the same in one pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from onespike import kernels
from onespike.neurons.base import Neuron


class CodedNeuron(Neuron):
    """o = decode(fire(x)), both of its `code`: by a kernel where one fits, bit for bit, else as they are defined."""

    coded = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plans: dict[Any, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}  # they point to this neuron's tensors

    def fused(self, x: Tensor, *, decoded: bool) -> Tensor | None:
        """Return `forward(x)` if decoded, else `counts(x)`, bit for bit in one pass; None if no kernel fits."""
        return kernels.fire(x, self.code(), self._plans, decoded=decoded)

    def fast(self, x: Tensor) -> Tensor | None:
        """Return `forward(x)` by the kernel, without its counts; None if no kernel fits."""
        return self.fused(x, decoded=True)

    def counts(self, x: Tensor) -> Tensor:
        """Return signed spike counts as float32; NaN stays NaN."""
        fused = self.fused(x, decoded=False)
        return self.code().fire(x) if fused is None else fused

    def mirrored_counts(self, x: Tensor) -> Tensor:
        """Return the counts mirrored at the center."""
        code = self.code()
        y = code.coordinate(x)
        return code.fire_coordinate(y) - code.fire_coordinate(-y)
