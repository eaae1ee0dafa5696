"""Sites: the places where an activation enters a synaptic operation, and the mode that visits them.

Everything the library does to a network (observe, fire, count) is a visit to its sites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onespike import kernels, synapses
from onespike.errors import UsageError
from onespike.synapses import Synapses

Visit = Callable[..., Tensor]
Rule = TypeVar("Rule", bound=Callable[..., Any])


@dataclass(frozen=True, order=True)
class Site:
    """One operand of one product of one module; its string is the only spelling, in JSON, logs and globs.

    >>> print(Site("blocks.3.attn", "matmul1_lhs"))
    blocks.3.attn:matmul1_lhs
    >>> Site.parse("blocks.3.attn:matmul1_lhs").product
    'blocks.3.attn:matmul1'
    """

    owner: str
    key: str

    def __str__(self) -> str:
        return f"{self.owner}:{self.key}"

    @property
    def product(self) -> str:
        """The operation that this operand enters."""
        return f"{self.owner}:{self.key.rpartition('_')[0]}"

    @classmethod
    def parse(cls, text: str) -> Self:
        owner, colon, key = text.rpartition(":")
        if not colon:
            raise UsageError(
                f"{text!r} is not a site. Write OWNER:OPERAND, such as blocks.0.attn:matmul0_lhs."
            )
        return cls(owner, key)


class Rows(NamedTuple):
    """Which rows (the last axis but one) of an operand are visited, where it is never in memory as a whole."""

    start: int
    stop: int
    of: int

    def cut(self, x: Tensor) -> Tensor:
        """These rows of a tensor that broadcasts to the operand; all of it if it is the same for every row.

        >>> Rows(1, 3, 4).cut(torch.arange(4.0)[:, None]).flatten(), Rows(1, 3, 4).cut(torch.ones(1, 2)).shape
        (tensor([1., 2.]), torch.Size([1, 2]))
        """
        return x[..., self.start : self.stop, :] if x.dim() > 1 and x.shape[-2] > 1 else x


RULES: dict[Callable[..., Any], Callable[..., Any]] = {}
BLOCK = 2**22
"""Attention probabilities that exist at a time, where they need not exist all at once."""
LEAVES: set[Callable[..., Any]] = set()
"""The functions in which rules end: each call of one is one product."""


def synaptic(*functions: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Register how torch functions are rewritten as visits to their activation operands.

    A rule receives `visit(slot, x, synapses)` and the function's own arguments. The slot is `operation.role`;
    `synapses` is called only by those who count. A visitor whose attribute `by_rows` is true may also be given an
    operand in blocks of its rows, `visit(slot, x, synapses, rows)` from the first to the last.
    """

    def register(rule: Rule) -> Rule:
        for function in functions:
            if function in RULES:
                raise UsageError(f"{function} has a rule already. Remove it from RULES first to replace it.")
            RULES[function] = rule
        return rule

    return register


def _weight(visit: Visit, slot: str, weight: Tensor, count: Callable[[], Synapses]) -> Tensor:
    """A weight that is computed (standardised, generated) may be an activation: it is a site of its own."""
    return weight if isinstance(weight, nn.Parameter) else visit(slot, weight, count)


