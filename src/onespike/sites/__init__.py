"""Sites: the places where an activation enters a product, and the visitors that see them."""

from onespike.sites import attention as attention
from onespike.sites.rules import RULES as RULES
from onespike.sites.rules import matrix_product as matrix_product
from onespike.sites.rules import synaptic as synaptic
from onespike.sites.site import Operand as Operand
from onespike.sites.site import Product as Product
from onespike.sites.site import Site as Site
from onespike.sites.tracer import discover as discover
from onespike.sites.visitor import Places as Places
from onespike.sites.visitor import Sites as Sites
from onespike.sites.visitor import Visit as Visit
from onespike.sites.visitor import Visitor as Visitor
from onespike.sites.visitor import visiting as visiting
