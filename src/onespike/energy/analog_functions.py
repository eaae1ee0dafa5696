"""What a network computes besides its products: norms, activation functions, element-wise products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

CHARGED = (
    ("norm", 2, "layer_norm rms_norm group_norm instance_norm normalize local_response_norm"),
    ("norm", 1, "batch_norm"),
    ("activation", 1, "gelu silu mish elu selu celu softplus softsign logsigmoid sigmoid tanh hardswish hardsigmoid "
     "leaky_relu rrelu prelu tanhshrink exp exp2 expm1 log log2 log1p erf sqrt rsqrt reciprocal pow square"),
    ("activation", 2, "glu"),
    ("softmax", 2, "softmax log_softmax softmin gumbel_softmax"),
)  # fmt: skip
"""(kind, MACs charged per output element, functions); the softmax of fused attention is charged 2 at its site."""


def _spelled(names: str) -> set[Callable[..., Any]]:
    """Return the functions of these names in torch, its tensors and `F`, in place and as operators."""
    spelled = [form.format(name) for name in names.split() for form in ("{}", "{}_", "__{}__", "__r{}__")]
    return {getattr(owner, name) for owner in (torch, Tensor, F) for name in spelled if hasattr(owner, name)}


FUNCTION_MACS: dict[Callable[..., Any], tuple[str, int]] = {
    function: (kind, macs) for kind, macs, names in CHARGED for function in _spelled(names)
}
PRODUCTS = _spelled("mul multiply div divide true_divide addcmul addcdiv")
"""Element-wise: a gate, a layer scale. If one factor is a number, it is not a product of two."""
PRODUCT = "element-wise product"


def _multiplies_two(args: tuple[Any, ...]) -> bool:
    factors = [x for x in args if isinstance(x, Tensor) and x.is_floating_point() and x.dim()]
    return len(factors) >= 2


class AnalogFunctions(TorchFunctionMode):
    """Add up the MACs of analog functions by kind within this context."""

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
        elif function in PRODUCTS and _multiplies_two(args[-2:]):
            self.macs[PRODUCT] = self.macs.get(PRODUCT, 0) + result.numel()
        return result
