"""Post-training quantization of the original network: the integer networks that a spiking one competes with.

Weights have one scale per output channel, activations one range per tensor or per channel. Both are chosen on
calibration inputs, and each range is clipped as far as that lowers the squared error. Values are rounded to the
integer grid and multiplied as floats, so the figures are those of integer arithmetic on any machine.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from onespike.errors import UsageError, unknown
from onespike.runtime.batches import call, to
from onespike.runtime.forward import device_of, evaluating
from onespike.sites import Operand, Site, Visit, Visitor, visiting

CLIPS = tuple(k / 20 for k in range(20, 3, -1))
"""Shares of a range to try."""
ROWS = 1024
"""Rows kept per site to try them on."""
GRANULARITIES = ("tensor", "channel")


def rounded(x: Tensor, low: Tensor, high: Tensor, bits: int) -> Tensor:
    """Return the nearest numbers on a grid of 2**bits points from low to high that contains 0.

    >>> rounded(torch.tensor([-9.0, 0.0, 0.4, 0.6, 9.0]), torch.tensor(-1.0), torch.tensor(2.0), 2).tolist()
    [-1.0, 0.0, 0.0, 1.0, 2.0]
    """
    largest = 2**bits - 1
    step = ((high - low) / largest).clamp(min=torch.finfo(x.dtype).tiny)
    zero = (-low / step).round()
    points = torch.clamp((x / step).round() + zero, 0, largest)
    result: Tensor = (points - zero) * step
    return result


def _clipped(x: Tensor, low: Tensor, high: Tensor, bits: int, apart: bool = False) -> tuple[Tensor, Tensor]:
    """Return the range, shortened as far as that lowers the squared error: by one share for all channels, or `apart`.

    x is [rows, channels]; a few rows of it tell little about the largest value of one channel.
    """
    best, chosen = torch.full_like(low, float("inf")), torch.ones_like(low)
    for clip in CLIPS:
        error = (rounded(x, low * clip, high * clip, bits) - x).square()
        loss = error.sum(0) if apart else error.sum().expand_as(low)
        better = loss < best
        best, chosen = torch.where(better, loss, best), torch.where(better, clip, chosen)
    return low * chosen, high * chosen


def rounded_weight(weight: Tensor, bits: int, axis: int = 0) -> Tensor:
    """Return a weight as symmetric integers with one scale per output channel."""
    rows = weight.detach().movedim(axis, -1)
    flat = rows.reshape(-1, rows.shape[-1]).float()
    top = flat.abs().amax(0)
    # one point of an even grid is left out, so that 0 is in the middle
    low, high = _clipped(flat, -top * (1 + 1 / (2 ** (bits - 1) - 1)), top, bits, apart=True)
    return rounded(flat, low, high, bits).view(rows.shape).movedim(-1, axis).to(weight.dtype)


def _axis(operand: Operand, x: Tensor) -> int | None:
    """Return the axis over which the product sums: its channels."""
    if operand.site.operation == "conv":
        return 1
    if operand.site.operation == "einsum" or x.dim() < 2:
        return None
    return -2 if operand.site.role == "rhs" else -1


@dataclass
class Observed(Visitor):
    """What passes each site of the original network on calibration inputs, and the weights that it multiplies.

    Attributes:
        ranges: site → smallest and largest value of each channel; 0 lies between them.
        rows: site → some rows of [elements, channels].
        weights: number of a parameter → the axis of its output channels.
    """

    ranges: dict[Site, tuple[Tensor, Tensor]] = field(default_factory=dict)
    rows: dict[Site, Tensor] = field(default_factory=dict)
    weights: dict[int, int] = field(default_factory=dict)

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        if operand.site.is_activation:
            return x
        site, axis = operand.site, _axis(operand, x)
        weight = operand.product.operands.get("weight")
        if isinstance(weight, nn.Parameter) and operand.site.role == "input":
            inputs = weight.shape[1] * operand.product.groups
            self.weights[id(weight)] = int(operand.site.operation == "conv" and inputs != x.shape[1])
        flat = (x.flatten()[:, None] if axis is None else x.movedim(axis, -1).flatten(0, -2)).detach().float()
        before = self.ranges.get(site)
        if before is not None and len(before[0]) != flat.shape[1]:
            # another length: channels of attention do not match
            flat, before = flat.reshape(-1, 1), (before[0].amin()[None], before[1].amax()[None])
            self.rows[site] = self.rows[site].reshape(-1, 1)[:ROWS]
        low, high = flat.amin(0).clamp(max=0), flat.amax(0).clamp(min=0)
        rows = flat[:: max(1, len(flat) // (ROWS // 4))][: ROWS // 4]
        if before is not None:
            low, high = torch.minimum(before[0], low), torch.maximum(before[1], high)
            rows = torch.cat([self.rows[site], rows])[:ROWS]
        self.ranges[site], self.rows[site] = (low, high), rows
        return x


def observe(model: nn.Module, batches: Iterable[Any]) -> Observed:
    """Run the original network on calibration inputs."""
    observed, device = Observed(), device_of(model)
    with evaluating(model), visiting(model, observed):
        for batch in batches:
            call(model, to(batch, device))
    if not observed.ranges:
        raise UsageError("quantization: the network ran no product. Give at least one calibration batch.")
    return observed


class Quantized(nn.Module):
    """A copy of a network with weights and operands on grids of 2**bits points.

    Activations have one range per `tensor` or per `channel`, weights one per output channel. Of the activations that drive a
    product a share, the smallest of each channel, may be `skipped`: multiplications by 0 that hardware can leave out.
    """

    def __init__(
        self, model: nn.Module, observed: Observed, bits: int, granularity: str, skipped: float = 0.0
    ) -> None:
        super().__init__()
        if granularity not in GRANULARITIES:
            raise unknown("granularity", granularity, GRANULARITIES)
        self.model, self.bits = with_integer_weights(model, model, observed, bits), bits
        self.ranges, self.floors = dict[Site, tuple[Tensor, Tensor]](), dict[Site, Tensor]()
        for site, (low, high) in observed.ranges.items():
            rows = observed.rows[site]
            ends = (low.amin(), high.amax()) if granularity == "tensor" else (low, high)
            self.ranges[site] = _clipped(rows, *ends, bits)
            if skipped:
                self.floors[site] = rows.abs().quantile(skipped, dim=0)
        self.macs, self.active = 0.0, 0.0  # of operands that drive, and of their values that were not skipped

    @property
    def active_share(self) -> float:
        """Return the share of the MACs so far whose activation was not skipped."""
        return self.active / self.macs if self.macs else 1.0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with visiting(self.model, Visit(self._rounded)):
            return self.model(*args, **kwargs)

    def _rounded(self, operand: Operand, x: Tensor) -> Tensor:
        site, axis = operand.site, _axis(operand, x)
        if site not in self.ranges:  # a ReLU, or a path that calibration did not take
            return x
        rows = x if axis is None else x.movedim(axis, -1)
        low, high = (end.to(x) for end in self.ranges[site])
        value = rounded(rows, low, high, self.bits)
        if site in self.floors and operand.site.role in ("input", "lhs"):
            above = rows.abs() >= self.floors[site].to(x)
            self.macs += operand.synapses.macs
            self.active += operand.synapses.macs * float(above.float().mean())
            value = value * above
        return value if axis is None else value.movedim(-1, axis)


def with_integer_weights(snn: nn.Module, model: nn.Module, observed: Observed, bits: int = 8) -> nn.Module:
    """Return a copy of the observed model, or of its conversion, whose weights are integers with a scale per output channel."""
    result = copy.deepcopy(snn)
    parameters = dict(result.named_parameters())
    for name, original in model.named_parameters():
        if name in parameters and id(original) in observed.weights:
            weight = parameters[name].detach()
            weight.copy_(rounded_weight(weight, bits, observed.weights[id(original)]))
    return result