@synaptic(F.linear)
def _linear(visit: Visit, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x = visit("linear.input", input, partial(synapses.linear, input, weight))
    weight = _weight(visit, "linear.weight", weight, partial(synapses.matmul, input, weight.mT, weight))
    return F.linear(x, weight, bias)


def _convolution(function: Callable[..., Tensor], count: Callable[..., Synapses]) -> None:
    @synaptic(function)
    def rule(visit: Visit, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        counted = partial(count, input, weight, *args, **kwargs)
        x = visit("conv.input", input, counted)
        return function(x, _weight(visit, "conv.weight", weight, counted), *args, **kwargs)

    LEAVES.add(function)


for _function in (F.conv1d, F.conv2d, F.conv3d):
    _convolution(_function, synapses.convolution)
for _transposed in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d):
    _convolution(_transposed, synapses.transposed_convolution)
LEAVES |= {F.linear, torch.matmul, torch.einsum}


@synaptic(
    torch.matmul, torch.bmm, torch.mm, torch.mv, torch.dot, torch.linalg.matmul,
    Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.mv, Tensor.dot, Tensor.__matmul__,
)  # fmt: skip
def _matmul(visit: Visit, input: Tensor, other: Tensor) -> Tensor:
    return torch.matmul(*_operands(visit, input, other))


def _operands(visit: Visit, input: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    lhs = visit("matmul.lhs", input, partial(synapses.matmul, input, other, input))
    return lhs, visit("matmul.rhs", other, partial(synapses.matmul, input, other, other))


@synaptic(Tensor.__rmatmul__)
def _rmatmul(visit: Visit, input: Tensor, other: Tensor) -> Tensor:
    return _matmul(visit, other, input)


@synaptic(torch.addmm, torch.baddbmm, torch.addmv, Tensor.addmm, Tensor.baddbmm, Tensor.addmv)
def _addmm(
    visit: Visit, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = _matmul(visit, batch1, batch2)
    product = product if alpha == 1 else alpha * product
    # torch ignores the summand altogether at beta = 0, even where it holds NaN
    return product if beta == 0 else (input if beta == 1 else beta * input) + product


@synaptic(torch.einsum)
def _einsum(visit: Visit, equation: Any, *operands: Any) -> Tensor:
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) < 2:
        return torch.einsum(equation, *operands)
    return torch.einsum(
        equation,
        *[
            visit(f"einsum.{i}", x, partial(synapses.einsum, equation, operands, x))
            for i, x in enumerate(operands)
        ],
    )


@synaptic(F.scaled_dot_product_attention)
def _attention(
    visit: Visit,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention by its definition through the product rule: fused and unfused networks have the same sites.

    Probabilities must exist to be fired, but not all at once: long sequences are evaluated in blocks of query rows.
    """
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    query = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    query, key = _operands(visit, query, key.transpose(-2, -1))
    at_once = None if dropout_p else _at_once(visit, query, key, value, attn_mask, is_causal)
    if at_once is not None:
        return at_once
    blocks = list(_blocks(visit, query, key, value))
    if len(blocks) < 2:
        weights = _probabilities(torch.matmul(query, key), attn_mask, is_causal)
        return _matmul(visit, F.dropout(weights, dropout_p), value)
    result = query.new_empty(0)
    for rows in blocks:
        mask = None if attn_mask is None else rows.cut(attn_mask)
        weights = _probabilities(torch.matmul(rows.cut(query), key), mask, is_causal, rows.start)
        weights = F.dropout(weights, dropout_p)
        lhs = visit("matmul.lhs", weights, partial(synapses.matmul, weights, value, weights), rows)
        if not rows.start:
            value = _visit_value(visit, query, key, value)
        block = torch.matmul(lhs, value)
        if not rows.start:
            result = block.new_empty(*block.shape[:-2], rows.of, block.shape[-1])
        result[..., rows.start : rows.stop, :] = block
        del weights, lhs, block  # so that the next block takes their place
    return result


def _at_once(
    visit: Visit, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
) -> Tensor | None:
    """Attention in one call, where nobody has to see the probabilities but a neuron that the kernel knows."""
    alone = getattr(visit, "alone", None)
    neuron = alone("matmul.lhs") if alone and kernels.can_attend(query, key, value) else None
    step, form = (None, None) if neuron is None else (neuron.row_steps(), neuron.form())
    if step is None or form is None:
        return None
    numbered(visit.calls, "matmul.lhs")  # type: ignore[attr-defined]
    if is_causal:
        mask = _causal(query, key)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, float("-inf"))
    value = _visit_value(visit, query, key, value)
    return kernels.attend(query, key, value, mask, step[..., 0] if step.dim() else step, form)


def _visit_value(visit: Visit, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The values of attention, where the probabilities that they meet are not there as a whole."""
    weights = value.new_empty(()).expand(*value.shape[:-2], query.shape[-2], key.shape[-1])  # a shape
    return visit("matmul.rhs", value, partial(synapses.matmul, weights, value, value))


def _causal(rows: Tensor, keys: Tensor, start: int = 0) -> Tensor:
    """Row i, which is row `start` + i of the whole, sees the keys up to itself."""
    shape = rows.shape[-2], keys.shape[-1]
    return torch.ones(shape, dtype=torch.bool, device=rows.device).tril(start)


def _probabilities(scores: Tensor, mask: Tensor | None, is_causal: bool, start: int = 0) -> Tensor:
    """The softmax of masked scores, of which the first row is row `start` of the whole."""
    if is_causal:
        mask = _causal(scores, scores, start)
    if mask is None:
        return torch.softmax(scores, -1)
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    # A row that is masked altogether (left padding) gives zeros, as the fused kernel does, not NaN.
    weights: Tensor = torch.ops.aten._safe_softmax(scores, -1)
    return weights


def _blocks(visit: Visit, query: Tensor, key: Tensor, value: Tensor) -> Iterator[Rows]:
    """The rows of attention that are evaluated together; none where all of them are.

    A compiler would unroll the blocks, and for gradients every probability is kept anyway.
    """
    if (
        torch.compiler.is_compiling()
        or not getattr(visit, "by_rows", False)
        or torch._C._get_tracing_state() is not None
        or (torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)))
    ):
        return
    batch = math.prod(torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]))
    count, size = query.shape[-2], max(1, BLOCK // max(1, batch * key.shape[-1]))
    for start in range(0, count, size):
        yield Rows(start, min(start + size, count), count)


@synaptic(F.relu, torch.relu, Tensor.relu)
def _relu(visit: Visit, input: Tensor, inplace: bool = False) -> Tensor:
    """No product, but a neuron's place with `placement="activation"`; otherwise the visit returns its input."""
    value = visit("relu.input", input, partial(Synapses, 0, 0))
    if value is input:
        return F.relu(input, inplace)
    return input.copy_(F.relu(value)) if inplace else F.relu(value)


@synaptic(torch.relu_, Tensor.relu_)
def _relu_(visit: Visit, input: Tensor) -> Tensor:
    return _relu(visit, input, inplace=True)


def is_activation(key: str) -> bool:
    """Whether a key names an activation function and not an operand of a product.

    >>> is_activation("relu0_input"), is_activation("linear0_input")
    (True, False)
    """
    return key.startswith("relu")


def numbered(calls: dict[str, int], slot: str, rows: Rows | None = None) -> str:
    """The key of an operand, and its call counted: the slot `matmul.lhs` of the n-th product is `matmulN_lhs`.

    >>> calls = {}
    >>> numbered(calls, "matmul.lhs", Rows(0, 2, 4)), numbered(calls, "matmul.lhs", Rows(2, 4, 4))
    ('matmul0_lhs', 'matmul0_lhs')
    """
    number = calls.get(slot, 0) - (rows is not None and rows.start > 0)
    calls[slot] = number + 1
    operation, role = slot.split(".")
    return f"{operation}{number}_{role}"


class Sites(TorchFunctionMode):
    """Within this context the activation operands of every synaptic call pass through `visit(key, x, synapses)`.

    With `by_rows` the probabilities of attention may come in blocks, as `visit(key, x, synapses, rows)`; and not at
    all where `alone(key)` returns the neuron that is all that visits them.

    >>> seen = []
    >>> with Sites(lambda key, x, synapses: seen.append(key) or x):
    ...     _ = torch.zeros(1, 2) @ torch.zeros(2, 1)
    >>> seen
    ['matmul0_lhs', 'matmul0_rhs']
    """

    def __init__(
        self, visit: Visit, by_rows: bool = False, alone: Callable[[str], Any] | None = None
    ) -> None:
        super().__init__()
        self.visit, self.by_rows, self._alone = visit, by_rows, alone
        self.calls: dict[str, int] = {}

    def alone(self, slot: str) -> Any:
        """The neuron at the next call of this slot, if it is all that visits the operand; else None."""
        return self._alone and self._alone(numbered(dict(self.calls), slot))

    def __call__(
        self, slot: str, x: Tensor, count: Callable[[], Synapses], rows: Rows | None = None
    ) -> Tensor:
        key = numbered(self.calls, slot, rows)
        return self.visit(key, x, count) if rows is None else self.visit(key, x, count, rows)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(function)
        if rule is None:
            return function(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():  # an enclosing Sites must not visit this call again
            return rule(self, *args, **(kwargs or {}))
