"""Neurons at their sites: each owner keeps its neurons as a child and visits them in its forward.

The network's class, module tree and weight names do not change; `detach_` restores exactly the same network.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial, update_wrapper
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike import kernels
from onespike.conversion.timesteps import Clock
from onespike.errors import ConversionError
from onespike.neurons import Neuron
from onespike.neurons.gradient import straight_through, wants_gradient
from onespike.sites import Coverage, Operand, Places, Product, Site, Sites, Visitor
from onespike.sites.attention import attention_sites
from onespike.sites.unfused import PLAIN
from onespike.sites.visitor import Attend
from onespike.spikes import SpikeCode

UNRULED = "excluded, no rule reaches it"
"""The reason for a product listed by its operation because none of its operands can be visited."""


class Analog(nn.Module):
    """A site that does not spike, and the reason.

    Args:
        reason: why.
        macs: MACs per input of a product that no rule reaches; None for an operand that is visited.
    """

    def __init__(self, reason: str, macs: float | None = None) -> None:
        super().__init__()
        self.reason, self.macs = reason, macs

    def forward(self, x: Tensor) -> Tensor:
        return x

    def extra_repr(self) -> str:
        return f"{self.reason} ({self.macs:.4g} MACs per input)" if self.macs else self.reason


class Neurons(Places, Visitor):
    """The neurons (and analog sites) of one owner, by key; they see the operands unless another visitor does."""

    clock: Clock | None = None
    weights = "as they were"
    """For integer inference: `rounded`, or `integers` where their product fires its operand."""

    apart = False
    """For integer inference: products in float take one input at a time."""

    lone_product = ""
    """The site of the owner's only product, if its forward does nothing else."""

    def __init__(self, owner: str) -> None:
        super().__init__()
        self.owner = owner
        self.roles: dict[str, str] = {}
        self.calls: dict[str, float] = {}
        self.products: dict[str, Any] = {}
        """Integer products by key, children of the owner; they fire their operand."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input: an owner that runs all its children in turn (`nn.Sequential`) runs this one too."""
        return x

    @property
    def blockwise(self) -> bool:  # type: ignore[override]
        """Return whether an operand may come in blocks. Over several steps a membrane keeps it whole anyway."""
        return self.clock is None and (self.visitor is None or self.visitor.blockwise)

    @property
    def coverage(self) -> Coverage | None:  # type: ignore[override]
        """Return the visitor's coverage, while there is a visitor."""
        return None if self.visitor is None else self.visitor.coverage

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        """Fire the neuron at a site; a visitor, while there is one, sees the operand instead."""
        site = operand.site
        if site.key not in self:
            # a parameter that a transformation passes on as a plain tensor; a ReLU that stays as it is
            if site.role == "weight" or site.is_activation:
                return x
            raise ConversionError(
                f"the product {site.operation}{site.number} ran in {self.owner or 'the network'}, and no calibration "
                "input had reached it. Calibrate with inputs that take the same path."
            )
        return self.value(operand, x) if self.visitor is None else self.visitor.visit(operand, x)

    def whole(self, operand: Operand, bias: Tensor | None) -> Tensor | None:
        """Return the integer product at a site, if any; a visitor sees the operand that it fires."""
        key, x = operand.site.key, operand.product.operands[operand.site.role]
        product, weight = self.products.get(key), operand.product.operands["weight"]
        # torch's attention may multiply by parts of its weight, other modules add a bias of another name
        if not isinstance(weight, nn.Parameter) or (
            product is not None and product.biased is not (bias is not None)
        ):
            return None
        if product is None:
            whole = not self.apart or torch.compiler.is_compiling() or wants_gradient(x)
            return None if whole else _apart(operand.product, self.visit(operand, x), weight, bias)
        neuron = self[key]
        if self.visitor is not None:
            self.visitor.visit(operand, x)
        if not wants_gradient(x):
            value: Tensor = product(x, neuron)
            return value
        through = operand.product.multiply(neuron(x), weight)
        return straight_through(product(x.detach(), neuron), through)

    def whole_attention(
        self, number: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor | None:
        """Return attention on integers if it has that form here and there is no visitor."""
        names = attention_sites(number)
        form = self.products.get(names[0])
        neurons = () if form is None else tuple(self.lone_neuron(name) for name in names)
        if form is None or None in neurons or any(map(wants_gradient, (query, key, value))):
            return None
        result: Tensor | None = form(neurons, (query, key, value), _added(mask))
        return result

    def attention(self, site: Site, query: Tensor, key: Tensor, value: Tensor) -> Attend | None:
        """Return attention that fires its probabilities in one kernel, if it knows the neuron and no one else sees them."""
        if not kernels.can_attend(query, key, value):
            return None
        neuron = self.lone_neuron(site.key)
        code = neuron.code() if neuron is not None and neuron.coded else None
        step = None if code is None else code.row_steps()
        if code is None or step is None or (step.dim() > 1 and step.shape[-2] not in (1, query.shape[-2])):
            return None
        return partial(_attend, step[..., 0] if step.dim() else step, code)

    def lone_neuron(self, key: str) -> Neuron | None:
        """Return the neuron at a key if nothing else sees the operand: no visitor, no membrane, no user hook."""
        site = self._modules.get(key) if self.visitor is None and self.clock is None else None
        if not isinstance(site, Neuron) or site._forward_hooks or site._forward_pre_hooks:
            return None
        return site

    def standing(self, operand: Operand, x: Tensor | None = None) -> nn.Module:
        """Return what is at a site, for the visited rows of its input; with x, as that input settles it."""
        site, rows = self[operand.site.key], operand.rows
        if not isinstance(site, Neuron):
            return site
        site = site if rows is None else site.cut(rows.cut)
        return site if x is None else site.settled(x)

    def value(self, operand: Operand, x: Tensor) -> Tensor:
        """Return what the site passes on for this input, regardless of visitors."""
        neuron = self.standing(operand)
        if self.clock is not None and isinstance(neuron, Neuron):
            return self.fire(operand, x)[1]
        value: Tensor = neuron(x)
        return value

    def fire(self, operand: Operand, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signed counts of one step, for counting, and the value passed on."""
        neuron: Any = self.standing(operand)
        current = x.detach()  # firing has no gradient: the gradient passes straight through
        if self.clock is not None:
            fired, value = self.clock.fire(self.owner, operand.site.key, neuron, current)
        else:
            fired, value = neuron.fired(current)
        return fired, neuron.straight(value, x)

    @property
    def now(self) -> int:
        """Return the current timestep, from 1."""
        return 1 if self.clock is None else self.clock.now


ROWS = 8
"""Rows that are multiplied together: torch multiplies fewer by other instructions."""


def _apart(product: Product, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a product in float whose bits do not depend on the size of the batch: input by input, single rows by eight."""
    single = product.operation == "linear" and x.dim() < 3
    batch = x.reshape(-1, x.shape[-1]) if single else x
    parts = F.pad(batch, (0, 0, 0, -len(batch) % ROWS)).split(ROWS) if single else batch.split(1)
    with torch._C.DisableTorchFunction():
        value = torch.cat([product.multiply(part, weight) for part in parts])[: len(batch)]
    value = value.view(*x.shape[:-1], -1) if single else value
    return value if bias is None else value + bias.view(-1, *[1] * (weight.dim() - 2))


def _attend(
    step: Tensor, code: SpikeCode, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    return kernels.attend(query, key, value, _added(mask), step, code)


def _added(mask: Tensor | None) -> Tensor | None:
    """Return a mask as what is added to scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, float("-inf"))


LONE_PRODUCTS = {
    nn.Linear.forward: "linear0_input",
    nn.Conv1d.forward: "conv0_input",
    nn.Conv2d.forward: "conv0_input",
    nn.Conv3d.forward: "conv0_input",
}
"""Forwards that are one product and nothing else, with the site of that product."""


def lone_product(module: Any) -> str:
    """Return the site of a module's only product, known without tracing its functions; "" for other modules."""
    only = LONE_PRODUCTS.get(type(module).forward, "")
    own = isinstance(module._parameters.get("weight"), nn.Parameter)  # not a computed weight
    return only if own and getattr(module, "padding_mode", "zeros") == "zeros" else ""


def _spiking_forward(module: Any, inner: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    neurons = module._modules["neurons"]
    if neurons.lone_product and inner is None and len(args) == 1 and not kwargs:
        neuron = None if neurons.products or neurons.apart else neurons.lone_neuron(neurons.lone_product)
        if neuron is not None and isinstance(args[0], Tensor) and args[0].dim() >= module.weight.dim() > 1:
            with torch._C.DisableTorchFunction():  # an enclosing owner must not visit this product
                return type(module).forward(module, neuron.forward(args[0]))
    with Sites(neurons, neurons.owner, neurons):
        if inner is None:
            return type(module).forward(module, *args, **kwargs)
        return inner(*args, **kwargs)


def _plain_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
    return PLAIN[type(module).forward](module, *args, **kwargs)


def _stepped_forward(
    module: Any, inner: Callable[..., Any] | None, clock: Clock, *args: Any, **kwargs: Any
) -> Any:
    return clock.run(inner or partial(type(module).forward, module), *args, **kwargs)


def _disguised(forward: Any, module: Any) -> Any:
    """Give a forward the name and signature of the one it replaces: transformers and torch.export read them."""
    signature = inspect.signature(module.forward)
    update_wrapper(forward, module.__dict__.get("forward") or type(module).forward)
    forward.__signature__ = signature
    return forward


def attach_(model: nn.Module, plan: Mapping[str, Neurons], steps: int = 1) -> None:
    """Give each owner in the plan its neurons, and torch's fused attention modules their plain definitions.

    With more than one step the network's own forward runs that many passes.
    """
    for name, module in model.named_modules():
        own = module.__dict__.get("forward")
        fused = own is None and type(module).forward in PLAIN
        inner = partial(_plain_forward, module) if fused else own
        if name in plan:
            module.neurons = plan[name]
            plan[name].lone_product = lone_product(module) if own is None else ""
            forward: Any = partial(_spiking_forward, module, inner)
        elif fused:
            forward = inner
        else:
            continue
        module.forward = _disguised(forward, module)
    if steps > 1:
        clock, own = Clock(steps), model.__dict__.get("forward")
        for of_owner in plan.values():
            of_owner.clock = clock
        model.forward = _disguised(partial(_stepped_forward, model, own, clock), model)


def detach_(model: nn.Module) -> None:
    """Undo `attach_`; a wrapper that was there before comes back."""
    for module in model.modules():
        forward: Any = module.__dict__.get("forward")
        if getattr(forward, "func", None) is _stepped_forward:
            del module.forward
            forward = forward.args[1]
            if forward is not None:
                module.forward = forward
        function = getattr(forward, "func", None)
        if function is _spiking_forward:
            inner = forward.args[1]
            del module.forward, module.neurons
            if inner is not None and getattr(inner, "func", None) is not _plain_forward:
                module.forward = inner
        elif function is _plain_forward:
            del module.forward


def named_neurons(model: nn.Module) -> Iterator[tuple[Site, Neuron | Analog]]:
    """Yield every site of a converted network with its neuron or analog site, in module-tree order."""
    for module in model.modules():
        if isinstance(module, Neurons):
            for key, neuron in module.items():
                if isinstance(neuron, (Neuron, Analog)):
                    yield Site.of(module.owner, key), neuron
