"""Fast forms of what neurons do: the bits of the plain form, or None where no kernel fits.

Only attention rounds its sums differently, as any two forms of attention do.
"""

from onespike.kernels.attention import Units as Units
from onespike.kernels.attention import attend as attend
from onespike.kernels.attention import attend_integers as attend_integers
from onespike.kernels.attention import can_attend as can_attend
from onespike.kernels.build import is_fast as is_fast
from onespike.kernels.build import note as note
from onespike.kernels.firing import fire as fire
from onespike.kernels.histogram import PART as PART
from onespike.kernels.histogram import count_ as count_
from onespike.kernels.histogram import in_memory_order as in_memory_order
from onespike.kernels.histogram import moments as moments
from onespike.kernels.product import COUNT as COUNT
from onespike.kernels.product import Path as Path
from onespike.kernels.product import Weights as Weights
from onespike.kernels.product import Window as Window
from onespike.kernels.product import best_path as best_path
from onespike.kernels.product import multiply as multiply
from onespike.kernels.product import paths as paths
from onespike.kernels.product import word_path as word_path
