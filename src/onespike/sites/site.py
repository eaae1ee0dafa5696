"""A site: one operand of one product of one module, with one text form."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from onespike.errors import UsageError

_KEY = re.compile(r"(?P<operation>.+?)(?P<number>\d+)_(?P<role>[^_]+)")


class Site(NamedTuple):
    """The place where an activation enters a product.

    Attributes:
        owner: the module whose forward multiplies, by its name in the network.
        operation: `linear`, `conv`, `matmul`, `einsum`, `grouped`, or `relu` for a neuron in place of a ReLU; for a
            product that no rule reaches, the operation that ran.
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
        """Return whether this is the input of an activation function, not an operand of a product."""
        return self.operation == "relu"

    @property
    def kind(self) -> str:
        """Return a glob of all sites with the same last module name and operand.

        >>> Site.parse("blocks.3.mlp.fc1:linear0_input").kind
        '*fc1:linear0_input'
        """
        return f"*{self.owner.rpartition('.')[2]}:{self.key}"

    def operand(self, role: str) -> Site:
        """Return another operand of the same product."""
        return self._replace(role=role)

    @staticmethod
    def of(owner: str, key: str) -> Site:
        """Return the site of an owner with this key.

        >>> Site.of("head", "linear0_input").role, Site.of("roi", "torchvision::roi_align").number
        ('input', None)
        """
        return _of(owner, key)

    @staticmethod
    def parse(text: str) -> Site:
        """Parse the text form of a site."""
        foreign = "::" in text  # another library's operation, such as roi:torchvision::roi_align
        owner, colon, key = text.partition(":") if foreign else text.rpartition(":")
        if not colon:
            raise UsageError(
                f"{text!r} is not a site. Write OWNER:OPERAND, such as blocks.0.attn:matmul0_lhs."
            )
        return _of(owner, key)


@lru_cache(maxsize=65536)
def _of(owner: str, key: str) -> Site:
    found = _KEY.fullmatch(key)
    if found is None:
        return Site(owner, key)
    return Site(owner, found["operation"], int(found["number"]), found["role"])


class Rows(NamedTuple):
    """The rows (last axis but one) of an operand that are visited, where it is never whole in memory."""

    start: int
    stop: int
    of: int

    @property
    def is_first(self) -> bool:
        return not self.start

    @property
    def is_last(self) -> bool:
        return self.stop == self.of

    def cut(self, x: Tensor) -> Tensor:
        """Return these rows of a tensor that broadcasts to the operand; all of it if it is the same for every row.

        >>> import torch
        >>> Rows(1, 3, 4).cut(torch.arange(4.0)[:, None]).flatten(), Rows(1, 3, 4).cut(torch.ones(1, 2)).shape
        (tensor([1., 2.]), torch.Size([1, 2]))
        """
        return x[..., self.start : self.stop, :] if x.dim() > 1 and x.shape[-2] > 1 else x
