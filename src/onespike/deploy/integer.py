"""Integer inference: every product of spikes multiplies small integers exactly; scales and bias follow once."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onespike import kernels
from onespike.conversion.firing import Neurons
from onespike.conversion.network import is_converted, steps_of
from onespike.deploy.attention import IntegerAttention
from onespike.deploy.folding import rounded
from onespike.deploy.products import integer_form
from onespike.errors import UsageError
from onespike.neurons import Neuron
from onespike.runtime.forward import check_network
from onespike.sites.attention import attention_sites


def _weighted(module: Any, owner: Neurons) -> dict[str, tuple[Any, str]]:
    """Return the products of one owner's spikes with parameters, as far as their modules are known.

    The key of each site within the owner → whose parameters it multiplies by, and how their names begin.
    """
    products = dict[str, tuple[Any, str]]()
    if isinstance(module, nn.MultiheadAttention):
        joint = module._qkv_same_embed_dim
        products = {"linear0_input": (module, "in_proj_")} if joint else {}
        products["linear1_input" if joint else "linear3_input"] = (module.out_proj, "")
    elif isinstance(module._parameters.get("weight"), Tensor) and module.weight.dim() > 1:
        products = {key: (module, "") for key in owner if key.endswith("0_input")}
    return {key: product for key, product in products.items() if isinstance(owner._modules.get(key), Neuron)}


@dataclass(frozen=True)
class Optimized:
    """The result of `optimize_`: how many products run on integers, and why the others do not."""

    integer: int
    simulated: dict[str, str]

    def __str__(self) -> str:
        whole = self.integer + len(self.simulated)
        text = f"{self.integer} of {whole} weighted products run on 8-bit integers"
        reasons = "; ".join(sorted(set(self.simulated.values())))
        rest = f"; the others round their weights to 8 bits and multiply in float32 ({reasons})"
        return text + (rest if reasons else "")


def check_deployable(snn: nn.Module, verb: str, what: str) -> None:
    """Refuse a network that cannot leave torch's floats."""
    if not is_converted(snn):
        raise UsageError(f"{verb}: this network has no neurons. Convert it first.")
    if steps_of(snn) > 1:
        raise UsageError(f"{verb}: {what} is for one timestep. Convert with steps=1.")
    elsewhere = next((p.device for p in snn.parameters() if p.device.type != "cpu"), None)
    if elsewhere is not None:
        raise UsageError(f"{verb}: {what} runs on the CPU, not on {elsewhere}. Use snn.cpu().")


def optimize_(snn: nn.Module, *, integer_units: bool | None = None) -> Optimized:
    """Round the weights behind spikes to 8 bits and run their products on integers, in place."""
    check_deployable(snn, "optimize", "integer inference")
    units = kernels.best_path() is not None if integer_units is None else integer_units
    done, attended, simulated = 0, 0, dict[str, str]()
    for name, module in list(snn.named_modules()):
        owner = module._modules.get("neurons")
        if not isinstance(owner, Neurons):
            continue
        owner.apart = True  # an input's spikes must not depend on its batch
        attended += _attend_(module, owner) if units else 0
        for key, (holder, prefix) in _weighted(module, owner).items():
            weight, bias = getattr(holder, f"{prefix}weight"), getattr(holder, f"{prefix}bias", None)
            _check_weight(name, weight)
            form = _form(module, key, owner[key], weight, bias) if units else NO_UNITS
            integers, weight = (None, rounded(weight)) if isinstance(form, str) else form
            setattr(holder, f"{prefix}weight", nn.Parameter(weight, requires_grad=False))
            if isinstance(form, str):
                owner.weights, simulated[f"{name}:{key}"] = "rounded", form
                continue
            done, owner.weights = done + 1, "integers"
            module.add_module(f"integer_{key}", integers)
            owner.products = {**owner.products, key: integers}
    if not done and not simulated and not attended:
        raise UsageError("optimize: no spikes meet a weight in this network. Convert more of its sites.")
    return Optimized(done, simulated)


NO_UNITS = "this processor has no VNNI, Arm dot products or AVX2, or there is no compiler"


def _form(module: Any, key: str, neuron: Any, weight: Tensor, bias: Any) -> tuple[Any, Tensor] | str:
    if key.startswith("linear") and weight.dim() == 2:
        return integer_form(neuron, weight, bias)
    if key == "conv0_input" and isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return integer_form(neuron, weight, bias, module)
    return f"{type(module).__name__} has no integer form"


def _attend_(module: nn.Module, owner: Neurons) -> int:
    """Give attention within an owner its integer form: products number n (q·kᵀ) and n + 1 (A·v)."""
    made = 0
    for place in owner.values():
        site: Any = place.site
        if place.role != "softmax" or site.operation != "matmul" or site.role != "lhs" or not site.number:
            continue
        names = attention_sites(site.number - 1)
        neurons: list[Any] = [owner._modules.get(name) for name in names]
        if all(isinstance(neuron, Neuron) for neuron in neurons):
            q, k, _, v = neurons
            form = IntegerAttention(q, k, v)
            module.add_module(f"integer_matmul{site.number - 1}", form)
            owner.products = {**owner.products, names[0]: form}
            made += 1
    return made


def _check_weight(name: str, weight: Tensor) -> None:
    if weight.dtype != torch.float32:
        raise UsageError(f"optimize: {name} has weights of type {weight.dtype}. Use snn.float().")
    if not bool(weight.isfinite().all()):
        raise UsageError(f"optimize: {name} has weights that are not finite. Load a whole checkpoint.")


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
    IntegerProduct(int8 (3, 3))
    """
    check_network("optimize", snn)
    twin = copy.deepcopy(snn)
    optimize_(twin, integer_units=integer_units)
    return twin
