"""The fire function on a GPU, in one pass: the closed form of `spikes/fire_functions.py`, written in Triton.

Imported only where a neuron meets a CUDA tensor outside a compiler, which fuses the plain form itself.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from onespike.kernels.layout import OFF, form_of, limits
from onespike.spikes import SpikeCode
from onespike.spikes.fire_functions import EXPONENT

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def kernel(  # type: ignore[no-untyped-def]
    x, out, n, up, down, channels, inner, most_up, most_down, dense, offset, top, carry,
    mask: tl.constexpr, decoded: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    here = at < n
    v = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    channel = (at // inner) % channels
    rise, fall = tl.load(up + channel, mask=here, other=1.0), tl.load(down + channel, mask=here, other=1.0)
    # One of the two quotients is 0. A side that is off, or has one step per channel, is limited below
    # infinity, so that 0 times it is 0; a single number divides directly, whatever it is.
    positive, negative = tl.where(v < 0, 0.0, v), tl.where(v > 0, 0.0, -v)
    positive = tl.where(positive > most_up, most_up, positive)
    negative = tl.where(negative > most_down, most_down, negative)
    goes_up, goes_down = (rise > 0) | (most_up == float("inf")), (fall > 0) | (most_down == float("inf"))
    a = tl.div_rn(tl.where(goes_up, positive, positive * 0.0), tl.where(goes_up, rise, 1.0))
    a += tl.div_rn(tl.where(goes_down, negative, negative * 0.0), tl.where(goes_down, fall, 1.0))
    a += 0.5
    whole, rest = tl.floor(a), a - offset
    above = tl.where(rest > 1.0, rest, 1.0)
    power = tl.where(above < top, above, top)
    bits = (power.to(tl.int32, bitcast=True) + carry) & mask
    count = tl.where(whole > dense, dense, whole) + (bits.to(tl.float32, bitcast=True) - 1.0)
    size = tl.where(v < 0, fall, rise) * count if decoded else count
    tl.store(out + at, tl.where(v < 0, 0.0 - size, size), mask=here)


def channels(x: Tensor, sides: tuple[Tensor, Tensor]) -> tuple[int, int, tuple[Tensor, Tensor]] | None:
    """Return (channels, inner, steps of each): element i of memory has channel (i // inner) % channels; else None."""
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


def launch(x: Tensor, code: SpikeCode, decoded: bool) -> Tensor | None:
    """Return counts, or values; None for steps, levels or a neuron without the closed form."""
    up, down = code.steps
    out = torch.empty_like(x, dtype=torch.float32)
    off, form = OFF.to(x.device), form_of(code.function, code.inside)
    layout = channels(out, (off if up is None else up, off if down is None else down))
    if layout is None or form.jumps or form.inside or not out.numel():
        return None
    source = x if x.stride() == out.stride() else out.copy_(x)
    count, inner, steps = layout
    kernel[(triton.cdiv(out.numel(), BLOCK),)](
        source, out, out.numel(), *steps, count, max(inner, 1), *limits(up, down), form.dense, form.offset, form.top,
        form.carry, mask=EXPONENT, decoded=decoded, block=BLOCK, enable_fp_fusion=False,
    )  # fmt: skip
    return out.to(x.dtype) if decoded else out
