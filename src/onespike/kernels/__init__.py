"""Fast forms of what neurons do: the bits of the plain form, or None where no kernel fits.

Only attention rounds its sums differently, as any two forms of attention do.
"""

from onespike.kernels.attention import Units, attend, attend_integers, can_attend
from onespike.kernels.build import is_fast, note
from onespike.kernels.firing import fire
from onespike.kernels.histogram import PART, count_, in_memory_order, moments
from onespike.kernels.product import COUNT, Path, Weights, Window, best_path, multiply, paths, word_path

__all__ = [
    "COUNT", "PART", "Path", "Units", "Weights", "Window", "attend", "attend_integers", "best_path", "can_attend",
    "count_", "fire", "in_memory_order", "is_fast", "moments", "multiply", "note", "paths", "word_path",
]  # fmt: skip
