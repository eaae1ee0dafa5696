"""Fast forms of what neurons do. Each gives the bits of its plain form, or None where it cannot help."""

from onespike.kernels.attention import attend as attend
from onespike.kernels.attention import can_attend as can_attend
from onespike.kernels.count import PART as PART
from onespike.kernels.count import count_ as count_
from onespike.kernels.count import in_memory_order as in_memory_order
from onespike.kernels.count import moments as moments
from onespike.kernels.fire import fire as fire
from onespike.kernels.form import Form as Form
from onespike.kernels.form import closed_form as closed_form
from onespike.kernels.form import table_form as table_form
from onespike.kernels.native import is_fast as is_fast
from onespike.kernels.native import note as note
from onespike.kernels.product import COUNT as COUNT
from onespike.kernels.product import fire_product as fire_product
from onespike.kernels.product import pack as pack
