"""A site, one operand of one product of one module, and what a rule hands to a visitor there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from onespike.errors import UsageError
from onespike.sites.fan_out import Synapses

_KEY = re.compile(r"(?P<operation>.+?)(?P<number>\d+)_(?P<role>[^_]+)")


class Site(NamedTuple):
    """The place where an activation enters a product.

    Attributes:
        owner: the module whose forward multiplies, by its name in the network.
        operation: `linear`, `conv`, `matmul`, `einsum`, or `relu` for a neuron in place of a ReLU; for a product that
            no rule reaches, the operation that ran.
        number: which product of that kind within one call of the owner; None for a product without a rule.
        role: which operand: `input`, `weight`, `lhs`, `rhs` or a number.

    >>> site = Site.parse("blocks.3.attn:matmul1_lhs")
    >>> print(site), site.product, site.operand("rhs").key
    blocks.3.attn:matmul1_lhs
    (None, 'blocks.3.attn:matmul1', 'matmul1_rhs')
    """

    owner: str
    operation: str
    number: int | None = None
    role: str = ""

    def __str__(self) -> str:
        return f"{self.owner}:{self.key}"

    @property
    def key(self) -> str:
        """Return the operand within its owner, such as `matmul1_lhs`."""
        return self.operation if self.number is None else f"{self.operation}{self.number}_{self.role}"

    @property
    def product(self) -> str:
        """Return the product that this operand enters, such as `owner:matmul1`."""
        return f"{self.owner}:{self.operation}{'' if self.number is None else self.number}"

    @property
    def is_activation(self) -> bool:
        return self.operation == "relu"

    @property
    def kind(self) -> str:
        """Return a glob of all sites with the same last module name and operand, such as `*fc1:linear0_input`."""
        return f"*{self.owner.rpartition('.')[2]}:{self.key}"

    def operand(self, role: str) -> Site:
        return self._replace(role=role)

    @staticmethod
    def parse(text: str) -> Site:
        foreign = "::" in text  # another library's operation, such as roi:torchvision::roi_align
        owner, colon, key = text.partition(":") if foreign else text.rpartition(":")
        if not colon:
            raise UsageError(f"{text!r} is not a site. Write OWNER:OPERAND, as blocks.0.attn:matmul0_lhs.")
        match = _KEY.fullmatch(key)
        if match is None:
            return Site(owner, key)
        return Site(owner, match["operation"], int(match["number"]), match["role"])


class Rows(NamedTuple):
    """The rows (last axis but one) of an operand that are visited, where it is never whole in memory."""

    start: int
    stop: int
    of: int

    @property
    def is_first(self) -> bool:
        return not self.start

    def cut(self, x: Tensor) -> Tensor:
        """Return these rows of a tensor that broadcasts to the operand; all of it if it is the same for every row."""
        return x[..., self.start : self.stop, :] if x.dim() > 1 and x.shape[-2] > 1 else x


class Product(NamedTuple):
    """One multiplication, as its rule hands it over."""

    operation: str
    operands: Mapping[str, Tensor]  # by role
    synapses: Callable[[str], Synapses]  # role → as seen from that operand; called only for counting
    multiply: Callable[..., Tensor]  # the same product of other operands, without a bias
    groups: int = 1
    visible: Tensor | None = None  # which query-key pairs are wanted, where a mask hides some
    weighted: bool = False  # `visible` marks nonzero elements of the first operand instead
    indices: str = ""  # of the operands as `torch.einsum` writes them; "" where they do not say it all


@dataclass(eq=False)
class Operand:
    """What a visitor knows about the tensor that it sees; a converted network also says what fires it."""

    site: Site
    product: Product
    rows: Rows | None  # those that the tensor holds; None for all of them
    role: str = ""  # of the site in calibration
    timestep: int = 1
    call: int | None = None  # how often the site has fired in this timestep; None where there is one alone
    fired_by_product: bool = False  # the product multiplies integers, and fires the operand by itself

    @property
    def synapses(self) -> Synapses:
        """Return MACs and fan-out as seen from this operand."""
        return self.product.synapses(self.site.role)

    @property
    def again(self) -> bool:
        """Return whether an earlier block of rows of the same operand was visited."""
        return self.rows is not None and not self.rows.is_first

    def neuron(self) -> Any:
        """Return the neuron or analog site here, for the visited rows."""
        return None

    def value(self, x: Tensor) -> Tensor:
        """Return what the site passes on, regardless of visitors."""
        return x

    def fire(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signed counts of one step, and the value passed on."""
        raise UsageError(f"{self.site}: nothing fires in a network that is not converted. Convert it first.")
