"""The fused fire function: one pass over memory in place of a dozen.

Used in eager inference on the CPU and on CUDA, and on the CPU by `torch.compile` as an operator of our own: what its
compiler makes of the plain form takes longer. `torch.export`, and compilers for other devices, see the plain form; and
where gradients are wanted, it has them.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from onespike.kernels import build
from onespike.kernels.level_form import Form, form_of, in_memory

SMALL = 1 << 15
"""Elements below which a second thread costs more than it gives."""
SHORT = 16
"""Elements below which a piece is copied first."""
HUGE = torch.finfo(torch.float32).max
OFF = torch.zeros(())


def plain_is_needed(x: Tensor, *others: Tensor | None) -> bool:
    """Whether something watches or transforms torch's operations, so that they must be made of torch's operations."""
    return (
        torch.compiler.is_compiling()
        or type(x) not in (Tensor, nn.Parameter)
        or x.layout is not torch.strided
        or x.is_neg()
        or (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *others)))
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def may_be_opaque(*operands: Tensor | None) -> bool:
    """Whether a compiler may see one operation that it cannot look into: not in a program that others will run."""
    return not torch.compiler.is_exporting() and not (
        torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)
    )


def limits(positive: Tensor | None, negative: Tensor | None) -> tuple[float, float]:
    """What magnitudes are held below: steps that have dimensions, and a side that is off, hold infinity down."""
    up, down = (math.inf if side is not None and side.dim() == 0 else HUGE for side in (positive, negative))
    return up, down


def _channels(x: Tensor, sides: tuple[Tensor, Tensor]) -> tuple[int, int, tuple[Tensor, Tensor]] | None:
    """(channels, inner, steps of each): element i of memory has channel (i // inner) % channels; None if it has not."""
    if sides[0].dim() == sides[1].dim() == 0:
        return 1, 1, sides
    wide = next((side for side in sides if side.numel() > 1), None)
    if any(side.dim() > x.dim() for side in sides):
        return None
    if wide is None:
        return 1, 1, sides
    axis = next(d for d in range(-1, -wide.dim() - 1, -1) if wide.shape[d] > 1)
    if wide.shape[axis] != wide.numel() or wide.numel() != x.shape[axis]:
        return None
    if any(side.numel() > 1 and side.shape[-axis:] != wide.shape[-axis:] for side in sides):
        return None
    flat = tuple(side.reshape(-1).expand(wide.numel()).contiguous() for side in sides)
    return wide.numel(), x.stride(axis), (flat[0], flat[1])


def fire(
    x: Tensor,
    positive: Tensor | None,
    negative: Tensor | None,
    form: Callable[[], Form | None],
    *,
    decoded: bool,
) -> Tensor | None:
    """Signed counts in float32, or with `decoded` steps times counts in x's type; None where the plain form must run.

    Args:
        x: activations, of any type and strides.
        positive: the step of the positive side, which is its threshold too; None if it is off.
        negative: likewise.
        form: how a magnitude becomes a count; asked for only if the kernel runs. None if it cannot say.
        decoded: values instead of counts.
    """
    if torch.compiler.is_compiling():
        return _compiled(x, positive, negative, form, decoded)
    backend = None if plain_is_needed(x, positive, negative) else _backend(x.device.type)
    how = None if backend is None else form()
    if backend is None or how is None:
        return None
    off = OFF if x.device.type == "cpu" else OFF.to(x.device)
    steps = (off if positive is None else positive, off if negative is None else negative)
    return backend(x, steps, limits(positive, negative), how, decoded)


def _compiled(
    x: Tensor,
    positive: Tensor | None,
    negative: Tensor | None,
    form: Callable[[], Form | None],
    decoded: bool,
) -> Tensor | None:
    """The operator, for one step per side; None where the compiler must see what it does."""
    steps = [side for side in (positive, negative) if side is not None]
    if x.device.type != "cpu" or any(side.dim() for side in steps) or not may_be_opaque(x, *steps):
        return None
    how = form() if build.is_there() else None
    if how is None:
        return None
    result: Tensor = _fire_operator(x, positive, negative, how.numbers(), decoded)
    return result


@torch.library.custom_op("onespike::fire", mutates_args=())
def _fire_operator(
    x: Tensor, positive: Tensor | None, negative: Tensor | None, form: list[float], decoded: bool
) -> Tensor:
    """`fire` where a compiler follows."""
    steps = (OFF if positive is None else positive, OFF if negative is None else negative)
    # held below infinity, which fires the same count: a step that has vanished is then one that is off
    out = _native(x, steps, (HUGE, HUGE), form_of(form), decoded)
    if out is None:
        raise RuntimeError("onespike::fire: the kernels are gone. Compile the network again.")
    return out


@_fire_operator.register_fake
def _(
    x: Tensor, positive: Tensor | None, negative: Tensor | None, form: list[float], decoded: bool
) -> Tensor:
    return torch.empty_like(x, dtype=x.dtype if decoded else torch.float32)


Steps = tuple[Tensor, Tensor]


def _backend(device: str) -> Callable[..., Tensor | None] | None:
    """What fires on this kind of device; None where nothing but torch can."""
    if device == "cpu":
        return _native if build.is_there() else None
    return _triton if device == "cuda" and _gpu() is not None else None


def _native(x: Tensor, steps: Steps, most: tuple[float, float], form: Form, decoded: bool) -> Tensor | None:
    source = x.float()
    out = torch.empty_like(source)
    channels, inner, (up, down) = _channels(out, steps) or (0, 0, steps)
    kernels: Any = build.library()
    if kernels is None or not channels:
        return None
    run, apart = 0, 0
    if source.stride() != out.stride():
        run, apart = rows(source, out) if channels == 1 else (0, 0)
        source = source if run else out.copy_(source)  # dense, in the order of memory
    threads = 1 if out.numel() < SMALL else torch.get_num_threads()
    refused = kernels.onespike_fire(
        source.data_ptr(), out.data_ptr(), out.numel(), run, apart, channels, inner, up.data_ptr(), down.data_ptr(),
        *most, ctypes.addressof(in_memory(form)), decoded, threads,
    )  # fmt: skip
    if refused:
        return None
    return out.to(x.dtype) if decoded and x.dtype != torch.float32 else out


def rows(source: Tensor, out: Tensor) -> tuple[int, int]:
    """(elements, distance) of pieces of `source` that lie one behind the other in `out`; (0, 0) if it has no such.

    >>> qkv = torch.empty(2, 5, 3, 32)
    >>> rows(qkv[:, :, 1], torch.empty(2, 5, 32)), rows(qkv[..., 1], torch.empty(2, 5, 3))
    ((32, 96), (0, 0))
    """
    axes = sorted((d for d in range(out.dim()) if out.shape[d] > 1), key=out.stride)
    run, apart = 1, 0
    for d in axes:
        before, here = out.stride(d), source.stride(d)
        if apart and here * run != apart * before:
            return 0, 0
        if not apart and here == before == run:
            run *= out.shape[d]
        elif not apart:
            if here < 1 or before != run:
                return 0, 0
            apart = here
    return (run, apart) if run >= SHORT and apart else (0, 0)


def _triton(x: Tensor, steps: Steps, most: tuple[float, float], form: Form, decoded: bool) -> Tensor | None:
    out = torch.empty_like(x, dtype=torch.float32)
    layout = _channels(out, steps)
    source = x if x.stride() == out.stride() else out.copy_(x)
    if layout is None or not _gpu().launch(source, out, layout, most, form, decoded):
        return None
    return out.to(x.dtype) if decoded else out


@cache
def _gpu() -> Any:
    try:
        from onespike.kernels import gpu
    except ImportError as error:
        build.log.info("neurons run in their plain form on GPUs: %s", error)
        return None
    return gpu
