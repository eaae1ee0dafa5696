"""How a magnitude becomes a count, in numbers: G of a spike code as the kernels read it."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from itertools import pairwise

from onespike.spikes.fire_functions import HALF, FireFunction


class Form(ctypes.Structure):
    """The C side's `Form`: a closed form (M, offset, carry, top), or a table of jumps and the rise of the count there."""

    _fields_ = (
        ("jumps", ctypes.c_int32),
        ("inside", ctypes.c_int32),
        ("carry", ctypes.c_int32),
        ("dense", ctypes.c_float),
        ("offset", ctypes.c_float),
        ("top", ctypes.c_float),
        ("bound", ctypes.POINTER(ctypes.c_float)),
        ("rise", ctypes.POINTER(ctypes.c_float)),
    )


@lru_cache(maxsize=1024)
def form_of(function: FireFunction, inside: bool = False) -> Form:
    """Return G where C can read it; it stays there as long as this is cached or held.

    >>> from onespike.spikes.fire_functions import fire_function
    >>> form_of(fire_function((1, 2, 3, 4, 6, 10))).dense, form_of(fire_function((1, 5))).jumps
    (3.0, 2)
    """
    if function.pattern is None:
        array = ctypes.c_float * len(function.levels)
        rise = (float(high - low) for low, high in pairwise((0, *function.levels)))
        return Form(len(function.levels), inside, 0, 0, 0, 0, array(*function.bounds), array(*rise))
    dense, tail = function.pattern
    offset, carry = (dense - 0.5, HALF) if function.rounding == "nearest" else (dense - 1, 0)
    return Form(0, inside, carry, dense, offset, 2.0**tail)
