"""The fused fire function: one pass over memory instead of a dozen.

Used in eager inference on the CPU and on CUDA, and on the CPU by `torch.compile` as a custom operator, since
compiled code of the plain form takes longer. `torch.export`, and compilers for other devices, see the plain form.
Where gradients are wanted, it has them.
"""

from collections.abc import Callable
from functools import cache
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from onespike.kernels import build
from onespike.kernels.layout import PLANS, Plan, addresses, limits, plan
from onespike.runtime.forward import InOrder
from onespike.spikes import SpikeCode, fire_function
from onespike.spikes.code import HUGE

SMALL = 1 << 15  # elements below which a second thread costs more than it gives


def plain_is_needed(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether something watches or transforms torch's operations, so that the plain form must run."""
    return (
        torch.compiler.is_compiling()
        or type(x) not in (Tensor, nn.Parameter)
        or x.layout is not torch.strided
        or x.is_neg()
        or (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *others)))
        or torch._C._get_tracing_state() is not None
        or any(type(mode) is not InOrder for mode in _get_current_dispatch_mode_stack())
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def may_be_opaque(*operands: Tensor | None) -> bool:
    """Return whether a compiler may see one opaque operation: not in an exported program."""
    return not torch.compiler.is_exporting() and not (
        torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)
    )


def fire(x: Tensor, code: SpikeCode, plans: dict[Any, Plan], *, decoded: bool) -> Tensor | None:
    """Return signed counts in float32, or with `decoded` their values in x's type; None where the plain form must run.

    `plans` remembers how this code goes through activations of each shape.
    """
    if code.typical is not None:
        if not code.shifts:  # the kernels divide by powers of two alone
            return None
        code = code.settled(x)
    if torch.compiler.is_compiling():
        return _around(x, code, decoded, _compiled)
    if plain_is_needed(x, code.positive, code.negative):
        return None
    if x.device.type == "cpu":
        return _native(x, code, plans, decoded)
    launch = _gpu_launch() if x.device.type == "cuda" else None
    return None if launch is None else _around(x, code, decoded, launch)


def _around(x: Tensor, code: SpikeCode, decoded: bool, fire: Callable[..., Tensor | None]) -> Tensor | None:
    """Apply center, gain and offset around the spikes, with torch's operations."""
    y = x if code.center is None and code.gain is None else code.coordinate(x)
    values = fire(y, code, decoded)
    if values is None or not decoded:
        return values
    values = values if code.gain is None else values * code.gain
    return (values if code.offset is None else values + code.offset).to(x.dtype)


def _compiled(x: Tensor, code: SpikeCode, decoded: bool) -> Tensor | None:
    """Run the operator, for one step per side; None where the compiler must see inside."""
    steps, g = code.steps, code.function
    fits = x.device.type == "cpu" and not any(side is not None and side.dim() for side in steps)
    if not (fits and may_be_opaque(x, *steps) and build.is_there()):
        return None
    result: Tensor = _fire_operator(x, *steps, list(g.levels), g.rounding, code.inside, decoded)
    return result


@torch.library.custom_op("onespike::fire", mutates_args=())
def _fire_operator(
    x: Tensor,
    positive: Tensor | None,
    negative: Tensor | None,
    levels: list[int],
    rounding: str,
    inside: bool,
    decoded: bool,
) -> Tensor:
    """Run `fire` under a compiler."""
    code = SpikeCode(positive, negative, fire_function(tuple(levels), rounding), inside=inside)
    # limited below infinity, which fires the same count: a step that has vanished then acts as off
    out = _native(x, code, {}, decoded, (HUGE, HUGE))
    if out is None:
        raise RuntimeError("onespike::fire: the kernels are gone. Compile the network again.")
    return out


@_fire_operator.register_fake
def _(x: Tensor, *code: Any) -> Tensor:
    decoded = code[-1]
    return torch.empty_like(x, dtype=x.dtype if decoded else torch.float32)


def _native(
    x: Tensor, code: SpikeCode, plans: dict[Any, Plan], decoded: bool, most: tuple[float, float] | None = None
) -> Tensor | None:
    kernels: Any = build.library()
    if kernels is None:
        return None
    source = x if x.dtype is torch.float32 else x.float()
    out = torch.empty_like(source)
    shape = source.shape, source.stride()
    way = plans.get(shape)
    if way is None or not all(map(is_, way.code, code)) or way.places != addresses(code):
        way = plan(source, out, code, most or limits(code.positive, code.negative))
        if way is None:
            return None
        if len(plans) >= PLANS:
            plans.clear()
        plans[shape] = way
    if way.copied:
        source = out.copy_(source)  # dense, in memory order
    threads = 1 if out.numel() < SMALL else torch.get_num_threads()
    if kernels.onespike_fire(way.address, source.data_ptr(), out.data_ptr(), decoded, threads):
        return None
    return out.to(x.dtype) if decoded and x.dtype is not torch.float32 else out


@cache
def _gpu_launch() -> Any:
    try:
        from onespike.kernels.gpu import launch
    except ImportError as error:
        build.log.info("neurons run in their plain form on GPUs: %s", error)
        return None
    return launch
