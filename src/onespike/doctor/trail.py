"""Where two networks part: how far the spiking one has drifted from the original, site after site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from onespike.attach import Meter, Neurons
from onespike.calibrate import device_of, evaluating
from onespike.sites import Site
from onespike.survey import decibels
from onespike.trace import call

KEPT = 1 << 16
"""Elements compared at a site, evenly spaced: enough for a power, and memory stays small."""


@contextmanager
def visited_by(snn: nn.Module, visit: Meter) -> Iterator[None]:
    """Within this context every site of a converted network is visited by this function."""
    owners = [module for module in snn.modules() if isinstance(module, Neurons)]
    for owner in owners:
        owner.meter = visit
    try:
        yield
    finally:
        for owner in owners:
            owner.meter = None


def passed_on(owner: Neurons, key: str, x: Tensor, count: Any) -> Tensor:
    """What a site would pass on without a visitor."""
    visitor, owner.meter = owner.meter, None
    try:
        return owner.visit(key, x, count)
    finally:
        owner.meter = visitor


def trail(snn: nn.Module, inputs: Any) -> list[tuple[str, float]]:
    """Signal to noise (dB) of what each site receives, against the original network, in the order of execution.

    Args:
        snn: a converted network; with all its sites analog it is the original.
        inputs: one batch: a tensor, a tuple of positional arguments or a mapping of keyword arguments.
    """
    kept: dict[str, list[Tensor]] = {}
    found: list[tuple[str, float]] = []

    def sample(x: Tensor) -> Tensor:
        return x.detach().flatten()[:: max(1, x.numel() // KEPT)].double()

    def original(owner: Neurons, key: str, x: Tensor, count: Any) -> Tensor:
        kept.setdefault(str(Site(owner.owner, key)), []).append(sample(x))
        return x

    def spiking(owner: Neurons, key: str, x: Tensor, count: Any) -> Tensor:
        site = str(Site(owner.owner, key))
        if kept.get(site):
            wanted, got = kept[site].pop(0), sample(x)
            if wanted.shape == got.shape:
                error = float((wanted - got).square().sum())
                found.append((site, decibels(float(wanted.square().sum()), error)))
        return passed_on(owner, key, x, count)

    inputs = tree_map_only(Tensor, lambda x: x.to(device_of(snn)), inputs)
    for visit in (original, spiking):
        with evaluating(snn), visited_by(snn, visit):
            call(snn, inputs)
    return found
