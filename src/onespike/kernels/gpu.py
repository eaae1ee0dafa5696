"""The fire function on a GPU, in one pass: the closed form of `spikes/fire_functions.py`, written in Triton.

Imported only where a neuron meets a CUDA tensor outside a compiler, which fuses the plain form itself.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
EXPONENT = 0x7F800000


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
    positive, negative = (
        tl.where(positive > most_up, most_up, positive),
        tl.where(negative > most_down, most_down, negative),
    )
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


def launch(
    source: Tensor,
    out: Tensor,
    layout: tuple[int, int, tuple[Tensor, Tensor]],
    limits: tuple[float, float],
    form: Any,
    decoded: bool,
) -> bool:
    """Fire `source` into `out`, which has its strides; False for levels, or a neuron, without the closed form.

    Element i of memory has channel (i // inner) % channels.

    Args:
        source: activations, dense in memory.
        out: float32.
        layout: channels, inner, and the steps of both sides, one per channel.
        limits: the bounds of magnitudes; infinity for a step that is a single number.
        form: the closed form.
        decoded: whether to write values instead of counts.
    """
    if form.jumps or form.inside or not out.numel():
        return False
    channels, inner, (up, down) = layout
    kernel[(triton.cdiv(out.numel(), BLOCK),)](
        source, out, out.numel(), up, down, channels, max(inner, 1), *limits, form.dense, form.offset, form.top,
        form.carry, mask=EXPONENT, decoded=decoded, block=BLOCK, enable_fp_fusion=False,
    )  # fmt: skip
    return True
