"""Neurons at their sites: each owner keeps its neurons as a child and visits them in its forward.

The network's class, module tree and weight names do not change; `detach_` restores exactly the same network.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn

from onespike.conversion.firing import Neurons, NeuronSites
from onespike.conversion.timesteps import Clock
from onespike.sites.unfused import PLAIN

UNRULED = "excluded, no rule reaches it"
"""The reason for a product listed by its operation because none of its operands can be visited."""

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
    trained = isinstance(module._parameters.get("weight"), nn.Parameter)  # not a computed weight
    return only if trained and getattr(module, "padding_mode", "zeros") == "zeros" else ""


def _spiking_forward(module: Any, inner: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    neurons = module._modules["neurons"]
    if neurons.lone_product and inner is None and len(args) == 1 and not kwargs:
        neuron = None if neurons.products or neurons.apart else neurons.lone_neuron(neurons.lone_product)
        if neuron is not None and isinstance(args[0], Tensor) and args[0].dim() >= module.weight.dim() > 1:
            with torch._C.DisableTorchFunction():  # an enclosing owner must not visit this product
                return type(module).forward(module, neuron.forward(args[0]))
    with NeuronSites(neurons):
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


def attach_(model: nn.Module, plan: Mapping[str, Neurons], timesteps: int = 1) -> None:
    """Give each owner in the plan its neurons, and torch's fused attention modules their plain definitions.

    With more than one timestep the network's own forward runs that many passes.
    """
    for name, module in model.named_modules():
        wrapper = module.__dict__.get("forward")
        fused = wrapper is None and type(module).forward in PLAIN
        inner = partial(_plain_forward, module) if fused else wrapper
        if name in plan:
            module.neurons = plan[name]
            plan[name].lone_product = lone_product(module) if wrapper is None else ""
            forward: Any = partial(_spiking_forward, module, inner)
        elif fused:
            forward = inner
        else:
            continue
        module.forward = _disguised(forward, module)
    if timesteps > 1:
        clock, wrapper = Clock(timesteps), model.__dict__.get("forward")
        for of_owner in plan.values():
            of_owner.clock = clock
        model.forward = _disguised(partial(_stepped_forward, model, wrapper, clock), model)


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
