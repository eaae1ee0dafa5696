"""SpikingBrain's spike coding as a neuron: a baseline whose step is a part of each token's own mean magnitude."""

from __future__ import annotations

from typing import Any

import torch

from onespike.neurons.base import neuron
from onespike.neurons.scale_and_fire import ScaleFire


@neuron("mean")
class MeanFire(ScaleFire):
    """o = V·clip(round(x/V), −N, N), V = λ·θ·mean|x| along the last axis: W8ASpike with θ = 1 and λ = 1/k.

    The count goes out as signed binary digits, the column `binary`. V is no power of two, so that every row costs a
    multiplication, and no kernel and no format has it.

    >>> cell = MeanFire(1.0, 1.0, levels=(1, 2, 3))
    >>> cell.spikes(torch.tensor([[2.0, -2.0], [8.0, 0.0]])).tolist()
    [[1, -1], [2, 0]]
    """

    shifts, affine = False, False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, typical=torch.ones(()), **kwargs)
