"""How a magnitude becomes a count, in numbers: what the kernels know of a neuron besides its steps."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple


class Form(NamedTuple):
    """Levels as a closed form (M, offset, carry, top), or as a table of jumps and the rise of the count there."""

    inside: int = 0
    carry: int = 0
    dense: float = 0.0
    offset: float = 0.0
    top: float = 0.0
    bound: tuple[float, ...] = ()
    rise: tuple[float, ...] = ()

    def numbers(self) -> list[float]:
        """Return all of it as a list, for an operator."""
        closed = (float(self.inside), float(self.carry), self.dense, self.offset, self.top)
        return [*closed, *self.bound, *self.rise]

    @property
    def jumps(self) -> int:
        """Return the number of entries in the table; 0 for the closed form."""
        return len(self.bound)


class _Form(ctypes.Structure):
    """The C side's `Form`."""

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


def closed_form(dense: int, tail: int, offset: float, carry: int, inside: bool = False) -> Form:
    """Return the form of levels 1 … M and then M − 1 + 2^k up to k = `tail`."""
    return Form(int(inside), carry, float(dense), float(offset), 2.0**tail)


def table_form(bounds: tuple[float, ...], levels: tuple[int, ...]) -> Form:
    """Return the form of any levels: where they jump, and the differences between them."""
    return Form(bound=bounds, rise=tuple(float(b - a) for a, b in pairwise((0, *levels))))


def form_of(numbers: list[float]) -> Form:
    """Return the form that has these numbers.

    >>> form_of(table_form((1.0, 4.0), (1, 5)).numbers())
    Form(inside=0, carry=0, dense=0.0, offset=0.0, top=0.0, bound=(1.0, 4.0), rise=(1.0, 4.0))
    """
    inside, carry, dense, offset, top, *table = numbers
    half = len(table) // 2
    return Form(int(inside), int(carry), dense, offset, top, tuple(table[:half]), tuple(table[half:]))


@lru_cache(maxsize=256)
def in_memory(form: Form) -> _Form:
    """Return the form where C can read it; it stays there as long as this is cached or held."""
    array = ctypes.c_float * form.jumps
    numbers = (form.inside, form.carry, form.dense, form.offset, form.top)
    return _Form(form.jumps, *numbers, array(*form.bound), array(*form.rise))
