"""Linear maps and convolutions of spikes on integers: firing, exact 32-bit sums, scales and bias in one call."""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from onespike.kernels import build
from onespike.kernels.firing import SMALL, plain_is_needed
from onespike.kernels.layout import OFF, Form, form_of, limits, pointer
from onespike.spikes import SpikeCode, fire_function

COUNT = 2**15 - 1
"""The largest count: counts are 16-bit numbers before they are bytes."""
PATHS = ("AVX-512 VNNI", "AVX-VNNI", "Arm dot products", "AVX-512 VNNI, 16 bits", "AVX2", "plain C")
"""The instructions that the C side is written for, the fastest first."""
ONE = torch.ones(())


class Path(NamedTuple):
    """One way to multiply: its number on the C side, and its layout of weights."""

    number: int
    columns: int
    bytes: int

    @property
    def name(self) -> str:
        return PATHS[self.number]


class Window(NamedTuple):
    """A convolution of [images, height, width, inputs]; pairs are (down, right)."""

    image: tuple[int, int]
    padding: tuple[int, int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)

    @property
    def padded(self) -> tuple[int, int]:
        """Return height and width with padding: above, below, left, right."""
        above, below, left, right = self.padding
        return self.image[0] + above + below, self.image[1] + left + right

    @property
    def places(self) -> tuple[int, int]:
        """Return height and width of the result."""
        axes = zip(self.padded, self.kernel, self.stride, self.dilation, strict=True)
        down, right = ((whole - gap * (size - 1) - 1) // step + 1 for whole, size, step, gap in axes)
        return down, right

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return all that the C side reads, in its order."""
        corner = self.padding[0], self.padding[2]
        pairs = (self.image, corner, self.padded, self.kernel, self.stride, self.dilation, self.places)
        return tuple(chain(*pairs))


@dataclass(frozen=True, eq=False)
class Weights:
    """8-bit weights in the layout of a path, with the code that fires what they multiply and what follows the sums."""

    path: Path
    code: SpikeCode  # its tensors float32 and contiguous, steps with their scale; a gain per row r modulo their number
    packed: Tensor
    total: Tensor  # of the weights of each output, in int32
    scale: Tensor  # of each output
    factor: Tensor  # of all scales
    bias: Tensor | None  # [outputs], or [places, outputs] for row r modulo their number
    inputs: int  # before padding
    times: tuple[Tensor, Tensor]  # the units of a count of each sign, single numbers or one per input
    low: int  # the smallest number of units that a byte holds

    @staticmethod
    def of(
        weight: Tensor, path: Path, code: SpikeCode, scale: Tensor, *, factor: Tensor = ONE, bias: Tensor | None = None,
        times: tuple[Tensor, Tensor] = (ONE, ONE), low: int = -128,
    ) -> Weights:  # fmt: skip
        """Pack 8-bit weights [outputs, inputs] as [panels, groups of four bytes, columns], padded with zeros."""
        group = 4 // path.bytes
        outputs, inputs = weight.shape
        wide = weight.to(torch.int16 if path.bytes == 2 else torch.int8)
        whole = F.pad(wide, (0, -inputs % group, 0, -outputs % path.columns))
        packed = whole.view(-1, path.columns, whole.shape[1] // group, group).transpose(1, 2).contiguous()
        total = weight.sum(1, dtype=torch.int32)
        return Weights(path, code, packed, total, scale, factor, bias, inputs, times, low)

    @cached_property
    def call(self) -> tuple[_Source, _Product, Form]:
        """What the C side takes, but for input and output: most of the time in Python is for this."""
        code, bias, outputs = self.code, self.bias, len(self.scale)
        up, down = (OFF if side is None else side for side in (code.positive, code.negative))
        form = form_of(code.function, code.inside)
        source = _Source(
            None, *map(pointer, (code.center, code.gain, up, down, *self.times)), ctypes.addressof(form),
            1 if code.gain is None else code.gain.numel(), 0, 0, *limits(code.positive, code.negative),
            max(up.dim(), down.dim()), 0,
        )  # fmt: skip
        product = _Product(
            *map(pointer, (self.packed, self.total, self.scale, self.factor, bias)), None,
            1 if bias is None else bias.numel() // outputs, self.inputs, outputs, self.low, self.path.number,
        )  # fmt: skip
        return source, product, form


class _Source(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("x", "center", "gain", "up", "down", "times_up", "times_down", "form")
        ),
        *((name, ctypes.c_int64) for name in ("gains", "rows", "inputs")),
        *((name, ctypes.c_float) for name in ("most_up", "most_down")),
        *((name, ctypes.c_int32) for name in ("each", "quick")),
        ("window", ctypes.c_int64 * 14),  # the numbers of a `Window`; zeros for a linear map
    )


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "total", "scale", "factor", "bias", "out")),
        *((name, ctypes.c_int64) for name in ("biases", "inputs", "outputs")),
        *((name, ctypes.c_int32) for name in ("low", "path")),
    )


@cache
def paths() -> tuple[Path, ...]:
    """Return the usable paths, the fastest first: each has proved exact on the values that break such units."""
    kernels: Any = build.library()
    if kernels is None:
        return ()
    usable = []
    asked = os.environ.get(build.SWITCH, "")  # as on a processor that has nothing faster
    for number in range(PATHS.index(asked) if asked in PATHS else 0, len(PATHS)):
        layout = (ctypes.c_int32 * 3)()
        if kernels.onespike_path(number, layout):
            path = Path(number, layout[1], layout[2])
            if _is_exact(path):
                usable.append(path)
            else:
                build.log.error("%s does not multiply exactly here and is not used", path.name)
    return tuple(usable)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def best_path() -> Path | None:
    """Return the fastest path that beats torch's float32: vectors of integers, not plain C."""
    return next((path for path in paths() if path.name != PATHS[-1]), None)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def word_path() -> Path | None:
    """Return the fastest path for 16-bit numbers on both sides; None without one."""
    return next((path for path in paths() if path.bytes == 2), None)


def _is_exact(path: Path) -> bool:
    generator = torch.Generator().manual_seed(0)
    code = SpikeCode(ONE, ONE, fire_function(tuple(range(1, 301))))
    # products in here do not belong to the network whose forward may first ask for this
    with torch._C.DisableTorchFunction(), torch.inference_mode():
        for rows, inputs, outputs in ((1, 64, 16), (7, 5, 3), (27, 900, 48)):
            weight = torch.randint(-127, 128, (outputs, inputs), generator=generator).to(torch.int8)
            counts = torch.randint(-140, 141, (rows, inputs), generator=generator).float()
            largest = counts.sign() * 127, weight.sign() * 127
            for x, w in ((counts, weight), largest, (counts.abs(), weight.abs())):
                product = _multiply(x, Weights.of(w, path, code, torch.ones(outputs)))
                if product is None or not torch.equal(product.double(), x.double() @ w.double().t()):
                    return False
    return True


def multiply(x: Tensor, weights: Weights, window: Window | None = None) -> Tensor | None:
    """Return factor·scale·gain·(counts·W) + bias, [rows, outputs]; None where the plain form must run.

    x is [rows, inputs], or with a window [images, height, width, inputs].
    """
    if plain_is_needed(x, weights.bias) or x.device.type != "cpu" or x.dtype != torch.float32:
        return None
    return _multiply(x, weights, window)


def _multiply(x: Tensor, weights: Weights, window: Window | None = None) -> Tensor | None:
    kernels: Any = build.library()
    if kernels is None:
        return None
    x, outputs = x.contiguous(), len(weights.scale)
    rows = len(x) if window is None else len(x) * math.prod(window.places)
    out = x.new_empty(rows, outputs)
    source, call = _Source.from_buffer_copy(weights.call[0]), _Product.from_buffer_copy(weights.call[1])
    source.x, source.rows, source.inputs, call.out = x.data_ptr(), rows, x.shape[-1], out.data_ptr()
    if window is not None:
        source.window[:] = window.numbers
    threads = 1 if rows * weights.inputs < SMALL else torch.get_num_threads()
    refused = kernels.onespike_product(ctypes.addressof(call), ctypes.addressof(source), threads)
    return None if refused else out
