"""Networks whose weights lie on disk and come into memory one block at a time: everything about them, in one place.

`lie_in_blocks_` gives a network its `Blocks`, which `runtime.forward` asks how to run; the stages do not know of it.
"""

from onespike.runtime.offload.blocks import TENSORS, blocks_of, lie_in_blocks_, parse_size
from onespike.runtime.offload.stored import Stored, stored_in, write

__all__ = ["TENSORS", "Stored", "blocks_of", "lie_in_blocks_", "parse_size", "stored_in", "write"]
