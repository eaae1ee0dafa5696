"""Which products a network really runs, seen below torch's functions, and which modules run them."""

from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakTensorKeyDictionary

from onespike.sites.rules import PRODUCTS

_SAMPLES = "samples at positions that the network computes"
_GRIDS = "grid_sampler_2d grid_sampler_3d cudnn_grid_sampler torchvision.roi_align torchvision.ps_roi_align"
ANALOG = {
    **dict.fromkeys(_GRIDS.split(), _SAMPLES),
    "torchvision.deform_conv2d": f"{_SAMPLES}, and weighs the samples in the same kernel",
    "weighted_sum": "sums up products taken element by element",
}
"""Products without a synapse that a spike could drive → why they stay analog; they are listed, not refused."""

HARMLESS_NAMESPACES = frozenset({"aten", "prim", "prims", "profiler", "torchvision", "_c10d_functional"})


class Owners:
    """A stack of the modules whose forwards are running, each with its call count per kind of operand."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(m): name for name, m in reversed(list(model.named_modules()))}
        # below them the network's surroundings; a name, and how often it has used each kind of operand
        self.stack: list[tuple[str, dict[tuple[str, str], int]]] = [("", {})]

    @property
    def current(self) -> str:
        return self.stack[-1][0]

    @contextmanager
    def following(self) -> Iterator[None]:
        here = get_ident()  # the hooks see all threads; one that prepares images also calls modules

        def enter(module: nn.Module, args: Any) -> None:
            if get_ident() == here:
                self.stack.append((self.names.get(id(module), self.current), {}))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if get_ident() == here:
                self.stack.pop()

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            del self.stack[1:]
            for handle in handles:
                handle.remove()


class Operations(TorchDispatchMode):
    """Count the MACs of products outside every rule, by module and operation.

    A product of two tensors that is summed next is a weighted sum, which is a matrix product. Nothing is
    added while `counting()` is false.
    """

    def __init__(
        self, owners: Owners, uncovered: Counter[tuple[str, str]], counting: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners, self.uncovered, self.counting, self.in_rule = owners, uncovered, counting, False
        self.factors: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()

    @contextmanager
    def rule(self) -> Iterator[None]:
        """Mark the block as the work of a rule: its products are covered and need no further look."""
        before, self.in_rule = self.in_rule, True
        try:
            yield
        finally:
            self.in_rule = before

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.in_rule:
            return function(*args, **kwargs)
        name, namespace = function._overloadpacket.__name__, function.namespace
        if namespace == "aten" and _is_composite(function):  # inference mode passes these on whole
            with self:
                decomposed = function.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        result = function(*args, **kwargs)
        operation = name if namespace == "aten" else f"{namespace}.{name}"
        if operation in ANALOG:
            self._add(operation, _sampling_macs(name, args, result))
        elif name == "mul" and namespace == "aten":
            factors = [x for x in args if isinstance(x, Tensor) and x.is_floating_point() and x.dim()]
            if len(factors) == 2 and factors[0] is not factors[1]:  # no scaling, and no square
                self.factors[result] = result.numel()
        elif name == "sum" and namespace == "aten":
            self._add("weighted_sum", self.factors.get(args[0], 0))
        elif name in PRODUCTS or namespace not in HARMLESS_NAMESPACES:
            self._add(operation, _macs(function, args, kwargs, result), unknown=True)
        return result

    def _add(self, operation: str, macs: int, unknown: bool = False) -> None:
        if (macs or unknown) and self.counting():
            self.uncovered[self.owners.current, operation] += macs


def _sampling_macs(name: str, args: Any, result: Any) -> int:
    """Return the MACs of interpolation, per corner, sample and channel: 4 in a plane, 8 in space, 16 if bicubic."""
    if "grid_sampler" in name:
        corners = 8 if name == "grid_sampler_3d" else 4
        mode = 0 if name == "cudnn_grid_sampler" else args[2]  # linear, nearest (which copies), cubic
        return int(result.numel()) * (corners, 0, 16)[mode]
    if name == "deform_conv2d":
        weight = args[1]
        samples = result.numel() // len(weight) * weight[0, 0].numel()
        return int(result.numel() * weight[0].numel() + 4 * samples * args[0].shape[1])
    pooled = result[0] if isinstance(result, tuple) else result  # ps_roi_align also returns its channels
    rois, scale, height, width, ratio = args[1:6]
    # a bin is the mean of ratio × ratio samples or, without a ratio, of about one per pixel
    sides = (rois[:, 3:5] - rois[:, 1:3]) * scale
    per_pixel = (sides / sides.new_tensor([width, height])).ceil()
    samples = per_pixel if ratio <= 0 else torch.full_like(sides, ratio)
    return int(4 * samples.clamp_min(1).prod(-1).sum()) * int(pooled.shape[1:].numel())


@cache
def _is_composite(function: Any) -> bool:
    return bool(function.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd))


def _macs(function: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the MACs of an operation without a rule; 0 where no formula is known."""
    name = function._overloadpacket.__name__
    if "_scaled_dot_product" in name:
        query, key, value = args[:3]
        return int(query.numel() * key.shape[-2] + query.shape[:-1].numel() * key.shape[-2] * value.shape[-1])
    if name == "mkldnn_rnn_layer":  # steps × batch × features, then the two weights
        return int(args[0].shape[:2].numel() * (args[1].numel() + args[2].numel()))
    if name == "_trilinear" and args[1].dim() == 3:  # torch.bilinear: outputs × left × right features
        return int(result.numel() * args[1][0].numel())
    formula = flop_registry.get(function._overloadpacket)
    if formula is None:
        return int(args[0].numel()) if name in {"mv", "dot", "vdot"} else 0
    return int(formula(*args, **kwargs, out_val=result)) // 2
