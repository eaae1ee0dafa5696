"""The neurons of one owner, and the visits in its forward that let them fire."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike import kernels
from onespike.conversion.timesteps import Clock
from onespike.errors import ConversionError
from onespike.neurons import Neuron
from onespike.neurons.base import straight_through, wants_gradient
from onespike.sites import Operand, Places, Product, Sites, Visit
from onespike.sites.attention import attention_sites
from onespike.sites.site import Rows, Site


class Analog(nn.Module):
    """A site that does not spike, and the reason; with the MACs per input of a product that no rule reaches."""

    site: Site | None = None
    role: str = ""
    calls: float = 1

    def __init__(self, reason: str, macs: float | None = None) -> None:
        super().__init__()
        self.reason, self.macs = reason, macs

    def forward(self, x: Tensor) -> Tensor:
        return x

    def extra_repr(self) -> str:
        return f"{self.reason} ({self.macs:.4g} MACs per input)" if self.macs else self.reason


def is_spiking(place: object) -> bool:
    """Return whether what stands at a site sends spikes: no analog site, and no edge in 8 bits."""
    return isinstance(place, Neuron) and not place.dense


class Neurons(Places):
    """The neurons (and analog sites) of one owner, by key."""

    clock: Clock | None = None
    lone_product = ""  # the site of the owner's only product, if its forward does nothing else
    # in integer inference: `rounded`, or `integers` where their product fires its operand
    weights = "as they were"
    apart = False  # in integer inference: products in float take one input at a time

    def __init__(self, owner: str) -> None:
        super().__init__()
        self.owner = owner
        # on integers, by key: children of the owner that fire their operand
        self.products: dict[str, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the input: an owner that runs all its children in turn (`nn.Sequential`) runs this one too."""
        return x

    @property
    def timestep(self) -> int:
        return 1 if self.clock is None else self.clock.now

    def lone_neuron(self, key: str) -> Neuron | None:
        """Return the neuron at a key if nothing else sees the operand: no visitor, no membrane, no user hook."""
        site = self._modules.get(key) if self.visitor is None and self.clock is None else None
        if not isinstance(site, Neuron) or site._forward_hooks or site._forward_pre_hooks:
            return None
        return site


def owners_of(model: nn.Module) -> list[Neurons]:
    return [module for module in model.modules() if isinstance(module, Neurons)]


def named_neurons(model: nn.Module) -> Iterator[tuple[Site, Neuron | Analog]]:
    """Yield every site of a converted network with its neuron or analog site, in module-tree order."""
    for place in chain.from_iterable(neurons.values() for neurons in owners_of(model)):
        if isinstance(place, (Neuron, Analog)) and place.site is not None:
            yield place.site, place


class NeuronOperand(Operand):
    """An operand of a converted network."""

    def __init__(self, site: Site, product: Product, rows: Rows | None, neurons: Neurons) -> None:
        role = getattr(neurons[site.key], "role", "")  # what marks a neuron for an export has none
        call, integers = None if neurons.clock is None else 0, neurons.weights == "integers"
        super().__init__(site, product, rows, role, neurons.timestep, call, integers)
        self.neurons = neurons

    def neuron(self) -> Any:
        site, rows = self.neurons[self.site.key], self.rows
        return site if rows is None or not isinstance(site, Neuron) else site.cut(rows.cut)

    def value(self, x: Tensor) -> Tensor:
        neuron = self.neuron()
        if self.neurons.clock is not None and isinstance(neuron, Neuron):
            return self.fire(x)[1]
        value: Tensor = neuron(x)
        return value

    def fire(self, x: Tensor) -> tuple[Tensor, Tensor]:
        neuron, clock = self.neuron(), self.neurons.clock
        current = x.detach()  # firing has no gradient: the gradient passes straight through
        fired, value = neuron.fired(current) if clock is None else clock.fire(self.site, neuron, current)
        self.call = None if clock is None else clock.calls.get(self.site, 1)
        return fired, neuron.straight(value, x)


FIRES = Visit(lambda operand, x: operand.value(x), blockwise=True)
"""The visitor of a converted network that has no other: every neuron fires."""


