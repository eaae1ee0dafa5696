"""A traced forward: the sites of a network, what flows into them, and the products that no rule reaches.

Each tensor carries the names of the products that it descends from, and whether it descends from the input. So
the first products, the classifier head and operands that act as weights are found in any architecture.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from onespike import kernels
from onespike.errors import DataError
from onespike.runtime.batches import call, inputs_of
from onespike.sites.coverage import Operations, Owners
from onespike.sites.rules import is_leaf
from onespike.sites.site import Operand, Site
from onespike.sites.unfused import plain
from onespike.sites.visitor import NetworkSites, Visitor

Observe = Callable[[Site, Tensor], None]
IMAGE, TOKEN = "input", "token"
"""The origin of a tensor with no product behind it: a floating-point input, or integers (tokens, indices)."""
INSPECTING = {"__get__", "dim", "size", "is_floating_point", "numel", "to"}
"""Functions that only inspect a tensor; one that `to` really moved is another tensor."""


@dataclass
class SiteFacts:
    """What traced forwards know about one site."""

    site: Site
    shape: tuple[int, ...]
    first: float = 0  # the forward that reached it first
    calls: int = 0
    forwards: int = 1
    macs: int = 0
    sources: frozenset[str] = frozenset()
    moments: tuple[int, float, float] = (0, 0.0, 0.0)  # of this visit so far: size, sum and sum of squares
    fingerprint: tuple[Any, ...] | None = None
    varies: bool = False


@dataclass
class Trace:
    """The facts of all sites in the order of execution, and of the products that no rule reaches."""

    sites: dict[Site, SiteFacts] = field(default_factory=dict)
    uncovered: Counter[tuple[str, str]] = field(default_factory=Counter)
    consumed: set[str] = field(default_factory=set)
    heads: set[str] = field(default_factory=set)
    pairs: dict[str, str] = field(default_factory=dict)
    unpaired: set[str] = field(default_factory=set)
    forwards: int = 0
    output_depends: bool = False

    @property
    def folds(self) -> dict[str, str]:
        """Return convolution → the BatchNorm that was its only reader in every forward."""
        return {conv: norm for conv, norm in self.pairs.items() if conv not in self.unpaired}

    def role(self, site: Site) -> str:
        """Return `activation`, or why this operand is special: `weight`, `constant`, `input`, `head`."""
        facts = self.sites[site]
        if self._fixed(facts):
            operands = [f for f in self.sites.values() if f.site.product == site.product]
            return "constant" if all(map(self._fixed, operands)) else "weight"
        if facts.sources == {IMAGE}:
            return "input"
        return "head" if site.product in self.heads else "activation"

    def _fixed(self, facts: SiteFacts) -> bool:
        """Return whether an operand never changes: no input reaches it, or other inputs left it unchanged."""
        if facts.varies or not facts.sources:
            return not facts.varies
        return facts.forwards > 1 and any(other.varies for other in self.sites.values())


class Tracer(TorchFunctionMode, Visitor):
    """Run one forward of a network and gather a `Trace`; `observe(site, x)` sees every operand.

    As a mode it carries descent from the arguments to the results of every function, in weak tables beside the tensors:
    a deleted tensor has no descent. With `activations` the inputs of ReLUs are sites too. Sites that are known to vary
    are not asked again.
    """

    blockwise = True
    operations: Operations

    def __init__(
        self,
        model: nn.Module,
        observe: Observe | None = None,
        activations: bool = False,
        varying: Collection[Site] = (),
    ) -> None:
        super().__init__()
        self.model, self.observe, self.activations, self.varying = model, observe, activations, varying
        self.forward: Callable[..., Any] = model
        self.owners, self.trace = Owners(model), Trace(forwards=1)
        self.operations = Operations(self.owners, self.trace.uncovered)
        self.sources: MutableMapping[Tensor, frozenset[str]] = WeakTensorKeyDictionary()
        self.products: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()
        self.pending: list[tuple[Site, frozenset[str]]] = []
        self.readers: dict[str, list[tuple[Any, str]]] = {}
        """Product → the functions that took its result, each with the module that called it."""
        self.norms = Counter[str]()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs))  # separate tensors
        for x in (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)):
            self.sources[x] = frozenset({IMAGE if x.is_floating_point() else TOKEN})
        trace, sites = self.trace, NetworkSites(self, self.owners)
        with plain(self.model), self.owners.following(), self.operations, self, sites:
            output = self.forward(*args, **kwargs)
        for x in (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)):
            sources = self.sources.get(x, frozenset())
            trace.output_depends |= bool(sources)
            # a box descends from several output layers; a sum that also holds inner products has no output layer
            products = sources - {TOKEN}
            if len(products) == 1 or not products & trace.consumed:
                trace.heads |= products - trace.consumed - {IMAGE}
        self._pair_norms()
        return output

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if self.operations.in_rule and is_leaf(function) and self.pending:
            self._multiplied(result)
        else:
            operands = [*_tensors(args), *_tensors(kwargs)]
            self._follow(function, operands, args[0] if result is None and operands else result)
        return result

    def _multiplied(self, result: Tensor) -> None:
        """Record a rule's product: its result descends from this product alone, and its operands are consumed."""
        sources = frozenset[str]().union(*(of_operand for _, of_operand in self.pending))
        self.trace.consumed |= sources
        name = self.pending[0][0].product
        self.sources[result] = frozenset({name}) if sources else frozenset()
        self.products[result] = name
        self.pending.clear()

    def _follow(self, function: Any, operands: list[Tensor], results: Any) -> None:
        owner = self.owners.current
        if function is F.batch_norm:
            self.norms[owner] += 1
        for product in filter(None, map(self.products.get, operands)):
            self.readers.setdefault(product, []).append((function, owner))
        sources = frozenset[str]().union(*(self.sources.get(x, frozenset()) for x in operands))
        if sources:
            for x in _tensors(results):
                # what an index or a mask selects does not descend from the scores behind the choice
                self.sources[x] = sources if x.is_floating_point() else frozenset({TOKEN})

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        site, rows = operand.site, operand.rows
        if site.is_activation and not self.activations:
            return x
        if x.is_complex():
            raise DataError(
                f"{site} multiplies complex numbers, and spikes code real ones. Give real inputs, such as torch.view_as_real(x)."
            )
        facts = self.trace.sites.get(site)
        if facts is None:
            shape = x.shape if rows is None else (*x.shape[:-2], rows.of, x.shape[-1])
            facts = self.trace.sites[site] = SiteFacts(site, tuple(shape), varies=site in self.varying)
        if not operand.again:
            facts.calls += 1
            facts.moments = (0, 0.0, 0.0)
        facts.macs += operand.synapses.macs
        sources = self.sources.get(x, frozenset())
        facts.sources |= sources
        if not site.is_activation:
            self.pending.append((site, sources))
        # Observers are not part of the network: tracing their operations would take longer than running them.
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            if not facts.varies:  # once it changes, there is nothing more to find out
                (size, *before), new = facts.moments, kernels.moments(x)
                facts.moments = (size + x.numel(), before[0] + new[0], before[1] + new[1])
            if not facts.varies and (rows is None or rows.stop == rows.of):
                size, *sums = facts.moments
                # means, so that a constant operand is constant for any batch size; all softmax has one mean
                fingerprint = tuple(x.shape[-2:]), *(f"{one / max(size, 1):.9g}" for one in sums)
                facts.varies = facts.fingerprint not in (None, fingerprint)
                facts.fingerprint = fingerprint
            if self.observe is not None:
                self.observe(site, x)
        return x

    def _pair_norms(self) -> None:
        """Pair each convolution with the BatchNorm that is its only reader and can be folded into it."""
        pairs, modules = self.trace.pairs, dict(self.model.named_modules())
        for product, readers in self.readers.items():
            convolution = product.rpartition(":")[0]
            batchnorm = readers[0][1]
            if (
                product == f"{convolution}:conv0"
                and [f for f, _ in readers if getattr(f, "__name__", "") not in INSPECTING] == [F.batch_norm]
                and type(modules[convolution]) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
                and type(modules[batchnorm]) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
            ):
                pairs[convolution] = batchnorm
            else:
                self.trace.unpaired.add(convolution)
        paired = Counter(pairs.values())  # a norm that reads more than its convolutions stays
        self.trace.unpaired |= {conv for conv, norm in pairs.items() if self.norms[norm] != paired[norm]}


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested arguments; torch's tree functions would keep them alive in a reference cycle."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def discover(model: nn.Module, *batches: Any) -> Trace:
    """Trace one forward per batch; nothing in the network changes."""
    tracers = [Tracer(model) for _ in batches]
    with torch.no_grad():
        for tracer, batch in zip(tracers, batches, strict=True):
            call(tracer.run, inputs_of(model, batch))
    return joined(*(tracer.trace for tracer in tracers))


def joined(*parts: Trace) -> Trace:
    """One trace of all batches; sites stand by the batch that reached them first, and within a batch as they ran."""
    whole = Trace()
    for facts in sorted((f for part in parts for f in part.sites.values()), key=lambda facts: facts.first):
        before = whole.sites.setdefault(facts.site, facts)
        if before is not facts:
            whole.sites[facts.site] = replace(
                before,
                calls=before.calls + facts.calls,
                forwards=before.forwards + facts.forwards,
                macs=before.macs + facts.macs,
                sources=before.sources | facts.sources,
                varies=before.varies or facts.varies or before.fingerprint != facts.fingerprint,
            )
    for part in parts:
        whole.uncovered.update(part.uncovered)
        for convolution, batchnorm in part.pairs.items():
            if whole.pairs.setdefault(convolution, batchnorm) != batchnorm:
                whole.unpaired.add(convolution)
        whole.unpaired |= part.unpaired
        whole.consumed |= part.consumed
        whole.heads |= part.heads
        whole.forwards += part.forwards
        whole.output_depends |= part.output_depends
    whole.heads -= whole.consumed
    return whole
