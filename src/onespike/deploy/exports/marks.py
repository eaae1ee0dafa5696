"""A network as a graph in which every act of a site is one named operation.

`marked` puts markers where neurons and integer products stand, and `torch.export` writes down what runs: the operations
of `operations.py`, and between them torch's own functions. Every format but `pt2` is written from this graph.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from onespike.conversion.firing import Neurons, named_neurons
from onespike.conversion.network import is_converted, steps_of
from onespike.deploy.exports.operations import ZERO, conv, decode, fire, linear, row_gain
from onespike.deploy.integer import optimize
from onespike.deploy.products import IntegerConvolution, IntegerLinear, Populations
from onespike.errors import UsageError
from onespike.neurons import Neuron
from onespike.runtime.batches import call
from onespike.runtime.forward import evaluating
from onespike.sites import Operand, Visit, visiting
from onespike.spikes import SpikeCode


def code_of(neuron: Neuron, site: str) -> SpikeCode:
    """Return the neuron's code, if the marks know it."""
    code = neuron.code()
    if not neuron.coded or not code.shifts:
        raise UsageError(
            f"export: the neuron '{neuron.name}' at {site} fires by a rule of its own, which no format but pt2 can "
            "write. Convert with neuron='sfn', or export with format='pt2'."
        )
    return code


