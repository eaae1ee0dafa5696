"""Integer products: counts of spikes times 8-bit weights, summed exactly; scales, gains and bias follow once.

The plain form sums in float64 (in float32 where every sum is below 2²⁴), where such integers are exact in any
order. The kernels give the same bits.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike import kernels
from onespike.deploy.folding import Folded, by_channel, fold, shift
from onespike.neurons import Neuron
from onespike.spikes import SpikeCode
from onespike.spikes.code import SUM_SHIFTS

EXACT = 2**24
"""Integers below are exact in float32, and so are their sums."""
UNFOLDED = "its steps differ along an axis that its weight does not have"


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

    s·(Ŵ·y) + b for activations [.., inputs], and s·(Ŵ ∗ y) + b for images [batch, inputs, ..]. The neuron's code, by
    channel, is folded into the weight. Where no unit serves both signs, `other` multiplies the negative counts.

    The offset's part of the bias differs near the border of an image, where zeros are added around the values. It is
    the convolution of an image of ones with `shift`, one number per output and place of the kernel.
    """

    weight: Tensor
    scale: Tensor
    times_up: Tensor
    times_down: Tensor
    bias: Tensor | None
    shift: Tensor | None
    biased = False
    """Whether the module itself adds a bias."""

    def __init__(self, neuron: Neuron, folded: Folded, code: SpikeCode, geometry: tuple[Any, ...]) -> None:
        super().__init__()
        up, down = folded.times
        buffers = {"weight": folded.weight, "scale": folded.scale, "times_up": up, "times_down": down}
        for name, value in {**buffers, "bias": None, "shift": None}.items():
            self.register_buffer(name, value)
        self.other: IntegerProduct | None = None
        self.geometry, self.dims = geometry, folded.weight.dim() - 2
        self.lambda_ = scale_of(neuron)
        self.low = -128 if bool((code.units()[1] * down > 0).any()) else 0
        self.most = neuron.largest * int(torch.maximum(up, down).max())
        bound = self.most * folded.largest  # no sum is larger
        self.fits = self.most <= kernels.COUNT and bound < 2**31
        # of convolutions, only those in groups are summed in float32: libraries transform the images of others first
        direct = not geometry or geometry[3] > 1
        self.exact = torch.float32 if direct and bound < EXACT else torch.float64
        self._ready: Any = None
        self._constants: dict[tuple[int, ...], Tensor | None] = {}

    def __getstate__(self) -> dict[str, Any]:  # packed weights are specific to this processor
        return {**self.__dict__, "_ready": None, "_constants": {}}

    def forward(self, x: Tensor, neuron: Neuron) -> Tensor:
        if self.dims and x.dim() == self.dims + 1:
            return self.forward(x.unsqueeze(0), neuron).squeeze(0)
        weights = self._prepared(neuron)
        value = None if weights is None else (self._images if self.dims else self._rows)(x, neuron, weights)
        if value is None:
            return self.plain(x, neuron)
        return value if self.other is None else value + self.other(x, neuron)

    def plain(self, x: Tensor, neuron: Neuron) -> Tensor:
        """The definition, in torch's operations and in the order of the kernels."""
        units = units_of(neuron.counts(x), self.times_up, self.times_down, self.dims).to(self.exact)
        sums = multiply(units, self.weight.to(self.exact), *self.geometry)
        value = sums.float() * (self.scale * self._factor(neuron)).view(-1, *[1] * self.dims)
        gain, bias = neuron.code().settled(x).gain, self.constants(tuple(x.shape[2:]))
        value = value if gain is None else value * gain
        value = value if bias is None else value + bias
        return value if self.other is None else value + self.other.plain(x, neuron)

    def constants(self, size: tuple[int, ...]) -> Tensor | None:
        """Return bias and the offset's part, [outputs, …] by place where they differ by place; kept per size of image."""
        if not self.dims:
            return self.bias
        if size not in self._constants:
            rows = (-1, *[1] * self.dims)
            bias = None if self.bias is None else self.bias.view(rows)
            if self.shift is not None:
                added = multiply(self.shift.new_ones(1, 1, *size), self.shift, *self.geometry[:3], 1)[0]
                first = added.flatten(1)[:, 0].view(rows)
                added = first if bool((added == first).all()) else added
                bias = (added if bias is None else added + bias).float()
            self._constants[size] = bias
        return self._constants[size]

    def _factor(self, neuron: Neuron) -> Tensor:
        """Return the change of λ since the code was folded."""
        return torch.ones(()) if neuron.scale is None else neuron.scale.value / self.lambda_

    def _prepared(self, neuron: Neuron) -> kernels.Weights | None:
        """Return what the kernel takes, made once per processor and λ; None where it has no form for the neuron."""
        groups = self.geometry[3] if self.dims else 1
        if torch.compiler.is_compiling() or not self.fits or self.dims > 2 or groups > 1:
            return None
        path, scale = kernels.best_path(), scale_of(neuron)
        if path is None:
            return None
        if self._ready is None or self._ready[0] != (path, scale):
            self._ready = ((path, scale), self._prepare(neuron, path))
        weights: kernels.Weights | None = self._ready[1]
        return weights

    def _prepare(self, neuron: Neuron, path: kernels.Path) -> kernels.Weights | None:
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
        return kernels.Weights.of(
            matrix,
            path,
            code,
            self.scale,
            factor=self._factor(neuron),
            bias=self.bias,
            times=(q, p),
            low=self.low,
        )

    def _rows(self, x: Tensor, neuron: Neuron, weights: kernels.Weights) -> Tensor | None:
        gain = weights.code.gain
        if neuron.code().typical is not None:  # a gain for each row of this input
            rows: Any = neuron.code().settled(x).gain
            code = weights.code._replace(gain=rows.expand(*x.shape[:-1], 1).flatten())
            weights = replace(weights, code=code)
        elif gain is not None and gain.numel() not in (1, x.shape[-2] if x.dim() > 1 else 1):
            return None
        value = kernels.multiply(x.reshape(-1, x.shape[-1]), weights)
        return None if value is None else value.view(*x.shape[:-1], -1)

    def _images(self, x: Tensor, neuron: Neuron, weights: kernels.Weights) -> Tensor | None:
        """Multiply images of two dimensions; one of one dimension has one row."""
        (stride, _, dilation, _), bias = self.geometry, self.constants(tuple(x.shape[2:]))
        line, image = (1,) * (2 - self.dims), x if self.dims == 2 else x.unsqueeze(2)
        sides: Any = [0, 0] * len(line) + [side for pair in self.padding for side in pair]
        parts: Any = ((*line, *part) for part in (self.weight.shape[2:], stride, dilation))
        window = kernels.Window((image.shape[2], image.shape[3]), tuple(sides), *parts)
        weights = replace(weights, bias=None if bias is None else bias.flatten(1).t().contiguous())
        value = kernels.multiply(image.permute(0, 2, 3, 1).contiguous(), weights, window)
        if value is None:
            return None
        result = value.view(len(x), *window.places, len(self.scale)).permute(0, 3, 1, 2)
        return result if self.dims == 2 else result.squeeze(2)

    @property
    def padding(self) -> list[tuple[int, int]]:
        """Return the zeros before and after each axis of an image."""
        _, padding, dilation, _ = self.geometry or (1, (), 1, 1)
        if not isinstance(padding, str):
            return [(size, size) for size in padding]
        axes = zip(self.weight.shape[2:], dilation, strict=True)
        spans = [0 if padding == "valid" else gap * (extent - 1) for extent, gap in axes]
        return [(span // 2, span - span // 2) for span in spans]

    def extra_repr(self) -> str:
        return f"int8 {tuple(self.weight.shape)}"


def integer_form(
    neuron: Neuron, weight: Tensor, bias: Tensor | None, module: Any = None
) -> tuple[IntegerProduct, Tensor] | str:
    """Return the integer form of a linear map, or of a convolution `module`, and the weights after rounding; or why
    it has none.
    """
    dims, groups, geometry = weight.dim() - 2, 1, tuple[Any, ...]()
    if module is not None:
        padding = module.padding if module.padding_mode == "zeros" else (0,) * dims  # else the module pads
        groups, geometry = module.groups, (module.stride, padding, module.dilation, module.groups)
    code = by_channel(neuron.code(), weight.shape[1] * groups, -1 - dims)
    if code is None or (dims and code.gain is not None):
        return UNFOLDED
    folded = fold(weight, code, groups, 0 if neuron.dense else SUM_SHIFTS)
    added = shift(weight, code, groups)
    form, *others = (IntegerProduct(neuron, part, code, geometry) for part in folded)
    form.bias, form.biased = None if bias is None else bias.detach().clone(), bias is not None
    if others:
        form.other = others[0]
    else:
        move_(neuron, code, form.times_down / form.times_up)
    if added is not None and dims:
        form.shift = added.unsqueeze(1)
    elif added is not None:
        form.bias = (added if form.bias is None else added + form.bias.double()).float()
    return form, torch.stack([part.rounded for part in folded]).mean(0)


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


def scale_of(neuron: Neuron) -> float:
    """Return λ; 1 without."""
    return 1.0 if neuron.scale is None else float(neuron.scale.value)
