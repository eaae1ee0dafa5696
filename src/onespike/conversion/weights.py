"""Weights that a conversion changes and restores: BatchNorm merged into the convolution before it, so that no analog
norm follows a CNN's products, weights re-fitted to the spikes that they receive, and those of 8-bit edges rounded.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from onespike.conversion.attach import unwrap_, wrap_
from onespike.errors import ConversionError
from onespike.neurons import Neuron
from onespike.sites import Site
from onespike.spikes.code import few_digits

WEIGHT = 127  # the largest 8-bit weight; −128 is left out, so that both signs reach equally far


class Folded(nn.Module):
    """A module's original weights, which `unfold_` restores to the bit, and what became of them."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, module: Any, what: str) -> None:
        super().__init__()
        weight, bias = module.weight, getattr(module, "bias", None)
        self.trains, self.what = weight.requires_grad, what
        self.register_buffer("weight", weight.detach(), persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    def extra_repr(self) -> str:
        return self.what


def _identity(module: nn.Module, before: Any, x: Tensor) -> Tensor:
    """What is left of a folded BatchNorm."""
    return x


def fold_(model: nn.Module, pairs: Mapping[str, str]) -> None:
    """Merge each BatchNorm into its convolution: W·γ/√(σ²+ε), (b−μ)·γ/√(σ²+ε) + β."""
    for convolution_name, batchnorm_name in pairs.items():
        convolution: Any = model.get_submodule(convolution_name)
        batchnorm: Any = model.get_submodule(batchnorm_name)
        if batchnorm.running_mean is None:  # normalizes by each batch: nothing fixed to merge
            continue
        if convolution.weight.is_meta or batchnorm.running_mean.is_meta:
            raise ConversionError(
                f"convert: the weights of {convolution_name} are not in memory, so its BatchNorm cannot be folded. "
                "Keep them there with another device map, or set fold_batchnorm=False."
            )
        merged = fuse_conv_bn_weights(
            convolution.weight, convolution.bias, batchnorm.running_mean, batchnorm.running_var,
            batchnorm.eps, batchnorm.weight, batchnorm.bias,
        )  # fmt: skip
        _replace_(convolution, *merged, "BatchNorm merged into the weights")
        wrap_(batchnorm, _identity)


def _replace_(module: Any, weight: Tensor, bias: Tensor | None, what: str) -> None:
    """Give a module another weight and bias; the first original is kept."""
    original = module._modules.get("folded")
    if isinstance(original, Folded):
        original.what += f", {what}"
    else:
        original = module.folded = Folded(module, what)
    module.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, original.trains)
    if bias is not None:
        module.bias = nn.Parameter(bias, original.trains)


def refit_(model: nn.Module, changes: Mapping[str, Tensor]) -> None:
    """Add each change to the weight of a linear map or convolution, and its last column to the bias."""
    for name, change in changes.items():
        module: Any = model.get_submodule(name)
        if module.weight.is_meta:
            raise ConversionError(
                f"convert: the weights of {name} are not in memory, so they cannot be re-fitted. "
                "Keep them there with another device map, or leave the pass 'refit' out."
            )
        weight, bias, added = module.weight.detach(), module.bias, change.to(module.weight)
        moved = added[:, -1].clone() if bias is None else bias.detach() + added[:, -1]
        _replace_(module, weight + added[:, :-1].view_as(weight), moved, "re-fitted to spikes")


def unrounded(module: nn.Module, site: Site) -> str | None:
    """Return why the weight that an edge meets cannot be rounded; None if it can."""
    plain = isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
    if not plain or site.number or site.role != "input":
        return "its weight is not that of a linear map or convolution"
    return "its weights are not in memory" if module.weight.is_meta else None


def round_(model: nn.Module, edges: Mapping[str, Neuron]) -> None:
    """Round the weights of 8-bit edges, with the steps of their inputs folded in; an embedding tied to one stays tied."""
    for name, neuron in edges.items():
        module: Any = model.get_submodule(name)
        weight, groups = module.weight, getattr(module, "groups", 1)
        units = along(neuron.positive.flatten().to(weight.device), weight, groups)
        integers, scale = quantize(weight.detach().double() * units)
        rounded = nn.Parameter((integers * by_rows(scale, weight) / units).to(weight), weight.requires_grad)
        for tied in [m for m in model.modules() if m._parameters.get("weight") is weight]:
            _replace_(tied, rounded, None, "rounded to 8 bits")


def by_rows(scale: Tensor, weight: Tensor) -> Tensor:
    """Return one number per output, shaped for a weight [outputs, …]."""
    return scale.view(-1, *[1] * (weight.dim() - 1))


def quantize(weight: Tensor, digits: int = 0) -> tuple[Tensor, Tensor]:
    """Return 8-bit weights and their scales, one per output (the first dimension): weight ≈ integer · scale.

    With `digits` a scale is a sum of so many powers of two, and no smaller than otherwise.

    >>> quantize(torch.tensor([[0.5, -1.27], [0.0, 0.0]]))
    (tensor([[  50, -127],
            [   0,    0]], dtype=torch.int8), tensor([0.0100, 1.0000]))
    """
    scale = weight.detach().flatten(1).abs().amax(1) / WEIGHT
    scale = torch.where(scale > 0, scale, 1.0)
    if digits:
        near = torch.stack([few_digits(scale * (1 + part / 64), digits) for part in range(33)])
        scale = torch.where(near < scale, torch.inf, near).amin(0).to(scale.dtype)
    return (weight.detach() / by_rows(scale, weight)).round().clamp(-WEIGHT, WEIGHT).to(torch.int8), scale


def along(value: Tensor, weight: Tensor, groups: int) -> Tensor:
    """Return one number per input channel, in double, shaped for a weight [outputs, inputs of a group, …]."""
    outputs, inputs = weight.shape[:2]
    wide = value.double().expand(inputs * groups).view(groups, 1, inputs)
    whole = wide.expand(groups, outputs // groups, inputs).reshape(outputs, inputs)
    return whole.view(outputs, inputs, *[1] * (weight.dim() - 2))


def unfold_(model: nn.Module) -> None:
    """Restore what `fold_`, `refit_` and `round_` changed."""
    restored: dict[int, nn.Parameter] = {}  # by memory: tied weights are tied again
    for module in model.modules():
        unwrap_(module, _identity)
        original = module._modules.get("folded")
        if isinstance(original, Folded):
            weight, bias, trains = original.weight, original.bias, original.trains
            module.weight = restored.setdefault(weight.data_ptr(), nn.Parameter(weight, trains))
            if "bias" in module._parameters:
                module.bias = None if bias is None else nn.Parameter(bias, trains)  # type: ignore[assignment]
            del module.folded
