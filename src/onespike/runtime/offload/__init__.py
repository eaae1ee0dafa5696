"""Networks whose weights lie on disk and come into memory one block at a time: everything about them, in one place.

`lie_in_blocks_` gives a network its `Blocks`, which `runtime.forward` asks how to run; the stages do not know of it.
"""

from onespike.runtime.offload.blocks import TENSORS as TENSORS
from onespike.runtime.offload.blocks import blocks_of as blocks_of
from onespike.runtime.offload.blocks import lie_in_blocks_ as lie_in_blocks_
from onespike.runtime.offload.blocks import parse_size as parse_size
from onespike.runtime.offload.stored import Stored as Stored
from onespike.runtime.offload.stored import stored_in as stored_in
from onespike.runtime.offload.stored import write as write
