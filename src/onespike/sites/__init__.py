"""Sites: the places where an activation enters a product, and the visitors that see them."""

from onespike.sites import attention
from onespike.sites.rules import RULES, matrix_product, synaptic
from onespike.sites.site import Operand, Product, Site
from onespike.sites.tracer import discover
from onespike.sites.visitor import Places, Sites, Visit, Visitor, visiting

__all__ = [
    "RULES", "Operand", "Places", "Product", "Site", "Sites", "Visit", "Visitor", "attention", "discover",
    "matrix_product", "synaptic", "visiting",
]  # fmt: skip
