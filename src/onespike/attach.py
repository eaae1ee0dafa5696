"""Neurons in their places: each owner of sites keeps its neurons as a child and visits them in its own forward.

Class, module tree and weight names of the network stay as they are; `detach_` gives back the very same network.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial, update_wrapper
from typing import Any

from torch import Tensor, nn

from onespike.errors import ConversionError
from onespike.neurons import Neuron
from onespike.plain import PLAIN
from onespike.sites import Rows, Site, Sites, is_activation
from onespike.synapses import Synapses
from onespike.timesteps import Clock

Meter = Callable[..., Tensor]
"""`meter(neurons, key, x, synapses)`, and with `rows` after these for one that is marked `by_rows`."""


UNRULED = "excluded, no rule reaches it"
"""The reason of a product that is listed by its operation, since none of its operands can be visited."""


def by_rows(meter: Meter) -> Meter:
    """Mark a meter that takes attention probabilities in blocks of rows; others are given them whole."""
    meter.by_rows = True  # type: ignore[attr-defined]
    return meter


class Analog(nn.Module):
    """A site that does not spike, and the reason.

    Args:
        reason: why.
        macs: for one input, of a product that no rule reaches; None for an operand that is visited.
    """

    def __init__(self, reason: str, macs: float | None = None) -> None:
        super().__init__()
        self.reason, self.macs = reason, macs

    def forward(self, x: Tensor) -> Tensor:
        return x

    def extra_repr(self) -> str:
        return f"{self.reason} ({self.macs:.4g} MACs an input)" if self.macs else self.reason


class Neurons(nn.ModuleDict):
    """The neurons (and analog sites) of one owner, by key."""

    meter: Meter | None = None
    clock: Clock | None = None
    weights = "as they were"
    """For integer inference `rounded`, or `integers` where their product fires by itself."""

    def __init__(self, owner: str) -> None:
        super().__init__()
        self.owner = owner
        self.roles: dict[str, str] = {}
        self.calls: dict[str, float] = {}

    def forward(self, x: Tensor) -> Tensor:
        """What passes as it is: an owner that runs all its children in turn (`nn.Sequential`) runs this one too."""
        return x

    @property
    def by_rows(self) -> bool:
        """Whether an operand may come in blocks. Over several steps a membrane keeps all of it anyway."""
        return self.clock is None and (self.meter is None or getattr(self.meter, "by_rows", False))

    def visit(self, key: str, x: Tensor, count: Callable[[], Synapses], rows: Rows | None = None) -> Tensor:
        """Fire the neuron at `key`; a meter, while there is one, does it instead and keeps count."""
        if key not in self:
            # a parameter that a transformation passes on as a plain tensor; a ReLU that stays as it is
            if key.endswith("_weight") or is_activation(key):
                return x
            raise ConversionError(
                f"the product {key.rpartition('_')[0]} ran in {self.owner or 'the network'}, and no calibration "
                "input had reached it. Calibrate with inputs that take the same path."
            )
        if self.meter is not None:
            return self.meter(self, key, x, count) if rows is None else self.meter(self, key, x, count, rows)
        return self.value(key, x, rows)

    def alone(self, key: str) -> Neuron | None:
        """The neuron at a key if it is all that the operand meets: no meter, no membrane, no hook of a user."""
        site = self[key] if key in self and self.meter is None and self.clock is None else None
        if not isinstance(site, Neuron) or site._forward_hooks or site._forward_pre_hooks:
            return None
        return site

    def at(self, key: str, rows: Rows | None = None) -> nn.Module:
        """What stands at a site, for some rows of its input."""
        site = self[key]
        return site.cut(rows.cut) if rows is not None and isinstance(site, Neuron) else site

    def value(self, key: str, x: Tensor, rows: Rows | None = None) -> Tensor:
        """What the site passes on for this input."""
        neuron = self.at(key, rows)
        if self.clock is not None and isinstance(neuron, Neuron):
            return self.clock.fire(self.owner, key, neuron, x)[1]
        value: Tensor = neuron(x)
        return value

    def fire(self, key: str, neuron: Neuron, x: Tensor) -> tuple[Tensor, Tensor]:
        """The signed counts of one step, for those who count them, and the value passed on."""
        if self.clock is not None:
            return self.clock.fire(self.owner, key, neuron, x)
        fired = neuron.counts(x)
        return fired, neuron.decode(fired, x.dtype)

    @property
    def now(self) -> int:
        """The timestep that is running, from 1."""
        return 1 if self.clock is None else self.clock.now


def _spiking_forward(module: Any, inner: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    with Sites(module.neurons.visit, module.neurons.by_rows, module.neurons.alone):
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
    """With the name and signature of what it replaces: transformers and torch.export decide by it what to pass."""
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
    """Undo `attach_`: another wrapper that was there before comes back."""
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


def neurons(model: nn.Module) -> Iterator[tuple[Site, Neuron | Analog]]:
    """All sites of a converted network with what stands there, in the order of the module tree."""
    for module in model.modules():
        if isinstance(module, Neurons):
            for key, neuron in module.items():
                if isinstance(neuron, (Neuron, Analog)):
                    yield Site(module.owner, key), neuron
