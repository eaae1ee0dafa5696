"""The fused fire function: one pass over memory in place of a dozen.

Used in eager inference on the CPU and on CUDA. `torch.compile` and `torch.export` see the plain form, which they fuse
themselves; where gradients are wanted the plain form has them.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from onespike.kernels import native
from onespike.kernels.form import Form, in_memory

SMALL = 1 << 15
"""Elements below which a second thread costs more than it gives."""
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
    launch = None if plain_is_needed(x, positive, negative) else _backend(x.device.type)
    how = None if launch is None else form()
    if launch is None or how is None:
        return None
    source, off = (x.float(), OFF) if launch is _native else (x, OFF.to(x.device))
    out = torch.empty_like(source, dtype=torch.float32)
    if source.stride() != out.stride():  # gaps or overlaps: a dense copy first, in the order of memory
        source = out.copy_(source)
    steps = (off if positive is None else positive, off if negative is None else negative)
    layout = _channels(out, steps)
    if layout is None or not launch(source, out, layout, limits(positive, negative), how, decoded):
        return None
    return out.to(x.dtype) if decoded else out


Layout = tuple[int, int, tuple[Tensor, Tensor]]


def _backend(device: str) -> Callable[..., bool] | None:
    """What fires on this kind of device and says whether it did; None where nothing but torch can."""
    if device == "cpu":
        return _native if native.library() is not None else None
    return _triton() if device == "cuda" else None


def _native(
    source: Tensor, out: Tensor, layout: Layout, most: tuple[float, float], form: Form, decoded: bool
) -> bool:
    kernels: Any = native.library()
    channels, inner, (up, down) = layout
    threads = 1 if out.numel() < SMALL else torch.get_num_threads()
    return not kernels.onespike_fire(
        source.data_ptr(), out.data_ptr(), out.numel(), channels, inner, up.data_ptr(), down.data_ptr(),
        *most, ctypes.addressof(in_memory(form)), decoded, threads,
    )  # fmt: skip


@cache
def _triton() -> Callable[..., bool] | None:
    try:
        from onespike.kernels import gpu
    except ImportError as error:
        native.log.info("neurons run in their plain form on GPUs: %s", error)
        return None
    return gpu.launch
