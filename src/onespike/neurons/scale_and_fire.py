"""The paper's scale-and-fire neuron: a whole activation in one step, as one integer spike.

The edges of a network in 8 bits, pixels and what the output layer receives, are one with even levels.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from onespike.errors import UsageError
from onespike.neurons.base import Neuron, neuron
from onespike.spikes import SpikeCode


@neuron("sfn")
class ScaleFire(Neuron):
    """o = offset + gain·λθ±·G((x − center)/gain), G the largest level y_i with |x| ≥ λθ±(y_i − ½), signed like x.

    Without the constants, which calibration passes add, these are eqs. 8–14 of the paper. Only G is sent as spikes.
    A product with the constant offset is constant, W·(offset + s) = W·offset + W·s, so it is a bias.
    The gain is a power of two per position, so that dividing and multiplying by it are exact shifts. With `typical`
    each row (a token) multiplies it by a power of two that depends on its magnitude (`row_gain`), not its position.

    Args:
        *args: as for `Neuron`.
        center: what is subtracted before the neuron fires; it broadcasts against the input.
        offset: what is added to the spikes' value; the center by default.
        gain: powers of two that broadcast against the input; 1 by default.
        typical: the mean |x − center| of a row whose gain is unchanged; None if magnitudes do not matter.
        **kwargs: as for `Neuron`.

    >>> cell = ScaleFire(0.5, 0.25, levels=(1, 2, 3, 5, 9))
    >>> cell
    ScaleFire(sfn, θ+=0.5, θ-=0.25, levels=1..2+3 tail up to 9)
    >>> x = torch.tensor([-1.0, 0.2, 0.8, 3.0])
    >>> cell.spikes(x).tolist(), cell(x).tolist()
    ([-3, 0, 2, 5], [-0.75, 0.0, 1.0, 2.5])
    >>> cell = ScaleFire(0.5, 0.5, levels=(1, 2, 3), center=torch.tensor(2.0), gain=torch.tensor([1.0, 4.0]))
    >>> cell.spikes(torch.tensor([3.0, 3.0])).tolist(), cell(torch.tensor([3.0, 4.0])).tolist()
    ([2, 1], [3.0, 4.0])
    """

    coded, scaled, affine = True, True, True
    shifts: ClassVar[bool] = True  # whether the gain of a row by its magnitude is a power of two

    def __init__(
        self,
        *args: Any,
        center: Tensor | None = None,
        offset: Tensor | None = None,
        gain: Tensor | None = None,
        typical: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        constants = {"center": center, "gain": gain, "typical": typical}
        constants["offset"] = center if offset is None else offset
        for name, value in constants.items():
            self.register_buffer(name, None if value is None else value.detach().to(torch.float32, copy=True))
        if typical is not None and not (typical.numel() == 1 and 0 < float(typical) < float("inf")):
            raise UsageError(f"{self.name}: the magnitude of a typical row must be a finite number above 0.")
        if gain is not None and bool((gain.frexp().mantissa != 0.5).any()):
            raise UsageError(f"{self.name}: a gain must be a power of two, so that applying it is exact.")
        self._settle_sides()

    def _settle_sides(self) -> None:
        super()._settle_sides()
        idle = {"center": 0, "offset": 0, "gain": 1}
        parts = {name: self._buffers.get(name) for name in idle}
        # whether a constant has an effect is fixed here, so that traced code does not depend on data
        self._acts = {name: x is not None and bool((x != idle[name]).any()) for name, x in parts.items()}

    def code(self) -> SpikeCode:
        """Return its buffers, as far as they have an effect."""
        # attributes of a module take longer to find
        held, acts, scale = self._buffers, self._acts, self.scale
        return SpikeCode(
            held["positive"] if self._on[0] else None,
            held["negative"] if self._on[1] else None,
            self._function,
            None if scale is None else scale._buffers["value"],
            held["center"] if acts["center"] else None,
            held["gain"] if acts["gain"] else None,
            held["offset"] if acts["offset"] else None,
            held["typical"],
            self.shifts,
        )

    def fused(self, x: Tensor, *, decoded: bool) -> Tensor | None:
        """Run the kernel, unless the input has other positions than the gains."""
        gain = self._buffers["gain"] if self._acts["gain"] else None
        if gain is not None and gain.dim() and gain.shape[0] not in (1, x.shape[-gain.dim()]):
            raise UsageError(
                f"{self.site or self.name}: its steps are set for {gain.shape[0]} positions, and this input has "
                f"{x.shape[-gain.dim()]}. Give inputs as long as those of calibration, or convert without the pass "
                "'positions'."
            )
        return super().fused(x, decoded=decoded)


UNSIGNED, SIGNED = tuple(range(1, 256)), tuple(range(1, 128))
"""The integers beside 0; −128 is left out, so that both signs reach equally far."""


def eight_bits(low: Tensor, high: Tensor, centered: bool = True) -> dict[str, Any]:
    """Return the fields of a threshold that codes values from low to high in 8 bits.

    With a range for each channel there are 256 points from low to high, so that 8-bit pixels are coded exactly, whatever their
    normalization; likewise for values that are never negative. Others take 127 points of each sign, and need no center; likewise
    all that may not be `centered`.

    >>> code = eight_bits(torch.tensor([[-2.0]]), torch.tensor([[3.1]]))
    >>> round(float(code["positive"]), 3), code["center"].tolist(), len(code["levels"])
    (0.02, [[-2.0]], 255)
    """
    levels, step, center = UNSIGNED, (high - low) / len(UNSIGNED), low if bool((low != 0).any()) else None
    negative = torch.zeros(())
    if (low.dim() == 0 or not centered) and bool((low < 0).any()):
        levels, step, center = SIGNED, torch.maximum(-low, high) / len(SIGNED), None
        negative = step.clone()
    return {"positive": step, "negative": negative, "levels": levels, "center": center, "rounding": "nearest"}


class EightBit(ScaleFire):
    """o = center + step·round((x − center)/step), an 8-bit integer times the step: a number, not a spike.

    Its product multiplies 8-bit integers and weights, and the ledger charges it as such.
    """

    name = "int8"
    scaled, dense = False, True

    def extra_repr(self) -> str:
        return f"8-bit integers: {self.reason}"

    def __init__(self, *args: Any, reason: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reason = reason
