"""Rules: which operands of a torch function are activations.

A rule writes a function as visits to its operands, followed by the product. It knows neither neurons nor
kernels. Attention has a separate file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverloadPacket

from onespike.errors import UsageError
from onespike.sites import fan_out
from onespike.sites.fan_out import Synapses
from onespike.sites.site import Product

if TYPE_CHECKING:
    from onespike.sites.visitor import Sites

Rule = TypeVar("Rule", bound=Callable[..., Any])

RULES: dict[Callable[..., Any], Callable[..., Any]] = {}  # torch function → its rule
LEAVES: set[Callable[..., Any]] = {F.linear, torch.matmul, torch.einsum}
"""The functions that rules end in: each call of one is one product."""
PRODUCTS = frozenset([
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "matmul", "bilinear",
    "_trilinear", "einsum", "tensordot", "convolution", "_convolution", "convolution_overrideable",
    "mkldnn_linear", "mkldnn_convolution", "mkldnn_rnn_layer", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
    "_flash_attention_forward", "_efficient_attention_forward", "_addmm_activation", "_int_mm", "_scaled_mm",
    "_grouped_mm", "_cudnn_rnn", "miopen_rnn", "_cdist_forward",
])  # fmt: skip
"""Operations below torch's functions that are products: one that runs outside every rule is reported."""


