"""Products and their operands: what a rule hands to a visitor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from onespike.sites.fan_out import Synapses
from onespike.sites.site import Rows, Site


class Product(NamedTuple):
    """One multiplication, as its rule hands it over.

    Attributes:
        operation: the operation's name in its sites.
        operands: role → operand.
        synapses: role → MACs and fan-out as seen from that operand; called only for counting.
        multiply: the same product of other operands, without a bias.
        groups: the groups of a convolution.
        visible: which query-key pairs are wanted, where a mask hides some.
        weighted: whether `visible` marks nonzero elements of the first operand instead of wanted results.
        indices: the indices of the operands as `torch.einsum` writes them; "" where they do not say it all.
    """

    operation: str
    operands: Mapping[str, Tensor]
    synapses: Callable[[str], Synapses]
    multiply: Callable[..., Tensor]
    groups: int = 1
    visible: Tensor | None = None
    weighted: bool = False
    indices: str = ""


class Operand(NamedTuple):
    """What a visitor knows about the tensor that it sees.

    Attributes:
        site: where the tensor enters its product.
        product: both operands, their cost, and the multiplication itself.
        rows: which rows of the operand the tensor holds; None for all of them.
        place: what is at the sites of this module in a converted network; None in any other.
    """

    site: Site
    product: Product
    rows: Rows | None = None
    place: Any = None

    @property
    def synapses(self) -> Synapses:
        """Return MACs and fan-out as seen from this operand."""
        return self.product.synapses(self.site.role)

    def neuron(self, x: Tensor | None = None) -> Any:
        """Return the neuron or analog site here, for the visited rows; with x, with the steps of that input."""
        return self.place.standing(self, x)

    def value(self, x: Tensor) -> Tensor:
        """Return what the site passes on, regardless of visitors."""
        value: Tensor = self.place.value(self, x)
        return value

    def fire(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signed counts of one step, and the value passed on."""
        fired: tuple[Tensor, Tensor] = self.place.fire(self, x)
        return fired

    @property
    def again(self) -> bool:
        """Return whether an earlier block of rows of the same operand was visited."""
        return self.rows is not None and not self.rows.is_first
