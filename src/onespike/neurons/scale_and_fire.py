"""The paper's scale-and-fire neuron: a whole activation in one step, as one integer spike."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from onespike import kernels
from onespike.errors import UsageError
from onespike.neurons.base import Neuron, neuron
from onespike.neurons.fire_functions import fire_function, fused_form
from onespike.neurons.signs import as_side, magnitude, with_sign


def scale_fire(
    x: Tensor,
    positive: Tensor | float,
    negative: Tensor | float = 0.0,
    levels: tuple[int, ...] = (1,),
    rounding: str = "paper",
    scale: Tensor | float = 1.0,
) -> Tensor:
    """Signed float32 counts ±G(|x|/(λθ±) + ½), the spikes of eqs. 8–14; the value is λθ± times the count.

    For any type of x, the coordinate is computed in float32 and by true division. A threshold that
    is the number 0 switches its side off.

    >>> import torch
    >>> x = torch.tensor([-0.9, -0.2, 0.12, 0.13, 0.9, 9.0])
    >>> scale_fire(x, 1.0, 1.0, levels=(1, 2, 3, 5, 9), scale=0.25)
    tensor([-3., -1.,  0.,  1.,  3.,  9.])
    """
    fire = fire_function(levels, rounding)
    up, down = (
        None if side is None else scale * side.to(x.device) for side in (as_side(positive), as_side(negative))
    )
    if up is None and down is None:
        raise UsageError("scale_fire: both thresholds are 0. Give one above 0.")
    return with_sign(x, fire(magnitude(x, up, down) + 0.5), up, down)


@neuron("sfn")
class ScaleFire(Neuron):
    """o = λθ±·G(x), G the largest level y_i with |x| ≥ λθ±(y_i − ½), signed like x (eqs. 8–14).

    >>> import torch
    >>> cell = ScaleFire(0.5, 0.25, levels=(1, 2, 3, 5, 9))
    >>> cell
    ScaleFire(sfn, θ+=0.5, θ-=0.25, levels=1..2+3 tail up to 9)
    >>> x = torch.tensor([-1.0, 0.2, 0.8, 3.0])
    >>> cell.spikes(x).tolist(), cell(x).tolist()
    ([-3, 0, 2, 5], [-0.75, 0.0, 1.0, 2.5])
    """

    scaled = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fire = fire_function(self.levels, self.rounding)
        self._form = fused_form(self.levels, self.rounding)

    def thresholds(self) -> tuple[Tensor, Tensor]:
        """step± = λθ±."""
        if self.scale is None:
            return self.positive, self.negative
        return self.scale.value * self.positive, self.scale.value * self.negative

    def counts(self, x: Tensor) -> Tensor:
        """±G(|x|/step± + ½)."""
        fused = self.fused(x, decoded=False)
        return self.plain_counts(x) if fused is None else fused

    def plain_counts(self, x: Tensor) -> Tensor:
        """The same counts by torch's operations."""
        up, down = self.active(self.thresholds())
        return with_sign(x, self._fire(magnitude(x, up, down) + 0.5), up, down)

    def constants(self) -> kernels.Constants:
        """λ and θ separately: the kernels multiply them."""
        steps, scale = self._buffers, self.scale  # attributes of a module take longer to find
        return kernels.Constants(
            steps["positive"] if self._on[0] else None,
            steps["negative"] if self._on[1] else None,
            None if scale is None else scale._buffers["value"],
        )

    def form(self) -> kernels.Form:
        """G in the form of the kernels."""
        return self._form
