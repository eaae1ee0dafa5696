"""A traced forward: which sites a network has, what flows into them, and which products no rule reaches.

Each tensor carries the names of the products that it descends from (and whether it descends from the input), so
that the first products, the classifier head and operands that play a weight are found in any architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from onespike import kernels
from onespike.operations import Operations, Owners
from onespike.plain import plain
from onespike.sites import LEAVES, RULES, Rows, Site, is_activation, numbered
from onespike.synapses import Synapses

IMAGE, TOKEN = "input", "token"
"""Where a tensor without a product behind it comes from: a floating-point input, or integers (tokens, indices)."""


@dataclass
class SiteFacts:
    """What a traced forward knows of one site."""

    site: Site
    shape: tuple[int, ...]
    first: int = 0
    calls: int = 0
    forwards: int = 0
    latest: int = -1
    macs: int = 0
    sources: frozenset[str] = frozenset()
    moments: tuple[int, float, float] = (0, 0.0, 0.0)
    """Of the visit that is going on, over the blocks so far: elements, their sum and that of their squares."""
    fingerprint: tuple[Any, ...] | None = None
    varies: bool = False


@dataclass
class Trace:
    """The facts of all sites, in the order of execution, and of the products that no rule reaches."""

    sites: dict[Site, SiteFacts] = field(default_factory=dict)
    uncovered: dict[tuple[str, str], int] = field(default_factory=dict)
    consumed: set[str] = field(default_factory=set)
    heads: set[str] = field(default_factory=set)
    pairs: dict[str, str] = field(default_factory=dict)
    unpaired: set[str] = field(default_factory=set)
    forwards: int = 0
    output_depends: bool = False

    @property
    def folds(self) -> dict[str, str]:
        """Convolution → the BatchNorm that was its only reader in every forward."""
        return {
            convolution: norm for convolution, norm in self.pairs.items() if convolution not in self.unpaired
        }

    def role(self, site: Site) -> str:
        """`activation`, or why this operand is special: `weight`, `constant`, `input`, `head`."""
        facts = self.sites[site]
        fixed = [f for f in self.sites.values() if f.site.product == site.product and self._fixed(f)]
        if self._fixed(facts):
            others = sum(f.site.product == site.product for f in self.sites.values())
            return "weight" if others > len(fixed) else "constant"
        if facts.sources == {IMAGE}:
            return "input"
        return "head" if site.product in self.heads else "activation"

    def _fixed(self, facts: SiteFacts) -> bool:
        """Whether an operand never changes: nothing of the input reaches it, or other inputs left it as it was."""
        if facts.varies or not facts.sources:
            return not facts.varies
        return facts.forwards > 1 and any(other.varies for other in self.sites.values())


Observe = Callable[[Site, Tensor], None]


class _Functions(TorchFunctionMode):
    """Applies the rules, hands operands to the tracer and carries descent from arguments to results."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, tracer = kwargs or {}, self.tracer
        rule = None if tracer.in_rule else RULES.get(function)
        if rule is not None:
            tracer.in_rule = True
            try:
                with self:  # what a rule calls is followed too, but not visited again
                    return rule(tracer, *args, **kwargs)
            finally:
                tracer.in_rule = False
        result = function(*args, **kwargs)
        operands = [*_tensors(args), *_tensors(kwargs)]
        if tracer.in_rule and function in LEAVES and tracer.pending:
            tracer.product(result)
        else:
            tracer.follow(function, operands, args[0] if result is None and operands else result)
        return result


