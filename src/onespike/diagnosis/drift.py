"""Drift: how far the spiking network departs from the original, site by site."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from onespike.energy.survey import decibels
from onespike.runtime.batches import call, to
from onespike.runtime.forward import device_of, evaluating
from onespike.sites import Operand, Visit, visiting

KEPT = 1 << 16
"""Elements compared per site, evenly spaced: enough for a power, with little memory."""


def trail(snn: nn.Module, inputs: Any) -> list[tuple[str, float]]:
    """Return the signal-to-noise ratio (dB) of each site's input against the original network, in execution order.

    Args:
        snn: a converted network; with all its sites analog it is the original.
        inputs: one batch: a tensor, a tuple of positional arguments or a mapping of keyword arguments.
    """
    kept: dict[str, list[Tensor]] = {}
    found: list[tuple[str, float]] = []

    def sample(x: Tensor) -> Tensor:
        return x.detach().flatten()[:: max(1, x.numel() // KEPT)].double()

    def original(operand: Operand, x: Tensor) -> Tensor:
        kept.setdefault(str(operand.site), []).append(sample(x))
        return x

    def spiking(operand: Operand, x: Tensor) -> Tensor:
        site = str(operand.site)
        if kept.get(site):
            wanted, got = kept[site].pop(0), sample(x)
            if wanted.shape == got.shape:
                error = float((wanted - got).square().sum())
                found.append((site, decibels(float(wanted.square().sum()), error)))
        return operand.value(x)

    inputs = to(inputs, device_of(snn))
    for visit in (original, spiking):
        with evaluating(snn), visiting(snn, Visit(visit)):
            call(snn, inputs)
    return found
