"""Dead work: products whose result cannot reach the output, such as the last block of all tokens but one.

A ratio that counts them as the original's work flatters the spiking network. They are found by gradient: theirs is zero.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from onespike.conversion.network import is_converted
from onespike.energy.analog_functions import spelled
from onespike.errors import UsageError
from onespike.runtime.batches import call, count, logits, take, to
from onespike.runtime.forward import check_network, device_of, evaluating, in_memory
from onespike.sites import Operand, Visitor, visiting
from onespike.sites.rules import is_leaf

INPUTS = 2  # the number of inputs to run: dead work does not depend on them


def _average(
    x: Tensor, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    return getattr(F, f"avg_pool{x.dim() - 2}d")(x, kernel, stride or kernel, padding, ceil_mode)


FLAT = "relu relu6 leaky_relu elu selu celu gelu silu mish hardtanh hardswish hardsigmoid sigmoid tanh"
OPEN: dict[Callable[..., Any], Callable[..., Any]] = {
    # nowhere flat, and not larger than its input
    **dict.fromkeys(spelled(FLAT), lambda x, *_, **__: 0.5 * (x + F.softplus(x))),
    **dict.fromkeys((F.max_pool1d, F.max_pool2d, F.max_pool3d), _average),
    **dict.fromkeys(
        (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
        lambda x, size, **_: getattr(F, f"adaptive_avg_pool{x.dim() - 2}d")(x, size),
    ),
}
"""Functions that block some values, and their stand-ins: a path that is blocked now is not dead."""


class _Products(TorchFunctionMode, Visitor):
    """Collect the result of every product, and its MACs, taken from the visit to its operands."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.macs = "", 0
        self.results: list[tuple[str, int, Tensor]] = []

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        self.product, self.macs = operand.site.product, operand.synapses.macs
        return x if x.requires_grad or not x.is_floating_point() else x.detach().requires_grad_()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = OPEN.get(function, function)(*args, **(kwargs or {}))
        if is_leaf(function) and isinstance(result, Tensor) and result.requires_grad:
            self.results.append((self.product, self.macs, result))
            return result.clone()  # later code may change it in place
        return result


def dead_work(network: nn.Module, batch: Any) -> dict[str, float]:
    """Return the dead share of the original network's MACs by product; products that all reach the output are left out.

    Its output must be a tensor (or have one as `logits`): a network that selects among its results by value, as
    detectors do, has no work that is always dead. The first inputs of the batch are used.

    >>> class First(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
    ...     def forward(self, x):
    ...         return self.b(self.a(x))[:, 0]
    >>> dead_work(First(), torch.randn(2, 5, 3))
    {'a:linear0': 0.48, 'b:linear0': 0.32}
    """
    check_network("dead work", network)
    if is_converted(network):
        raise UsageError("dead work is that of the original network. Give that one.")
    if not in_memory(network) or any(hasattr(module, "_hf_hook") for module in network.modules()):
        raise UsageError("dead work is known for networks on one device. Leave it out for this one.")
    seen, batch = _Products(), to(take(batch, slice(0, INPUTS)), device_of(network))
    with evaluating(network), torch.inference_mode(False), torch.enable_grad():
        batch = tree_map_only(Tensor, Tensor.clone, batch)  # it may have been made without gradients
        with seen, visiting(network, seen):
            output = logits(call(network, batch))
    if not isinstance(output, Tensor) or not output.requires_grad:
        raise UsageError("dead work is known where the output is a tensor. Leave it out for this one.")
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    gradients = torch.autograd.grad(output, [value for *_, value in seen.results], noise, allow_unused=True)
    whole, dead = sum(macs for _, macs, _ in seen.results), dict[str, float]()
    for (product, macs, _), gradient in zip(seen.results, gradients, strict=True):
        share, inputs = 1.0, count(batch)
        if gradient is not None:  # the share of elements without one for any input
            rows = gradient.reshape(inputs, -1) if len(gradient) % inputs == 0 else gradient[None]
            share = float((rows == 0).all(0).double().mean())
        if share:
            dead[product] = dead.get(product, 0.0) + share * macs / whole
    return dead
