"""Spikes counted: how many a tensor holds, their additions in each reading, and the sums of one site."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from onespike import kernels
from onespike.energy.columns import READINGS
from onespike.sites import Site
from onespike.spikes import SpikeCode


def add_up(totals: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    """Add numbers to totals of the same names."""
    for name, number in more.items():
        totals[name] = totals.get(name, 0) + number


@cache
def _worth(largest: int, width: int) -> Tensor:
    """Return the table of a spike of size 0, 1, … below `width`: spikes, active, saturated, and each reading."""
    size = torch.arange(width)
    readings = (reading.additions(size.double()) for reading in READINGS.values())
    return torch.stack([size.double(), (size > 0).double(), (size == largest).double(), *readings]).double()


def _sizes(fired: Tensor) -> Tensor:
    """Return |y| as integers; NaN, which has none, becomes 0, as in `Neuron.spikes`."""
    return fired.abs().to(torch.int32).clamp_(min=0)


def totals(largest: int, fired: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the sums of `_worth` over all spikes, each with its weight."""
    if weights is None:
        flat = kernels.in_memory_order(fired)
        whole = flat.device.type != "cpu" or len(flat) <= kernels.PART
        parts = (flat,) if whole else flat.split(kernels.PART)  # each in the cache
        counted = [torch.bincount(_sizes(part), minlength=largest + 1) for part in parts]
        number = counted[0] if whole else torch.nn.utils.rnn.pad_sequence(counted).sum(1)
    else:
        size, each = _sizes(fired).flatten(), weights.double().expand_as(fired).flatten()
        number = torch.bincount(size, each, minlength=largest + 1)
    # no matrix product: the integer form counts while the network's products are still watched
    # two branches of one neuron may fire in one step: their sum can exceed the largest level
    return (_worth(largest, len(number)) * number.double().cpu()).sum(1)


@lru_cache(maxsize=1024)
def _rows(shape: tuple[int, ...], every: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return one row in `every`, drawn at random but always the same: row numbers, and places in this shape."""
    rows = math.prod(shape)
    with torch.inference_mode(False):  # stored, and then used in any mode
        chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(0))[: rows // every]
        chosen = chosen.sort().values
        return chosen, torch.unravel_index(chosen, shape)


def sample(x: Tensor, every: int) -> Tensor:
    """Return the elements of one row (along the last dimension) in `every`; all of a tensor with few rows.

    >>> sample(torch.zeros(160, 1000), 16).shape, sample(torch.zeros(10, 10), 16).shape
    (torch.Size([10000]), torch.Size([100]))
    """
    if math.prod(x.shape[:-1]) < every:
        return x.flatten()
    numbers, places = _rows(x.shape[:-1], every)
    if x.is_contiguous() and x.device.type == "cpu":  # five times as fast
        return x.view(-1, x.shape[-1]).index_select(0, numbers).flatten()
    return x[places].flatten()


@dataclass
class SiteCount:
    """The counts of one site, summed over all inputs: one line of a ledger."""

    site: Site
    role: str
    spiking: bool
    dense: bool = False  # an edge of the network, multiplied as 8-bit integers
    macs: int = 0
    elements: int = 0
    # additions by reading, as all that follow in dictionaries
    additions: dict[str, float] = field(default_factory=dict)
    later: dict[str, float] = field(default_factory=dict)  # the part of them after the first timestep
    sent: dict[str, float] = field(default_factory=dict)  # without their fan-out: spikes that leave the site
    pairs: dict[str, float] = field(default_factory=dict)
    # the sums of lanes and of both signs at each output
    joined: dict[str, float] = field(default_factory=dict)
    # elements that integers multiply and round: 8-bit edges but pixels, neurons with many levels
    scaled: int = 0
    shifted: int = 0  # elements of neurons with many levels whose steps are reached by shifting and adding
    compared: float = 0.0  # comparisons with thresholds
    measured: float = 0.0  # additions that measure rows with separate steps, and one shift per output
    spikes: float = 0.0
    active: int = 0
    saturated: int = 0
    visits: int = 0
    constant_macs: float = 0.0  # of constant parts of activations with other activations

    @property
    def updates(self) -> bool:
        """Whether each element is scaled before it fires or is rounded: pixels are integers already."""
        return self.spiking or (self.dense and self.role != "input")

    def count(
        self, largest: int, fired: Tensor, fan_out: int | Tensor, each: float = 1.0, later: bool = False
    ) -> None:
        """Add spikes, each of which stands for `each` of its size."""
        total = totals(largest, fired)
        if isinstance(fan_out, Tensor):
            weighted = totals(largest, fired, fan_out) * each
        else:
            weighted = total * (each * fan_out)
        spikes, active, saturated, *sent = (total * each).tolist()
        additions = dict(zip(READINGS, weighted[3:].tolist(), strict=True))
        add_up(self.additions, additions)
        add_up(self.sent, dict(zip(READINGS, sent, strict=True)))
        if later:
            add_up(self.later, additions)
        self.spikes += spikes
        self.active += round(active)
        self.saturated += round(saturated)

    def fire(self, code: SpikeCode, elements: int, outputs: int) -> None:
        """Add the fixed cost of firing: comparisons, and the sums that its product joins."""
        if not code.compared:
            self.shifted += elements if code.shifted else 0
            self.scaled += 0 if code.shifted else elements
        self.compared += elements * len(code.levels).bit_length()  # a binary search among the levels
        self.measured += 0 if code.typical is None else elements + outputs
        values = 2 if code.sides == "both" else 1  # of positive and of negative spikes
        sums = {name: reading.lanes(code.largest) * values for name, reading in READINGS.items()}
        add_up(self.joined, {name: float(outputs * (number - 1)) for name, number in sums.items()})

    def merge(self, other: SiteCount) -> None:
        """Add the counts of the same site elsewhere; fields that are not numbers are the same for both."""
        for column in fields(self):
            mine, more = getattr(self, column.name), getattr(other, column.name)
            if isinstance(mine, dict):
                add_up(mine, more)
            elif column.name not in ("site", "role", "spiking", "dense"):
                setattr(self, column.name, mine + more)
