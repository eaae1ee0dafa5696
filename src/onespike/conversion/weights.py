"""Weights that a conversion changes and restores: BatchNorm merged into the convolution before it, so that no analog
norm follows a CNN's products, and weights re-fitted to the spikes that they receive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from onespike.conversion.attach import unwrap_, wrap_
from onespike.errors import ConversionError


class Folded(nn.Module):
    """A module's original weights, which `unfold_` restores to the bit, and what became of them."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, what: str) -> None:
        super().__init__()
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
        original = Folded(convolution.weight, convolution.bias, "BatchNorm merged into the weights")
        convolution.weight, convolution.bias = fuse_conv_bn_weights(
            convolution.weight, convolution.bias, batchnorm.running_mean, batchnorm.running_var,
            batchnorm.eps, batchnorm.weight, batchnorm.bias,
        )  # fmt: skip
        convolution.folded = original
        wrap_(batchnorm, _identity)


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
        original = module._modules.get("folded")
        if isinstance(original, Folded):
            original.what += ", re-fitted to spikes"
        else:
            original = module.folded = Folded(module.weight, bias, "weights re-fitted to spikes")
        module.weight = nn.Parameter(weight + added[:, :-1].view_as(weight), original.trains)
        moved = added[:, -1].clone() if bias is None else bias.detach() + added[:, -1]
        module.bias = nn.Parameter(moved, original.trains)


def unfold_(model: nn.Module) -> None:
    """Restore what `fold_` and `refit_` changed."""
    for module in model.modules():
        unwrap_(module, _identity)
        original = module._modules.get("folded")
        if isinstance(original, Folded):
            weight, bias, trains = original.weight, original.bias, original.trains
            module.weight = nn.Parameter(weight, trains)
            module.bias = None if bias is None else nn.Parameter(bias, trains)  # type: ignore[assignment]
            del module.folded
