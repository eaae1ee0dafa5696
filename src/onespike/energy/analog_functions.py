"""What a network computes besides its products: norms, activation functions, element-wise products.

On integers a function whose result only neurons read is in their thresholds (`deploy/exports/comparators.py` puts it there);
what anything else reads is a value in fixed point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from onespike.energy.ledger import Ledger

CHARGED = (
    ("norm", 2, "layer_norm rms_norm group_norm instance_norm normalize local_response_norm"),
    ("norm", 1, "batch_norm"),
    ("activation", 1, "gelu silu mish elu selu celu softplus softsign logsigmoid sigmoid tanh hardswish hardsigmoid "
     "leaky_relu rrelu prelu tanhshrink exp exp2 expm1 log log2 log1p erf sqrt rsqrt reciprocal pow square"),
    ("activation", 2, "glu"),
    ("softmax", 2, "softmax log_softmax softmin gumbel_softmax"),
)  # fmt: skip
"""(kind, MACs charged per output element, functions); the softmax of fused attention is charged 2 at its site."""


def spelled(names: str) -> set[Callable[..., Any]]:
    """Return the functions of these names in torch, its tensors and `F`, in place and as operators."""
    forms = [form.format(name) for name in names.split() for form in ("{}", "{}_", "__{}__", "__r{}__")]
    return {getattr(owner, name) for owner in (torch, Tensor, F) for name in forms if hasattr(owner, name)}


FUNCTION_MACS: dict[Callable[..., Any], tuple[str, int]] = {
    function: (kind, macs) for kind, macs, names in CHARGED for function in spelled(names)
}
PRODUCTS = spelled("mul multiply div divide true_divide addcmul addcdiv")
"""Element-wise: a gate, a layer scale. If one factor is a number, it is not a product of two."""
PRODUCT = "element-wise product"

COMPARED = spelled(
    "relu relu6 hardtanh clamp clip gelu silu mish elu selu celu softplus softsign sigmoid tanh hardswish hardsigmoid "
    "leaky_relu exp log sqrt erf batch_norm"
)
"""Functions of single elements that thresholds take in, where only neurons read the result."""
MOVES = spelled(
    "view reshape permute transpose t movedim flatten unflatten squeeze unsqueeze select narrow unbind split chunk roll "
    "contiguous to float type_as getitem get swapaxes pixel_shuffle max_pool1d max_pool2d max_pool3d dropout"
)
"""What moves elements, or takes the largest of them."""


@dataclass
class Call:
    """A function whose result only neurons have read so far, so that it needs no operation of its own."""

    kind: str = ""
    macs: int = 0
    sums: int = 0  # of products, which it would bring to fixed point
    before: Call | None = None
    # whether it ends with a factor, which a neuron that scales takes in, as a softmax does
    scales: bool = False
    needed: bool = False


class AnalogFunctions(TorchFunctionMode):
    """Write into a ledger the MACs of analog functions, the part that thresholds take in, and the values that are left."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self._calls: Any = WeakIdKeyDictionary()

    def need(self, x: Tensor, scaled: bool = False) -> None:
        """Note that the value itself of a tensor is read, not only how it compares; a neuron may read it `scaled`."""
        call = self._calls.get(x)
        if call is None:
            if not scaled and not isinstance(x, nn.Parameter):
                self.ledger.values += x.numel()
                self._calls[x] = Call(needed=True)
        elif not (scaled and call.scales):
            self._count(call)

    def _count(self, call: Call | None) -> None:
        while call is not None and not call.needed:
            call.needed = True
            self.ledger.folded[call.kind] -= call.macs
            self.ledger.values += call.sums
            call = call.before

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        kind, macs = FUNCTION_MACS.get(function, ("", 0))
        if function in PRODUCTS:
            factors = [x for x in args[-2:] if isinstance(x, Tensor) and x.is_floating_point() and x.dim()]
            kind, macs = (PRODUCT, 1) if len(factors) == 2 else ("", 0)
        if kind:
            macs *= result.numel()
            self.ledger.functions[kind] += macs
        self._follow(function, args, result, kind, macs)
        return result

    def _follow(self, function: Any, args: Any, result: Any, kind: str, macs: int) -> None:
        """Note which call each result comes from, and which values this one reads."""
        inputs = _values(args)
        results = [x for x in _values(result) if all(x is not y for y in inputs)]
        if not inputs or not results:
            return
        call = self._calls.get(inputs[0])
        if function in MOVES or getattr(function, "__name__", "") == "__get__":
            made = call
        elif function in COMPARED:
            made = Call(kind, macs, inputs[0].numel() if call is None else 0, call)
        else:
            for x in inputs:
                self.need(x)
            # of a softmax the exponentials are left, and thresholds take in the division
            made = Call(kind, macs // 2, scales=True) if kind == "softmax" else Call(needed=True)
        if made is not call and made is not None and not made.needed:
            self.ledger.folded[made.kind] += made.macs
        for x in results if made is not None else ():
            self._calls[x] = made


def _values(arguments: Any) -> list[Tensor]:
    return [x for x in tree_leaves(arguments) if isinstance(x, Tensor) and x.is_floating_point()]
