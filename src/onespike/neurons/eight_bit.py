"""The edges of a network as 8-bit integers: pixels, and what the output layer receives, as plain int8 has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onespike.neurons.scale_and_fire import ScaleFire

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
