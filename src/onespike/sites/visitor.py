"""Visitors: observing, firing and counting are visits to the operands of products.

A rule hands over a `Product`. The mode `Sites` numbers its operands and lets a visitor see each of them.
`visiting(model, visitor)` does so for a whole network and is always undone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onespike.errors import UsageError
from onespike.runtime.forward import TURN
from onespike.sites.coverage import Operations, Owners
from onespike.sites.rules import rule_of
from onespike.sites.site import Operand, Product, Rows, Site
from onespike.sites.unfused import plain


class Visitor:
    """See every operand and return what the product receives instead."""

    blockwise: bool = False  # attention probabilities may come in blocks of rows, from the first to the last
    operations: Operations | None = None  # told while a rule runs: they look for products outside every rule

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        raise NotImplementedError


class Visit(Visitor):
    """A visitor made of one function."""

    def __init__(self, function: Callable[[Operand, Tensor], Tensor], blockwise: bool = False) -> None:
        self.function, self.blockwise = function, blockwise

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        return self.function(operand, x)


class Sites(TorchFunctionMode):
    """Number the operands of synaptic calls in one module's forward, and let a visitor see each of them.

    A rule gets this as `visit`: `visit(product, role)` is one operand. Before that it asks whether the whole is done at
    once, by `visit.multiply` or `visit.attend`.
    """

    around: ClassVar[Any] = torch._C.DisableTorchFunction
    """The context of a rule: an enclosing owner must not visit its calls again."""

    def __init__(self, visitor: Visitor, owner: str = "") -> None:
        super().__init__()
        self.visitor, self.owner = visitor, owner
        self.calls: dict[tuple[str, str], int] = {}

    @property
    def blockwise(self) -> bool:
        return self.visitor.blockwise

    def numbered(self, operation: str, role: str, rows: Rows | None) -> Site:
        """Return the site of the next operand of this kind; later blocks belong to the site of the first."""
        number = self.calls.get((operation, role), 0)
        if rows is not None and not rows.is_first:
            number -= 1
        self.calls[operation, role] = number + 1
        return Site(self.owner, operation, number, role)

    def __call__(self, product: Product, role: str, rows: Rows | None = None) -> Tensor:
        site = self.numbered(product.operation, role, rows)
        return self.visitor.visit(Operand(site, product, rows), product.operands[role])

    def multiply(self, product: Product, bias: Tensor | None) -> Tensor | None:
        """Return the product of an input and a weight with its bias, where it is made at once; else None."""
        return None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return attention of query, keys (transposed) and values, where it is made at once; else None."""
        return None

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = rule_of(function)
        if rule is None:
            return function(*args, **(kwargs or {}))
        operations = self.visitor.operations
        with self.around(), nullcontext() if operations is None else operations.rule():
            return rule(self, *args, **(kwargs or {}))


class NetworkSites(Sites):
    """The same for all modules of a network that is not converted, one mode for all of them."""

    around = nullcontext  # outer modes follow what a rule does

    def __init__(self, visitor: Visitor, owners: Owners) -> None:
        super().__init__(visitor)
        self.owners = owners

    def numbered(self, operation: str, role: str, rows: Rows | None) -> Site:
        self.owner, self.calls = self.owners.stack[-1]
        return super().numbered(operation, role, rows)


class Places(nn.ModuleDict):
    """The neurons or analog sites of one module of a converted network, and their present visitor."""

    def __init__(self) -> None:
        super().__init__()
        self.visits: dict[int, tuple[int, Visitor]] = {}
        """The threads that let a visitor in, on whose behalf they run, and the visitor: what one forward counts, another
        must not disturb."""

    @property
    def visitor(self) -> Visitor | None:
        """Who sees the operands instead of the neurons, if anybody does: the visitor of this thread, or of the one that
        takes its forward in step with others. While another thread has one, forwards are refused.
        """
        if not self.visits:
            return None
        if torch.compiler.is_compiling():
            return next(visitor for _, visitor in self.visits.values())
        _, visitor = self.visits.get(get_ident()) or self.visits.get(TURN.family) or (0, None)
        if visitor is None and any(other != TURN.family for other, _ in list(self.visits.values())):
            raise UsageError(
                "this network is metered or observed in another thread. Give each thread a network of its own "
                "(copy.deepcopy) and a ledger of its own, and add them up with Ledger.merge."
            )
        return visitor

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles take no visitor along."""
        return {**self.__dict__, "visits": {}}


@contextmanager
def visiting(model: nn.Module, visitor: Visitor) -> Iterator[None]:
    """Let a visitor see the operands of every forward within this context; always undone.

    A converted network hands them over at its neurons, any other network wherever a rule applies.
    """
    places = [module for module in model.modules() if isinstance(module, Places)]
    if not places:
        owners = Owners(model)
        with plain(model), owners.following(), NetworkSites(visitor, owners):
            yield
        return
    _ = [place.visitor for place in places]  # refused where another thread is visiting
    here = get_ident()
    before = [place.visits.get(here) for place in places]
    for place in places:
        place.visits[here] = TURN.family, visitor
    try:
        yield
    finally:
        for place, earlier in zip(places, before, strict=True):
            place.visits.pop(here)
            if earlier is not None:
                place.visits[here] = earlier
