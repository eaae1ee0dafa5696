"""What a network computes beside its products: norms, activation functions, element-wise products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

FUNCTION_MACS: dict[Callable[..., Any], tuple[str, int]] = {
    F.layer_norm: ("norm", 2), F.rms_norm: ("norm", 2), F.group_norm: ("norm", 2),
    F.instance_norm: ("norm", 2), F.batch_norm: ("norm", 1),
    F.gelu: ("activation", 1), F.silu: ("activation", 1), F.mish: ("activation", 1),
    F.elu: ("activation", 1), F.softplus: ("activation", 1),
    torch.sigmoid: ("activation", 1), F.sigmoid: ("activation", 1), Tensor.sigmoid: ("activation", 1),
    torch.tanh: ("activation", 1), F.tanh: ("activation", 1), Tensor.tanh: ("activation", 1),
    F.hardswish: ("activation", 1),
}  # fmt: skip
"""MACs that an output element of an analog function is charged with; softmax is charged 2 at its site."""
MULTIPLICATIONS = frozenset(
    {torch.mul, torch.multiply, Tensor.mul, Tensor.mul_, Tensor.multiply, Tensor.multiply_,
     torch.addcmul, Tensor.addcmul, Tensor.addcmul_}
)  # fmt: skip
"""Element by element: a gate, a layer scale. One of their factors may be a number, and is then no product of two."""
PRODUCT = "element-wise product"


def _multiplies_two(args: tuple[Any, ...]) -> bool:
    factors = [x for x in args if isinstance(x, Tensor) and x.is_floating_point() and x.dim()]
    return len(factors) >= 2


class AnalogFunctions(TorchFunctionMode):
    """Within this context MACs of analog functions are added up by their kind."""

    def __init__(self, macs: dict[str, int]) -> None:
        super().__init__()
        self.macs = macs

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in FUNCTION_MACS:
            name, macs = FUNCTION_MACS[function]
            self.macs[name] = self.macs.get(name, 0) + macs * result.numel()
        elif function in MULTIPLICATIONS and _multiplies_two(args[-2:]):
            self.macs[PRODUCT] = self.macs.get(PRODUCT, 0) + result.numel()
        return result
