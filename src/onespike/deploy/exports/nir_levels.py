"""The binary neurons of a site in NIR: one for each threshold, and what their spikes are worth.

    ±S − T + 1 > ½   ⟺   S ≥ T, or S < T for the turned ones;   count = base + Σ spike·(end − start)

S and T are integers, so that `>` and `≥` agree.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onespike.deploy.exports.comparators import Comparator
from onespike.deploy.exports.graph import Graph
from onespike.errors import UsageError

CHIP = "Convert with preset='chip', or try format='integers'."
SPIKING_INPUT = "Convert with preset='chip' and io='spiking', or try format='integers'."
CHANNELS = "Leave out the pass allocate, or try format='integers'."
THRESHOLD = 0.5
EXACT = 2.0**24
"""Sums are exact up to here in float32, and no threshold is larger."""
Window = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]
"""Of a max-pool: the places of its result, those of its input, and its arguments."""


def refuse(reason: str, remedy: str = "Try format='integers'.") -> UsageError:
    """Return the error for what NIR cannot hold, with the format that can."""
    return UsageError(
        f"export: nir holds chains of products and elementwise functions alone: {reason}. {remedy}"
    )


class Levels(NamedTuple):
    """The binary neurons of a site.

    Each fires where weight·x + bias is above the threshold, [channels, neurons of each], and then moves the count, which
    is `base` if none fires, from one value to another.
    """

    weight: Tensor
    bias: Tensor
    moves: list[tuple[int, int]]
    base: int
    above: Tensor | None = None
    """By how much thresholds of other places are higher."""

    def values(self, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each spike is worth, [channels, neurons], and what no spike is, in units of counts of each sign."""
        ends = torch.tensor([*self.moves, (0, self.base)], dtype=torch.float64)
        units = ends.clamp(min=0) * up.view(-1, 1, 1) + ends.clamp(max=0) * down.view(-1, 1, 1)
        worth = (units[..., 1] - units[..., 0]).expand(len(self.weight), -1)
        return worth[:, :-1], worth[:, -1]


class Fired(NamedTuple):
    """How counts are read from the spikes of a node: [channels · neurons of each, …], and in the site's shape."""

    node: str
    site: str
    levels: Levels
    size: tuple[int, ...]
    shape: tuple[int, ...]

    def counts(self, spikes: Tensor) -> Tensor:
        worth = torch.tensor([end - start for start, end in self.levels.moves], dtype=spikes.dtype)
        each = spikes.view(-1, len(worth), *spikes.shape[1:]).movedim(1, -1)
        return ((each * worth).sum(-1) + self.levels.base).reshape(self.shape)


def of_input(fire: dict[str, Any], graph: Graph, size: tuple[int, ...], site: str) -> Levels:
    """Return the neurons that code the network's input: |x − center| / (gain·step) ≥ bound − ½."""

    def part(name: str, usual: float) -> Tensor:
        held = graph.tensor(fire[name])
        value = torch.tensor(usual) if held is None else held
        return by_channel(value.double().expand(1, *size).flatten(), size[0], site)[:, None]

    signs = {"positive": (1,), "negative": (-1,)}.get(fire["sides"], (1, -1))
    jumps = torch.tensor(fire["bounds"], dtype=torch.float64) - 0.5
    steps = {1: part("positive", 1.0), -1: part("negative", 1.0)}
    weight = torch.cat([(sign / steps[sign] / part("gain", 1.0)).expand(-1, len(jumps)) for sign in signs], 1)
    moves = [(sign * low, sign * high) for sign in signs for low, high in pairwise((0, *fire["levels"]))]
    return Levels(weight, THRESHOLD - weight * part("center", 0.0) - jumps.repeat(len(signs)), moves, 0)


def of_sums(
    by: Comparator, size: tuple[int, ...], shape: tuple[int, ...], windows: Sequence[Window], site: str
) -> Levels:
    """Return the neurons that compare the sums of a product, [channels, …], for a site of this shape."""
    sign = torch.ones(()) if by.sign is None else by.sign
    sign = by_channel(sign.double().expand(1, *shape).flatten(), size[0], site)
    # a max-pool passes on that one has fired, not that none has
    rest = 0 if windows else max(range(len(by.values)), key=lambda n: (-abs(by.values[n]), n))
    turned = torch.arange(len(by.values) - 1) < rest
    weight = torch.where(turned, -1.0, 1.0).double() * sign[:, None] * 2.0**by.fraction
    limit = EXACT * 2.0**by.fraction
    cuts = by.thresholds.double().clamp(-limit, limit).expand(1, *shape, -1)
    places = windows[-1][0] if windows else size[1:]
    cuts = torch.where(turned, 1 - cuts, cuts).reshape(size[0], *places, -1)
    moves = [(b, a) if n < rest else (a, b) for n, (a, b) in enumerate(pairwise(by.values))]
    first = cuts.flatten(1, -2).amin(1) if cuts.dim() > 2 else cuts
    if torch.equal(cuts, (same := first.view(size[0], *[1] * (cuts.dim() - 2), -1)).expand_as(cuts)):
        return Levels(weight, 1 - first, moves, by.values[rest])
    above = cuts - same
    for _, before, pool in reversed(windows):
        for axis, extent in enumerate(before):
            stride = (pool["stride"] or pool["kernel_size"])[axis]
            if stride < pool["kernel_size"][axis]:
                raise refuse(
                    f"the windows of the max-pool before {site} overlap, and its thresholds differ by place",
                    CHANNELS,
                )
            window = (torch.arange(extent) // stride).clamp(max=above.shape[axis + 1] - 1)
            above = above.index_select(axis + 1, window)
    return Levels(weight, 1 - first, moves, by.values[rest], above.movedim(-1, 1).flatten(0, 1))


def spread(values: Tensor) -> Tensor:
    """Return numbers [channels, neurons of each] as a map from channels to neurons, [channels · neurons, channels]."""
    return (torch.eye(len(values), dtype=values.dtype)[:, None] * values[..., None]).flatten(0, 1)


def by_channel(values: Tensor, channels: int, site: str) -> Tensor:
    """Return numbers [channels · places, …] as those of the channels, if all places of a channel have the same."""
    rows = values.reshape(channels, -1, *values.shape[1:])
    if not torch.equal(rows, rows[:, :1].expand_as(rows)):
        raise refuse(f"the units of {site} differ by place")
    return rows[:, 0]