class NeuronSites(Sites):
    """The forward of one owner of a converted network: its neurons fire the operands, or a visitor sees them."""

    def __init__(self, neurons: Neurons) -> None:
        super().__init__(neurons.visitor or FIRES, neurons.owner)
        self.neurons = neurons

    @property
    def blockwise(self) -> bool:
        # over several steps a membrane keeps an operand whole anyway
        return self.neurons.clock is None and self.visitor.blockwise

    def __call__(self, product: Product, role: str, rows: Rows | None = None) -> Tensor:
        return self._visit(self.numbered(product.operation, role, rows), product, rows)

    def _visit(self, site: Site, product: Product, rows: Rows | None = None) -> Tensor:
        x = product.operands[site.role]
        if site.key in self.neurons:
            return self.visitor.visit(NeuronOperand(site, product, rows, self.neurons), x)
        # a parameter that a transformation passes on as a plain tensor; a ReLU that stays as it is
        if site.role == "weight" or site.is_activation:
            return x
        raise ConversionError(
            f"the product {site.operation}{site.number} ran in {self.owner or 'the network'}, and no calibration "
            "input had reached it. Calibrate with inputs that take the same path."
        )

    def multiply(self, product: Product, bias: Tensor | None) -> Tensor | None:
        """Return the product on integers, or in float apart for each input, if it has that form here."""
        neurons, x, weight = self.neurons, product.operands["input"], product.operands["weight"]
        # torch's attention may multiply by parts of its weight
        if not (neurons.products or neurons.apart) or not isinstance(weight, nn.Parameter):
            return None
        site = Site(self.owner, product.operation, self.calls.get((product.operation, "input"), 0), "input")
        form = neurons.products.get(site.key)
        if form is None:
            if not neurons.apart or torch.compiler.is_compiling() or wants_gradient(x):
                return None
            value = _apart(product, self._visit(site, product), weight, bias)
        elif form.biased is not (bias is not None):  # other modules add a bias of another name
            return None
        else:
            if self.visitor is not FIRES:
                self._visit(site, product)
            neuron = neurons[site.key]
            value = form(x.detach() if wants_gradient(x) else x, neuron)
            if wants_gradient(x):
                value = straight_through(value, product.multiply(neuron(x), weight))
        self.numbered(product.operation, "input", None)
        return value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return attention on integers, or with firing probabilities in one kernel, if nothing else sees them."""
        number = self.calls.get(("matmul", "lhs"), 0)
        names = attention_sites(number)
        if self.visitor is not FIRES or not all(name in self.neurons for name in names):
            return None
        operands, result = (query, key, value), None
        form, neurons = self.neurons.products.get(names[0]), tuple(map(self.neurons.lone_neuron, names))
        if form is not None and None not in neurons and not any(map(wants_gradient, operands)):
            result = form(neurons, operands, _added(mask))
        if result is None:
            result = self._in_one_kernel(names, operands, mask)
        if result is not None:
            self.calls["matmul", "lhs"] = self.calls["matmul", "rhs"] = number + 2
        return result

    def _in_one_kernel(
        self, names: tuple[str, ...], operands: tuple[Tensor, Tensor, Tensor], mask: Tensor | None
    ) -> Tensor | None:
        neuron = self.neurons.lone_neuron(names[2])
        if neuron is None or not neuron.coded or not kernels.can_attend(*operands):
            return None
        code = neuron.code()
        step = code.row_steps()
        if step is None or (step.dim() and step.shape[-1] not in (1, operands[0].shape[-2])):
            return None
        sites = (names[0], names[1], names[3])
        query, key, value = (self.neurons[name](x) for name, x in zip(sites, operands, strict=True))
        return kernels.attend(query, key, value, _added(mask), step, code)


ROWS = 8  # rows that are multiplied together: torch multiplies fewer by other instructions


def _apart(product: Product, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a product in float whose bits do not depend on the size of the batch: input by input, single rows by eight."""
    single = product.operation == "linear" and x.dim() < 3
    batch = x.reshape(-1, x.shape[-1]) if single else x
    parts = F.pad(batch, (0, 0, 0, -len(batch) % ROWS)).split(ROWS) if single else batch.split(1)
    with torch._C.DisableTorchFunction():
        value = torch.cat([product.multiply(part, weight) for part in parts])[: len(batch)]
    value = value.view(*x.shape[:-1], -1) if single else value
    return value if bias is None else value + bias.view(-1, *[1] * (weight.dim() - 2))


def _added(mask: Tensor | None) -> Tensor | None:
    """Return a mask as what is added to scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, float("-inf"))