def synaptic(*functions: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Register how torch functions are written as visits to their activation operands.

    A rule receives `visit` and the function's arguments. `visit(product, role)` returns what the product
    receives in place of that operand; `visit(product, role, rows)` does so for some of its rows, if `visit.blockwise`.
    """

    def register(rule: Rule) -> Rule:
        for function in functions:
            if function in RULES:
                raise UsageError(f"{function} has a rule already. Remove it from RULES first to replace it.")
            RULES[function] = rule
        return rule

    return register


def _weight(visit: Sites, product: Product) -> Tensor:
    """Visit a weight: a computed one (standardized, generated) may be an activation, so it is a separate site."""
    weight = product.operands["weight"]
    return weight if isinstance(weight, nn.Parameter) else visit(product, "weight")


@synaptic(F.linear)
def _linear(visit: Sites, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    operands, indices = {"input": input, "weight": weight}, "...k,jk"

    def synapses(role: str) -> Synapses:
        return fan_out.einsum(indices, (input, weight), operands[role])

    product = Product("linear", operands, synapses, F.linear, indices=indices)
    whole = visit.multiply(product, bias)
    return F.linear(visit(product, "input"), _weight(visit, product), bias) if whole is None else whole


def _convolution(function: Callable[..., Tensor], names: tuple[str, ...], transposed: bool = False) -> None:
    @synaptic(function)
    def rule(
        visit: Sites, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        single = input.dim() == weight.dim() - 1  # torch also takes one image; visitors see a batch of one
        batch = input.unsqueeze(0) if single else input

        def synapses(role: str) -> Synapses:
            of_input = fan_out.convolution(function, batch, weight, transposed, **settings)
            # a computed weight may spike: each meets every output position, padding included
            return of_input if role == "input" else of_input._replace(fan_out=of_input.macs // weight.numel())

        settings = {**dict(zip(names, args, strict=False)), **kwargs}
        multiply, groups = partial(function, bias=None, **settings), settings.get("groups", 1)
        product = Product("conv", {"input": batch, "weight": weight}, synapses, multiply, groups)
        whole = visit.multiply(product, bias)
        if whole is not None:
            return whole.squeeze(0) if single else whole
        x = visit(product, "input")
        return function(x.squeeze(0) if single else x, _weight(visit, product), bias, *args, **kwargs)

    LEAVES.add(function)


for _function in (F.conv1d, F.conv2d, F.conv3d):
    _convolution(_function, ("stride", "padding", "dilation", "groups"))
for _transposed in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d):
    _convolution(_transposed, ("stride", "padding", "output_padding", "groups", "dilation"), transposed=True)


def matrix_product(
    lhs: Tensor, rhs: Tensor, visible: Tensor | None = None, weighted: bool = False
) -> Product:
    """Return the product lhs @ rhs; `visible` says which results are wanted or, if `weighted`, which of lhs are not zero."""
    operands = {"lhs": lhs, "rhs": rhs}

    def synapses(role: str) -> Synapses:
        if visible is None:
            return fan_out.einsum(indices, (lhs, rhs), operands[role])
        return fan_out.masked(lhs, rhs, operands[role], visible, weighted)

    indices = ("...ik" if lhs.dim() > 1 else "k") + "," + ("...kj" if rhs.dim() > 1 else "k")
    return Product("matmul", operands, synapses, torch.matmul, 1, visible, weighted, indices)


def visited(
    visit: Sites, lhs: Tensor, rhs: Tensor, visible: Tensor | None = None, weighted: bool = False
) -> tuple[Tensor, Tensor]:
    """Return both operands of a matrix product, as the product receives them."""
    product = matrix_product(lhs, rhs, visible, weighted)
    return visit(product, "lhs"), visit(product, "rhs")


@synaptic(
    torch.matmul, torch.bmm, torch.mm, torch.mv, torch.dot, torch.linalg.matmul,
    Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.mv, Tensor.dot, Tensor.__matmul__,
)  # fmt: skip
def _matmul(visit: Sites, input: Tensor, other: Tensor) -> Tensor:
    return torch.matmul(*visited(visit, input, other))


RULES[Tensor.__rmatmul__] = lambda visit, input, other: _matmul(visit, other, input)


@synaptic(torch.addmm, torch.baddbmm, torch.addmv, Tensor.addmm, Tensor.baddbmm, Tensor.addmv)
def _addmm(
    visit: Sites, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = _matmul(visit, batch1, batch2)
    product = product if alpha == 1 else alpha * product
    # torch ignores the summand at beta = 0, even if it holds NaN
    return product if beta == 0 else (input if beta == 1 else beta * input) + product


def _grouped(
    function: Any, visit: Sites, input: Tensor, other: Tensor, offs: Any = None, **kwargs: Any
) -> Tensor:
    """Multiply the groups of a mixture of experts: each expert has its group of rows."""
    operands = {"lhs": input, "rhs": other}
    multiply: Callable[..., Tensor] = partial(function, offs=offs)

    def synapses(role: str) -> Synapses:
        return fan_out.grouped(input, other, offs, operands[role])

    product = Product("matmul", operands, synapses, multiply)
    return multiply(visit(product, "lhs"), visit(product, "rhs"), **kwargs)


RULES[torch._grouped_mm] = partial(_grouped, torch._grouped_mm)
LEAVES.add(torch._grouped_mm)

GROUPED = "transformers::grouped_mm_fallback"
"""What transformers calls where `torch._grouped_mm` cannot be compiled; known once it is imported."""


def _is_grouped(function: Any) -> bool:
    return isinstance(function, OpOverloadPacket) and function._qualified_op_name == GROUPED


def rule_of(function: Any) -> Callable[..., Any] | None:
    """Return the rule of a torch function, or of an operator that another library registered."""
    return partial(_grouped, function) if _is_grouped(function) else RULES.get(function)


def is_leaf(function: Any) -> bool:
    """Return whether a call of this function within a rule is a product."""
    return function in LEAVES or _is_grouped(function)


@synaptic(torch.einsum)
def _einsum(visit: Sites, equation: Any, *operands: Any) -> Tensor:
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) < 2:
        return torch.einsum(equation, *operands)

    def synapses(role: str) -> Synapses:
        return fan_out.einsum(equation, operands, operands[int(role)])

    roles = {str(i): x for i, x in enumerate(operands)}
    indices = equation.split("->")[0]
    product = Product("einsum", roles, synapses, partial(torch.einsum, equation), indices=indices)
    return torch.einsum(equation, *[visit(product, role) for role in roles])


@synaptic(F.relu, torch.relu, Tensor.relu)
def _relu(visit: Sites, input: Tensor, inplace: bool = False) -> Tensor:
    """Visit a neuron's place under `placement="activation"`; otherwise the visit returns its input."""
    value = visit(Product("relu", {"input": input}, lambda role: Synapses(0, 0), F.relu), "input")
    if value is input:
        return F.relu(input, inplace)
    return input.copy_(F.relu(value)) if inplace else F.relu(value)


synaptic(torch.relu_, Tensor.relu_)(partial(_relu, inplace=True))
