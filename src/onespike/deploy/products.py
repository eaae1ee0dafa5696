"""Integer products: counts of spikes times 8-bit weights, summed exactly; scales, gains and bias follow once.

The plain form sums in float64 (in float32 where every sum is below 2²⁴), where such integers are exact in any
order. The kernels give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike import kernels
from onespike.deploy.folding import Folded, by_channel, fold, shift
from onespike.neurons import Neuron
from onespike.spikes import SpikeCode

EXACT = 2**24
"""Integers below are exact in float32, and so are their sums."""


def units_of(counts: Tensor, up: Tensor | None, down: Tensor | None, dims: int = 0) -> Tensor:
    """Return up·counts⁺ − down·counts⁻ for channels before `dims` axes: whole numbers; NaN stays NaN."""
    if up is None or down is None:
        return counts
    q, p = (times.view(-1, *[1] * dims) if times.numel() > 1 else times for times in (up, down))
    return counts.clamp(min=0) * q + counts.clamp(max=0) * p


def multiply(x: Tensor, weight: Tensor, *geometry: Any) -> Tensor:
    """Return W·x, or W ∗ x of an image; geometry is stride, padding, dilation and groups."""
    function: Any = (F.linear, F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 2]
    with torch._C.DisableTorchFunction():  # this product does not belong to the network
        result: Tensor = function(x, weight, None, *geometry)
    return result


class IntegerProduct(nn.Module):
    """A weight behind one neuron: `forward(x, neuron)` fires, multiplies integers and adds the bias.

    The neuron's code, by channel, is folded into the weight; its negative step moves to a common unit.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None
    times_up: Tensor
    times_down: Tensor
    geometry: tuple[Any, ...] = ()

    def __init__(self, neuron: Neuron, folded: Folded, code: SpikeCode, bias: Tensor | None) -> None:
        super().__init__()
        up, down = folded.times
        buffers = {"weight": folded.weight, "scale": folded.scale, "times_up": up, "times_down": down}
        for name, value in {**buffers, "bias": bias}.items():
            self.register_buffer(name, value)
        self.dims = folded.weight.dim() - 2
        self.lambda_ = _lambda(neuron)
        self.low = -128 if bool((code.units()[1] * down > 0).any()) else 0
        most = neuron.largest * int(torch.maximum(up, down).max())
        bound = most * folded.largest  # no sum is larger
        self.fits = most <= kernels.COUNT and bound < 2**31
        self.exact = torch.float32 if bound < EXACT else torch.float64
        """A type in which no sum is rounded."""
        self._ready: Any = None
        if bool((up > 0).all() and (down > 0).all()):
            move_(neuron, code, down / up)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}  # packed weights are specific to this processor

    def prepared(self, neuron: Neuron) -> tuple[Any, ...] | None:
        """Return what the kernel takes, made once per processor and λ; None where it has no form for the neuron."""
        if torch.compiler.is_compiling():
            return None
        path, scale = kernels.best_path(), _lambda(neuron)
        if path is None or not self.fits:
            return None
        if self._ready is None or self._ready[0] != (path, scale):
            self._ready = ((path, scale), self._prepare(neuron, path))
        ready: tuple[Any, ...] | None = self._ready[1]
        return ready

    def _prepare(
        self, neuron: Neuron, path: kernels.Path
    ) -> tuple[SpikeCode, kernels.Weights, Tensor, kernels.Path] | None:
        inputs, code = self.weight.shape[1], neuron.code()
        channels = by_channel(code, inputs, -1 - self.dims) if neuron.coded and code.shifts else None
        if channels is None:
            return None
        values = [*channels.units(), self.times_up, self.times_down]
        each = any(value.numel() > 1 for value in values)
        up, down, q, p = ((x.expand(inputs).contiguous() if each else x.reshape(())) for x in values)
        up, down = up * q.sign(), down * p.sign()
        code = channels._replace(
            positive=up if each or up > 0 else None,
            negative=down if each or down > 0 else None,
            center=None if channels.center is None else channels.center.expand(inputs).contiguous(),
        )
        # in the order of the kernel's windows: [outputs, places of the kernel, inputs]
        matrix = self.weight.movedim(1, -1).flatten(1)
        total, packed = matrix.sum(1, dtype=torch.int32), kernels.pack(matrix, path)
        weights = kernels.Weights(packed, total, self.scale, self.bias, matrix.shape[1], (q, p), self.low)
        return code, weights, self._factor(neuron), path

    def _factor(self, neuron: Neuron) -> Tensor:
        """Return the change of λ since the code was folded."""
        return torch.ones(()) if neuron.scale is None else neuron.scale.value / self.lambda_

    def summed(self, x: Tensor, neuron: Neuron, exact: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the counts in units, and the exact sums times their scales, rounded once; NaN counts as 0."""
        units = units_of(neuron.counts(x), self.times_up, self.times_down, self.dims)
        sums = multiply(units.nan_to_num(nan=0.0).to(exact), self.weight.to(exact), *self.geometry)
        return units, sums.float() * (self.scale * self._factor(neuron)).view(-1, *[1] * self.dims)

    def extra_repr(self) -> str:
        return f"int8 {tuple(self.weight.shape)}"


class IntegerLinear(IntegerProduct):
    """s·(Ŵ·y) + b for activations [.., inputs]."""

    def forward(self, x: Tensor, neuron: Neuron) -> Tensor:
        ready = self.prepared(neuron)
        if ready is not None:
            code = ready[0]
            if neuron.settles:  # a gain for each row of this input
                rows: Any = neuron.code().settled(x).gain
                code = code._replace(gain=rows.expand(*x.shape[:-1], 1).flatten())
            gain = code.gain
            if neuron.settles or gain is None or gain.numel() in (1, x.shape[-2] if x.dim() > 1 else 1):
                value = kernels.multiply(x.reshape(-1, x.shape[-1]), code, *ready[1:])
                if value is not None:
                    return value.view(*x.shape[:-1], value.shape[-1])
        return self.plain(x, neuron)

    def plain(self, x: Tensor, neuron: Neuron) -> Tensor:
        """The definition, in torch's operations and in the order of the kernels."""
        units, value = self.summed(x, neuron, self.exact)
        gain = neuron.code().settled(x).gain
        value = value if gain is None else value * gain
        value = value if self.bias is None else value + self.bias
        # no integer is NaN; a row that holds one is NaN throughout, as in float
        return value + units.sum(-1, keepdim=True) * 0.0


class IntegerConvolution(IntegerProduct):
    """s·(Ŵ ∗ y) + b for activations [batch, channels, …]; the geometry is that of the module it replaces.

    The offset's part of the bias differs near the border, where zeros are added around the values. It is the
    convolution of an image of ones with `shift`, one number per output and place of the kernel.
    """

    shift: Tensor | None

    def __init__(
        self, neuron: Neuron, folded: Folded, code: SpikeCode, bias: Tensor | None, module: Any
    ) -> None:
        super().__init__(neuron, folded, code, bias)
        self.register_buffer("shift", None)
        padded = module.padding_mode == "zeros"  # else the module pads
        padding = module.padding if padded else (0,) * self.dims
        self.geometry = (module.stride, padding, module.dilation, module.groups)
        self._places: dict[tuple[int, ...], Tensor | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_places": {}}

    def constants(self, size: tuple[int, ...]) -> Tensor | None:
        """Return bias and the offset's part, [outputs, …] by place where they differ by place; kept per size."""
        if size not in self._places:
            rows = (-1, *[1] * self.dims)
            bias = None if self.bias is None else self.bias.view(rows)
            if self.shift is not None:
                ones = self.shift.new_ones(1, 1, *size)
                shift = multiply(ones, self.shift, *self.geometry[:3], 1)[0]
                first = shift.flatten(1)[:, 0].view(rows)
                shift = first if bool((shift == first).all()) else shift
                bias = (shift if bias is None else shift + bias).float()
            self._places[size] = bias
        return self._places[size]

    def forward(self, x: Tensor, neuron: Neuron) -> Tensor:
        if x.dim() == self.dims + 1:
            return self.forward(x.unsqueeze(0), neuron).squeeze(0)
        ready = self.prepared(neuron) if self.geometry[3] == 1 and self.dims < 3 else None
        value = None if ready is None else self._by_kernel(x, *ready)
        return self.plain(x, neuron) if value is None else value

    def _by_kernel(
        self, x: Tensor, code: SpikeCode, weights: kernels.Weights, factor: Tensor, path: kernels.Path
    ) -> Tensor | None:
        image = x if self.dims == 2 else x.unsqueeze(2)
        window, bias = self._window((image.shape[2], image.shape[3])), self.constants(tuple(x.shape[2:]))
        weights = weights._replace(bias=None if bias is None else bias.flatten(1).t().contiguous())
        last = image.permute(0, 2, 3, 1).contiguous()
        value = kernels.multiply(last, code, weights, factor, path, window)
        if value is None:
            return None
        result = value.view(len(x), *window.places, len(self.scale)).permute(0, 3, 1, 2)
        return result if self.dims == 2 else result.squeeze(2)

    def _window(self, image: tuple[int, int]) -> kernels.Window:
        """Return the geometry in two dimensions; an image of one dimension has one row."""
        (stride, padding, dilation, _), kernel = self.geometry, tuple(self.weight.shape[2:])
        around: list[int] = [0, 0] * (2 - self.dims)
        for axis, (extent, gap) in enumerate(zip(kernel, dilation, strict=True)):
            whole = 0 if padding == "valid" else gap * (extent - 1)
            same = [whole // 2, whole - whole // 2]
            around += same if isinstance(padding, str) else [padding[axis]] * 2
        ones: tuple[int, ...] = (1,) * (2 - self.dims)
        parts: Any = ((*ones, *part) for part in (kernel, stride, dilation))
        above, below, left, right = around
        return kernels.Window(image, (above, below, left, right), *parts)

    def plain(self, x: Tensor, neuron: Neuron) -> Tensor:
        """The definition, in torch's operations."""
        # sums in float32 only where no library transforms the image first: in groups
        exact = self.exact if self.geometry[3] > 1 else torch.float64
        units, value = self.summed(x, neuron, exact)
        bias, missing = self.constants(tuple(x.shape[2:])), units.isnan()
        value = value if bias is None else value + bias
        if not torch.compiler.is_compiling() and not bool(missing.any()):
            return value
        touched = multiply(missing.to(exact), torch.ones_like(self.weight, dtype=exact), *self.geometry)
        return torch.where(touched > 0, torch.nan, value)


def move_(neuron: Neuron, code: SpikeCode, ratio: Tensor) -> None:
    """Make the negative step this part of the positive one, so that firing and adding use the same steps."""
    up, down = code.units()
    other = (up > 0) & (down > 0) & (down != up * ratio)
    if bool(other.any()):
        like = neuron.positive if neuron.positive.numel() >= neuron.negative.numel() else neuron.negative
        shape = like.shape if ratio.numel() > 1 else ()
        moved = (neuron.positive.double() * ratio.view(shape)).float()
        neuron.negative = torch.where(
            other.view(shape) if other.numel() > 1 else other[0], moved, neuron.negative
        )


def _lambda(neuron: Neuron) -> float:
    return 1.0 if neuron.scale is None else float(neuron.scale.value)


class Populations(nn.Module):
    """The sum of two products that fire counts of one sign each."""

    def __init__(self, first: IntegerProduct, second: IntegerProduct) -> None:
        super().__init__()
        self.first: Any = first
        self.second: Any = second

    def forward(self, x: Tensor, neuron: Neuron) -> Any:
        return self.first(x, neuron) + self.second(x, neuron)

    def plain(self, x: Tensor, neuron: Neuron) -> Any:
        """The definition, in torch's operations."""
        return self.first.plain(x, neuron) + self.second.plain(x, neuron)


UNFOLDED = "its steps differ along an axis that its weight does not have"


def _joined(parts: list[Any], folded: list[Folded]) -> tuple[nn.Module, Tensor]:
    """Return one module, and the weights after rounding: of two populations the mean."""
    rounded = torch.stack([part.rounded for part in folded]).mean(0)
    return parts[0] if len(parts) == 1 else Populations(parts[1], parts[0]), rounded


def linear_form(neuron: Neuron, weight: Tensor, bias: Tensor | None) -> tuple[nn.Module, Tensor] | str:
    """Return the integer form of a linear map and the weights after rounding; or why it has none."""
    code = by_channel(neuron.code(), weight.shape[1], -1)
    if code is None:
        return UNFOLDED
    folded, added = fold(weight, code), shift(weight, code)
    if bias is not None:
        added = bias.detach().clone() if added is None else added + bias.detach().double()
    added = None if added is None else added.float()
    parts = [IntegerLinear(neuron, part, code, None if i else added) for i, part in enumerate(folded)]
    return _joined(parts, folded)


def convolution_form(neuron: Neuron, module: Any) -> tuple[nn.Module, Tensor] | str:
    """Return the integer form of a convolution and the weights after rounding; or why it has none."""
    code = by_channel(neuron.code(), module.in_channels, 1 - module.weight.dim())
    if code is None or code.gain is not None:
        return UNFOLDED
    folded = fold(module.weight, code, module.groups)
    added = shift(module.weight, code, module.groups)
    biases = (None if module.bias is None else module.bias.detach().clone(), None)
    parts = [
        IntegerConvolution(neuron, part, code, bias, module)
        for part, bias in zip(folded, biases, strict=False)
    ]
    parts[0].shift = None if added is None else added.unsqueeze(1)
    return _joined(parts, folded)
