"""Integer inference: every product of spikes multiplies small integers exactly; scales and bias follow once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from onespike import kernels
from onespike.conversion.firing import Neurons
from onespike.conversion.network import is_converted, steps_of
from onespike.deploy.attention import IntegerAttention
from onespike.deploy.folding import quantize
from onespike.deploy.products import convolution_form, linear_form
from onespike.errors import UsageError
from onespike.neurons import Neuron
from onespike.neurons.gradient import wants_gradient
from onespike.runtime.forward import check_network
from onespike.sites import Site
from onespike.sites.attention import attention_sites

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Weighted(NamedTuple):
    """A product of spikes and a weight, before it is folded."""

    key: str
    """The key of its site within the owner."""
    holder: nn.Module
    """The module that owns the weight and the bias."""
    weight: str
    bias: str


def _weighted(module: Any, owner: Neurons) -> Iterator[Weighted]:
    """Return the products of one owner whose weights are parameters, as far as their modules are known."""
    if isinstance(module, nn.MultiheadAttention):
        if module._qkv_same_embed_dim:
            yield Weighted("linear0_input", module, "in_proj_weight", "in_proj_bias")
        yield Weighted(
            "linear1_input" if module._qkv_same_embed_dim else "linear3_input",
            module.out_proj,
            "weight",
            "bias",
        )
    elif isinstance(module._parameters.get("weight"), Tensor) and module.weight.dim() > 1:
        inputs = [
            key for key, neuron in owner.items() if isinstance(neuron, Neuron) and key.endswith("0_input")
        ]
        yield from (Weighted(key, module, "weight", "bias") for key in inputs)


@dataclass(frozen=True)
class Optimized:
    """The result of `optimize_`: how many products run on integers, and why the others do not."""

    integer: int
    simulated: dict[str, str]
    attended: int = 0
    """Attention whose products may run on integers, where it is called as one function."""

    def __str__(self) -> str:
        whole = self.integer + len(self.simulated)
        reasons = sorted(set(self.simulated.values()))
        rest = f"; the others round their weights to 8 bits and multiply in float32 ({'; '.join(reasons)})"
        return f"{self.integer} of {whole} weighted products run on 8-bit integers" + (
            rest if reasons else ""
        )


def has_integer_units() -> bool:
    """Return whether this processor multiplies small integers faster than float32, and our kernels are there."""
    return kernels.best_path() is not None


def _form(module: Any, found: Weighted, neuron: Neuron) -> tuple[Any, Tensor] | str:
    weight = getattr(found.holder, found.weight)
    if found.key.startswith("linear") and weight.dim() == 2:
        return linear_form(neuron, weight, getattr(found.holder, found.bias, None))
    if found.key == "conv0_input" and isinstance(module, CONVOLUTIONS):
        return convolution_form(neuron, module)
    return f"{type(module).__name__} has no integer form"


def optimize_(snn: nn.Module, *, integer_units: bool | None = None) -> Optimized:
    """Round the weights behind spikes to 8 bits and run their products on integers, in place."""
    _check(snn)
    units = has_integer_units() if integer_units is None else integer_units
    done, attended, simulated = 0, 0, dict[str, str]()
    for name, module in list(snn.named_modules()):
        owner = module._modules.get("neurons")
        if not isinstance(owner, Neurons):
            continue
        owner.apart = True  # an input's spikes must not depend on its batch
        attended += _attend_(module, owner) if units else 0
        for found in _weighted(module, owner):
            neuron = owner._modules.get(found.key)
            if not isinstance(neuron, Neuron):
                continue
            _check_weight(name, getattr(found.holder, found.weight))
            form = _form(module, found, neuron) if units else NO_UNITS
            owner.weights = "rounded" if isinstance(form, str) else "integers"
            if isinstance(form, str):
                simulated[f"{name}:{found.key}"] = form
                _round_(found)
                continue
            done += 1
            product, rounded = form
            product.biased = getattr(found.holder, found.bias, None) is not None
            setattr(found.holder, found.weight, nn.Parameter(rounded, requires_grad=False))
            module.add_module(f"integer_{found.key}", product)
            owner.products = {**owner.products, found.key: product}
            _shorten_(module, found.key)
    if not done and not simulated and not attended:
        raise UsageError("optimize: no spikes meet a weight in this network. Convert more of its sites.")
    return Optimized(done, simulated, attended)


def _attend_(module: nn.Module, owner: Neurons) -> int:
    """Give attention within an owner its integer form: products number n (q·kᵀ) and n + 1 (A·v)."""
    made = 0
    for key, role in owner.roles.items():
        site = Site.of(owner.owner, key)
        if role != "softmax" or site.operation != "matmul" or site.role != "lhs" or not site.number:
            continue
        names = attention_sites(site.number - 1)
        found = [owner._modules.get(name) for name in names]
        if all(isinstance(neuron, Neuron) for neuron in found):
            q, k, _, v = found
            form = IntegerAttention(q, k, v)  # type: ignore[arg-type]
            module.add_module(f"integer_matmul{site.number - 1}", form)
            owner.products = {**owner.products, names[0]: form}
            made += 1
    return made


NO_UNITS = "this processor has no VNNI, Arm dot products or AVX2, or there is no compiler"


def _check(snn: nn.Module) -> None:
    if not is_converted(snn):
        raise UsageError("optimize: this network has no neurons. Convert it first.")
    if steps_of(snn) > 1:
        raise UsageError("optimize: integer inference is for one timestep. Convert with steps=1.")
    elsewhere = next((p.device for p in snn.parameters() if p.device.type != "cpu"), None)
    if elsewhere is not None:
        raise UsageError(f"optimize: integer inference runs on the CPU, not on {elsewhere}. Use snn.cpu().")


def _check_weight(name: str, weight: Tensor) -> None:
    if weight.dtype != torch.float32:
        raise UsageError(f"optimize: {name} has weights of type {weight.dtype}. Use snn.float().")
    if not bool(weight.isfinite().all()):
        raise UsageError(f"optimize: {name} has weights that are not finite. Load a whole checkpoint.")


def _round_(found: Weighted) -> None:
    """Round the weights of a product that stays in float to 8 bits."""
    weight = getattr(found.holder, found.weight)
    integers, scale = quantize(weight)
    rows = scale.view(-1, *[1] * (weight.dim() - 1))
    setattr(found.holder, found.weight, nn.Parameter(integers * rows, requires_grad=False))


def _shorten_(module: Any, key: str) -> None:
    """Let a module whose forward is one product call it directly, without tracing torch's functions."""
    if module.neurons.lone_product == key:
        forward = partial(_forward, module, key, module.forward)
        module.forward = update_wrapper(forward, type(module).forward)


def _forward(module: Any, key: str, followed: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    owner: Neurons = module.neurons
    neuron = owner.lone_neuron(key)
    if neuron is None or wants_gradient(x):
        return followed(x)
    value: Tensor = owner.products[key](x, neuron)
    return value


def optimize(snn: nn.Module, *, integer_units: bool | None = None) -> nn.Module:
    """Return a copy of a converted network for integer inference; the network itself stays unchanged.

    Weights behind spikes become 8-bit integers with one scale per output. Linear maps and convolutions multiply
    counts and weights as integers where the processor is fast at it; the others are simulated with rounded weights.

    Args:
        snn: a converted network in float32 on the CPU.
        integer_units: run on integers (True) or simulate (False) whatever the processor; by default it decides.

    >>> from onespike import calibrate, convert
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> snn = convert(model, calibrate(model, [torch.randn(64, 2)]))
    >>> optimize(snn, integer_units=True)[2].integer_linear0_input
    IntegerLinear(int8 (3, 3))
    """
    check_network("optimize", snn)
    twin = copy.deepcopy(snn)
    optimize_(twin, integer_units=integer_units)
    return twin
