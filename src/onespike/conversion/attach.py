"""Neurons at their sites: each owner keeps its neurons as a child and visits them in its forward.

The network's class, module tree and weight names do not change; `detach_` restores exactly the same network.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn

from onespike.conversion.firing import Neurons, NeuronSites
from onespike.conversion.timesteps import Clock
from onespike.neurons.base import wants_gradient
from onespike.sites.unfused import PLAIN

_CONVOLUTIONS = (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
LONE_PRODUCTS = {nn.Linear.forward: "linear0_input", **dict.fromkeys(_CONVOLUTIONS, "conv0_input")}
"""Forwards that are one product and nothing else, with the site of that product."""


def lone_product(module: Any) -> str:
    """Return the site of a module's only product, known without tracing its functions; "" for other modules."""
    only = LONE_PRODUCTS.get(type(module).forward, "")
    trained = isinstance(module._parameters.get("weight"), nn.Parameter)  # not a computed weight
    return only if trained and getattr(module, "padding_mode", "zeros") == "zeros" else ""


def _spiking_forward(module: Any, before: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    neurons = module._modules["neurons"]
    if neurons.lone_product and len(args) == 1 and not kwargs:
        [x], neuron = args, neurons.lone_neuron(neurons.lone_product)
        integers = neurons.products.get(neurons.lone_product)
        with torch._C.DisableTorchFunction():  # an enclosing owner must not visit this product
            if neuron is not None and integers is not None and not wants_gradient(x):
                return integers(x, neuron)
            fits = isinstance(x, Tensor) and x.dim() >= module.weight.dim() > 1
            if neuron is not None and fits and not neurons.apart:
                return type(module).forward(module, neuron.forward(x))
    with NeuronSites(neurons):
        if before is None:
            return type(module).forward(module, *args, **kwargs)
        return before(*args, **kwargs)


def _plain_forward(module: Any, before: None, *args: Any, **kwargs: Any) -> Any:
    return PLAIN[type(module).forward](module, *args, **kwargs)


def _stepped_forward(module: Any, before: Any, clock: Clock, *args: Any, **kwargs: Any) -> Any:
    return clock.run(before or partial(type(module).forward, module), *args, **kwargs)


def wrap_(module: Any, function: Callable[..., Any], *args: Any) -> None:
    """Let `function` take a module's place; it gets the module and the wrapper that was there before, or None.

    The new forward has the name and signature of the one it replaces: transformers and torch.export read them.
    """
    before = module.__dict__.get("forward")
    forward: Any = partial(function, module, before, *args)
    signature = inspect.signature(module.forward)
    update_wrapper(forward, before or type(module).forward)
    forward.__signature__ = signature
    module.forward = forward


def unwrap_(module: Any, *functions: Callable[..., Any]) -> None:
    """Undo `wrap_` of these functions."""
    forward = module.__dict__.get("forward")
    while getattr(forward, "func", None) in functions:
        del module.forward
        forward = forward.args[1]
        if forward is not None:
            module.forward = forward


def attach_(model: nn.Module, plan: Mapping[str, Neurons], timesteps: int = 1) -> None:
    """Give each owner in the plan its neurons, and torch's fused attention modules their plain definitions.

    With more than one timestep the network's own forward runs that many passes.
    """
    for name, module in model.named_modules():
        is_wrapped = "forward" in module.__dict__
        if type(module).forward in PLAIN and not is_wrapped:
            wrap_(module, _plain_forward)
        if name in plan:
            module.neurons = plan[name]
            plan[name].lone_product = "" if is_wrapped else lone_product(module)
            wrap_(module, _spiking_forward)
    if timesteps > 1:
        clock = Clock(timesteps)
        for of_owner in plan.values():
            of_owner.clock = clock
        wrap_(model, _stepped_forward, clock)


def detach_(model: nn.Module) -> None:
    """Undo `attach_`; a wrapper that was there before comes back."""
    for module in model.modules():
        unwrap_(module, _stepped_forward, _spiking_forward, _plain_forward)
        if isinstance(module._modules.get("neurons"), Neurons):
            del module.neurons