class Site(nn.Module):
    """Replace a neuron: fire and decode by name, and keep its counts."""

    gain: Tensor | None

    def __init__(self, name: str, neuron: Neuron, log: list[tuple[str, Tensor]]) -> None:
        super().__init__()
        self.name, self.log, code = name, log, code_of(neuron, name)
        self.sides, self.function = code.sides, code.function
        up, down = code.units()
        # a channel that is off divides by infinity and multiplies by 0
        steps = (torch.where(side > 0, side, torch.inf) for side in (up, down))
        for part, value in zip(
            ("positive", "negative", "up", "down", "center", "gain", "offset", "typical"),
            (*steps, up, down, code.center, code.gain, code.offset, code.typical),
            strict=True,
        ):
            self.register_buffer(part, None if value is None else value.detach())

    def fire(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The counts, and the gains of their rows."""
        x, gain, function = x.float(), self.gain, self.function
        if self.typical is not None:
            gain = row_gain(x, self.typical, self.center, self.gain)
        fired: Tensor = fire(
            x, self.positive, self.negative, self.center, gain, self.sides,
            list(function.levels), list(function.bounds), self.name,
        )  # fmt: skip
        self.log.append((self.name, fired))
        return fired, gain

    def counts(self, x: Tensor) -> Tensor:
        return self.fire(x)[0]

    def forward(self, x: Tensor) -> Tensor:
        counts, gain = self.fire(x)
        value: Tensor = decode(counts, self.up, self.down, gain, self.offset, self.sides, self.name)
        return value.to(x.dtype)


class Product(nn.Module):
    """Replace an integer product: the operations of its one part, or of two populations."""

    def __init__(self, site: Site, form: nn.Module, size: tuple[int, ...], unsigned: bool) -> None:
        super().__init__()
        parts: tuple[Any, ...] = (form.first, form.second) if isinstance(form, Populations) else (form,)
        self.facts: list[tuple[int, bool, str]] = []
        for i, part in enumerate(parts):
            if not isinstance(part, (IntegerLinear, IntegerConvolution)) or not part.fits:
                raise UsageError(
                    f"export: the sums at {site.name} do not fit into 32 bits. Convert with fewer levels, or with "
                    "a larger scale."
                )
            bias = part.constants(size) if isinstance(part, IntegerConvolution) else part.bias
            if bias is not None and all(n == 1 for n in bias.shape[1:]):
                bias = bias.flatten()
            up, down = part.times_up, part.times_down
            most = int(site.function.levels[-1] * torch.maximum(up, down).max())
            self.facts.append((most, site.sides != "positive", site.name))
            weight = (part.weight.int() + ZERO).to(torch.uint8) if unsigned else part.weight
            once = bool((up == 1).all() and (down == 1).all())
            for name, value in (
                ("weight", weight), ("scale", part.scale), ("bias", bias),
                ("up", None if once else up), ("down", None if once else down),
            ):  # fmt: skip
                self.register_buffer(f"{name}{i}", value)
        self.parts, self.biased = parts, form.biased

    def forward(self, x: Tensor, site: Site) -> Tensor:
        counts, gain = site.fire(x)
        values = []
        for i, part in enumerate(self.parts):
            tensors = [getattr(self, f"{name}{i}") for name in ("weight", "scale", "bias", "up", "down")]
            if isinstance(part, IntegerLinear):
                values.append(linear(counts, *tensors, gain, *self.facts[i]))
            else:
                values.append(conv(counts, *tensors, *_geometry(part), part.groups, *self.facts[i]))
        value: Tensor = values[0] if len(values) == 1 else values[0] + values[1]
        return value


def _geometry(part: IntegerConvolution) -> tuple[list[int], list[int], list[int]]:
    padding = part.padding
    if isinstance(padding, str):
        spans = [d * (k - 1) for d, k in zip(part.dilation, part.weight.shape[2:], strict=True)]
        if padding == "same" and any(span % 2 for span in spans):
            raise UsageError(
                "export: a convolution pads one side more than the other (padding='same' with an even kernel). "
                "Pad in a layer of its own."
            )
        padding = [0 if padding == "valid" else span // 2 for span in spans]
    return list(part.stride), list(padding), list(part.dilation)


class Marked(nn.Module):
    """A network whose forward also returns the counts of every site, in firing order."""

    def __init__(self, network: nn.Module, log: list[tuple[str, Tensor]]) -> None:
        super().__init__()
        self.network, self.log = network, log
        self.sites: list[str] = []
        self.outputs: list[str] = []

    def forward(self, *args: Any, **kwargs: Any) -> tuple[list[Tensor], list[Tensor]]:
        self.log.clear()
        output = self.network(*args, **kwargs)
        leaves, _ = tree_flatten(output)
        names, kept = names_of(output)
        if not self.sites:  # an attribute that changes during an export would be changed back
            self.outputs, self.sites = names, [site for site, _ in self.log]
        counts = [fired for _, fired in self.log]
        self.log.clear()
        return [leaves[i] for i in kept], counts


def names_of(output: Any) -> tuple[list[str], list[int]]:
    """Return the names of an output's tensors, and which of its leaves they are.

    >>> names_of({"scores": torch.zeros(1), "extra": None, "boxes": torch.zeros(1)})
    (['scores', 'boxes'], [0, 2])
    >>> names_of(torch.zeros(1)), names_of([torch.zeros(1), torch.zeros(1)])
    ((['output'], [0]), (['output0', 'output1'], [0, 1]))
    """
    from torch.utils._pytree import keystr, tree_flatten_with_path

    found = [
        (keystr(path), i)
        for i, (path, leaf) in enumerate(tree_flatten_with_path(output)[0])
        if isinstance(leaf, Tensor)
    ]
    names = ["".join(c if c.isalnum() or c == "_" else " " for c in path).split() for path, _ in found]
    joined = ["_".join(words) or "output" for words in names]
    return [f"output{name}" if name.isdecimal() else name for name in joined], [i for _, i in found]


def check(snn: nn.Module) -> None:
    """Refuse what no format can write."""
    if not is_converted(snn):
        raise UsageError("export: this network has no neurons. Convert it first.")
    if steps_of(snn) > 1:
        raise UsageError(
            f"export: this network runs {steps_of(snn)} timesteps. Convert with steps=1, which is what formats know."
        )
    if any(parameter.device.type != "cpu" for parameter in snn.parameters()):
        raise UsageError("export: the network must be on the CPU. Use snn.cpu().")


def marked(snn: nn.Module, batch: Any, *, integers: bool = False, unsigned: bool = False) -> Marked:
    """Return a copy of a network with markers in place of its neurons and, with `integers`, of its integer products.

    Weights are int8, or `unsigned` with their zero at 128.
    """
    check(snn)
    for site, neuron in named_neurons(snn):
        if isinstance(neuron, Neuron):
            code_of(neuron, str(site))
    sizes = _sizes(snn, batch) if integers else {}
    network = optimize(snn, integer_units=True) if integers else copy.deepcopy(snn)
    log: list[tuple[str, Tensor]] = []
    for module in network.modules():
        owner: Any = module._modules.get("neurons")
        if not isinstance(owner, Neurons):
            continue
        places: dict[str, Any] = owner._modules
        for key, neuron in list(places.items()):
            if isinstance(neuron, Neuron):
                places[key] = Site(f"{owner.owner}:{key}", neuron, log)
        forms = {key: form for key, form in owner.products.items() if key.endswith("_input")}
        made = {
            key: Product(places[key], form, sizes.get(f"{owner.owner}:{key}", ()), unsigned)
            for key, form in forms.items()
        }
        owner.products = made
        for key in forms:
            module._modules[f"integer_{key}"] = made[key]
        for name in [name for name in module._modules if name.startswith("integer_matmul")]:
            del module._modules[name]
        module._modules.pop("folded", None)
    result = Marked(network.eval(), log)
    with torch.no_grad():
        call(result, batch)  # finds the names of outputs and sites
    return result


def _sizes(snn: nn.Module, batch: Any) -> dict[str, tuple[int, ...]]:
    """Return the size of the image at each convolution."""
    seen: dict[str, tuple[int, ...]] = {}

    def look(operand: Operand, x: Tensor) -> Tensor:
        if operand.site.operation == "conv":
            seen[str(operand.site)] = tuple(x.shape[2:])
        return operand.value(x)

    with evaluating(snn), visiting(snn, Visit(look)):
        call(snn, batch)
    return seen
