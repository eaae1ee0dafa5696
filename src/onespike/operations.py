"""Which products a network really runs, seen below torch's functions, and whose forward runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

PRODUCTS = frozenset(
    [
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "linear",
        "matmul",
        "bilinear",
        "_trilinear",
        "einsum",
        "tensordot",
        "convolution",
        "_convolution",
        "convolution_overrideable",
        "mkldnn_linear",
        "mkldnn_convolution",
        "mkldnn_rnn_layer",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "_native_multi_head_attention",
        "_transformer_encoder_layer_fwd",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
        "_flash_attention_forward",
        "_efficient_attention_forward",
        "_addmm_activation",
        "_int_mm",
        "_scaled_mm",
        "_grouped_mm",
        "_cudnn_rnn",
        "miopen_rnn",
        "_cdist_forward",
        "deform_conv2d",
    ]
)
"""Operations (aten's, and one of torchvision's) that multiply activations with weights or with each other."""

HARMLESS_NAMESPACES = frozenset({"aten", "prim", "prims", "profiler", "torchvision", "_c10d_functional"})


class Owners:
    """Whose forward is running: a stack of module names, each with its number of calls of every slot."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(m): name for name, m in reversed(list(model.named_modules()))}
        self.stack: list[tuple[str, dict[str, int]]] = []

    @property
    def current(self) -> str:
        return self.stack[-1][0] if self.stack else ""

    @contextmanager
    def following(self) -> Iterator[None]:
        def enter(module: nn.Module, args: Any) -> None:
            self.stack.append((self.names.get(id(module), self.current), {}))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.stack.pop()

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            self.stack.clear()
            for handle in handles:
                handle.remove()


class Operations(TorchDispatchMode):
    """Counts the MACs of products for which `covered()` does not hold, by module and operation."""

    def __init__(
        self, owners: Owners, covered: Callable[[], bool], uncovered: dict[tuple[str, str], int]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners, self.covered, self.uncovered = owners, covered, uncovered

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, namespace = function._overloadpacket.__name__, function.namespace
        if namespace == "aten":  # inference mode hands composite operations down whole
            with self:
                decomposed = function.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        if name not in PRODUCTS and namespace in HARMLESS_NAMESPACES:
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if not self.covered():
            key = (self.owners.current, name if namespace == "aten" else f"{namespace}.{name}")
            self.uncovered[key] = self.uncovered.get(key, 0) + _macs(function, args, kwargs, result)
        return result


def _macs(function: Any, args: Any, kwargs: Any, result: Any) -> int:
    """The size of an operation without a rule; 0 where nobody knows a formula."""
    name = function._overloadpacket.__name__
    if "_scaled_dot_product" in name:
        query, key, value = args[:3]
        return int(query.numel() * key.shape[-2] + query.shape[:-1].numel() * key.shape[-2] * value.shape[-1])
    if name == "mkldnn_rnn_layer":  # steps × batch × features, then the two weights
        return int(args[0].shape[:2].numel() * (args[1].numel() + args[2].numel()))
    if name == "_trilinear" and args[1].dim() == 3:  # torch.bilinear: outputs × left × right features
        return int(result.numel() * args[1][0].numel())
    if name == "deform_conv2d":
        return int(result.numel() * args[1][0].numel())
    formula = flop_registry.get(function._overloadpacket)
    if formula is None:
        return int(args[0].numel()) if name in {"mv", "dot", "vdot"} else 0
    return int(formula(*args, **kwargs, out_val=result)) // 2