class Tracer:
    """Runs forwards of a network and gathers a `Trace`; `observe(site, x)` sees every operand on the way.

    With `activations` the inputs of ReLUs are sites too.
    """

    by_rows = True

    def __init__(self, model: nn.Module, observe: Observe | None = None, activations: bool = False) -> None:
        self.model, self.observe, self.activations = model, observe, activations
        self.owners = Owners(model)
        self.modules = dict(model.named_modules())
        self.trace = Trace()
        self.in_rule = False
        self.pending: list[tuple[Site, frozenset[str]]] = []
        self.used_by: dict[str, list[tuple[Any, str]]] = {}
        self.norms: list[str] = []

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """One forward; returns the network's output."""
        args, kwargs = tree_map_only(Tensor, self._tagged_input, (args, kwargs))
        operations = Operations(self.owners, lambda: self.in_rule, self.trace.uncovered)
        with plain(self.model), self.owners.following(), operations, _Functions(self):
            output = self.model(*args, **kwargs)
        leaves = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
        for x in leaves:
            sources = _sources(x)
            self.trace.output_depends |= bool(sources)
            # a box descends from several output layers; a sum that also holds inner products has no output layer
            products = sources - {TOKEN}
            if len(products) == 1 or not products & self.trace.consumed:
                self.trace.heads |= products - self.trace.consumed - {IMAGE}
        self.trace.heads -= self.trace.consumed
        self._pair_norms()
        self.trace.forwards += 1
        return output

    def _tagged_input(self, x: Tensor) -> Tensor:
        x = x.detach()
        x._onespike_sources = frozenset({IMAGE if x.is_floating_point() else TOKEN})  # type: ignore[attr-defined]
        return x

    def __call__(
        self, slot: str, x: Tensor, count: Callable[[], Synapses], rows: Rows | None = None
    ) -> Tensor:
        if is_activation(slot) and not self.activations:
            return x
        site = Site(self.owners.current, numbered(self.owners.stack[-1][1], slot, rows))
        facts = self.trace.sites.get(site)
        if facts is None:
            shape = x.shape if rows is None else (*x.shape[:-2], rows.of, x.shape[-1])
            facts = self.trace.sites[site] = SiteFacts(site, tuple(shape), self.trace.forwards)
        if rows is None or not rows.start:
            facts.calls += 1
            facts.moments = (0, 0.0, 0.0)
        facts.forwards += facts.latest != self.trace.forwards
        facts.latest = self.trace.forwards
        facts.macs += count().macs
        facts.sources |= _sources(x)
        if not is_activation(slot):
            self.pending.append((site, _sources(x)))
        # What looks at x is no part of the network: following its operations would take longer than they do.
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            if not facts.varies:  # once it does, there is nothing more to find out
                (size, *before), new = facts.moments, kernels.moments(x)
                facts.moments = (size + x.numel(), before[0] + new[0], before[1] + new[1])
            if not facts.varies and (rows is None or rows.stop == rows.of):
                facts.varies |= facts.fingerprint not in (
                    None,
                    fingerprint := _fingerprint(x, *facts.moments),
                )
                facts.fingerprint = fingerprint
            if self.observe is not None:
                self.observe(site, x)
        return x

    def product(self, result: Tensor) -> None:
        """A rule has multiplied: its result descends from this product alone, its operands are consumed."""
        sources = frozenset[str]().union(*(s for _, s in self.pending))
        self.trace.consumed |= sources
        name = self.pending[0][0].product if self.pending else ""
        result._onespike_sources = frozenset({name}) if sources else frozenset()  # type: ignore[attr-defined]
        result._onespike_product = name  # type: ignore[attr-defined]
        self.pending.clear()

    def follow(self, function: Any, operands: list[Tensor], results: Any) -> None:
        sources = frozenset[str]().union(*map(_sources, operands)) if operands else frozenset[str]()
        if function is F.batch_norm:
            self.norms.append(self.owners.current)
        for x in operands:
            product = getattr(x, "_onespike_product", None)
            if product is not None:
                self.used_by.setdefault(product, []).append((function, self.owners.current))
        if sources:
            for x in _tensors(results):
                # what an index or a mask picks does not descend from the scores that chose it
                x._onespike_sources = sources if x.is_floating_point() else frozenset({TOKEN})  # type: ignore[attr-defined]

    def _pair_norms(self) -> None:
        """A BatchNorm that is the only reader of a convolution can be folded into it."""
        paired: dict[str, str] = {}
        for product, readers in self.used_by.items():
            convolution = Site.parse(product).owner
            batchnorm = readers[0][1]
            if (
                product.endswith(":conv0")
                and [f for f, _ in readers if not _is_property(f)] == [F.batch_norm]
                and type(self.modules[convolution]) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
                and type(self.modules[batchnorm]) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
            ):
                paired[convolution] = batchnorm
            else:
                self.trace.unpaired.add(convolution)
        for convolution, batchnorm in {**self.trace.pairs, **paired}.items():
            reads = list(paired.values()).count(batchnorm)
            if self.norms.count(batchnorm) != reads:  # it also reads something else
                self.trace.unpaired.add(convolution)
            if self.trace.pairs.setdefault(convolution, batchnorm) != batchnorm:
                self.trace.unpaired.add(convolution)
        self.used_by.clear()
        self.norms.clear()


def _fingerprint(x: Tensor, size: int, total: float, square: float) -> tuple[Any, ...]:
    """Means, so that what is the same for every input is so for batches of any size; all softmax has one mean."""
    size = max(size, 1)
    return tuple(x.shape[-2:]), f"{total / size:.9g}", f"{square / size:.9g}"


def _is_property(function: Any) -> bool:
    """Whether a function only looks at a tensor; what `to` has really moved is another one."""
    return getattr(function, "__name__", "") in {"__get__", "dim", "size", "is_floating_point", "numel", "to"}


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested arguments, without torch's tree functions, which keep them alive in a reference cycle."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def _sources(x: Tensor) -> frozenset[str]:
    sources: frozenset[str] = getattr(x, "_onespike_sources", frozenset())
    return sources


def call(model: Callable[..., Any], batch: Any) -> Any:
    """Give a batch to a network: a mapping by name, a tuple or list by position, anything else as one input."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, (tuple, list)):
        return model(*batch)
    return model(batch)


def logits(output: Any) -> Any:
    """A classifier's scores: its output, or what its output holds under that name, as in transformers."""
    return getattr(output, "logits", output)


def samples(batch: Any) -> int:
    """How many inputs a batch holds: rows of its first tensor, or members of its first argument if that is a list."""
    first = next(iter(batch.values()), None) if isinstance(batch, Mapping) else batch
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else first
    if isinstance(first, (tuple, list)):
        return len(first)
    tensor = next((x for x in tree_leaves(batch) if isinstance(x, Tensor)), None)
    return len(tensor) if tensor is not None and tensor.dim() else 1


def discover(model: nn.Module, *batches: Any) -> Trace:
    """Trace one forward for each batch; nothing in the network changes.

    >>> from torch import nn
    >>> trace = discover(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.ones(1, 2))
    >>> [f"{site} {trace.role(site)}" for site in trace.sites]
    ['0:linear0_input input', '2:linear0_input head']
    """
    tracer = Tracer(model)
    with torch.no_grad():
        for batch in batches:
            call(tracer.run, batch)
    return tracer.trace
