"""Pass `refit`: weights and biases of linear maps re-fitted in closed form to their spikes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onespike.conversion.attach import named_neurons
from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.passes.budget import fit, least
from onespike.passes.statistics import FISHER_IMAGES, Fisher, divergence, fisher, held_out, probing, unspiked
from onespike.runtime.batches import call, take_first, to
from onespike.runtime.forward import device_of
from onespike.sites import Operand, Site

RIDGE = 1.0
"""Added to the spikes' variances, relative to their mean: with less, few inputs decide too much."""


@dataclass
class Moments:
    """Weighted sums over rows at one site: of the spikes' values s, of the errors r = x − s, and of products."""

    weight: Tensor
    value: Tensor
    missed: Tensor
    square: Tensor
    cross: Tensor

    @classmethod
    def none(cls, inputs: int, like: Tensor) -> Moments:
        shapes: tuple[tuple[int, ...], ...] = ((), (inputs,), (inputs,), (inputs, inputs), (inputs, inputs))
        return cls(*(like.new_zeros(shape) for shape in shapes))

    def add(self, value: Tensor, missed: Tensor, weight: Tensor) -> None:
        weighted = value * weight
        self.weight += weight.sum()
        self.value += weighted.sum(0)
        self.missed += (missed * weight).sum(0)
        self.square += weighted.T @ value
        self.cross += weighted.T @ missed

    def change(self, weight: Tensor) -> Tensor:
        """[D | d] of least Σ g·‖W·x − (W + D)·s − d‖² + ridge·‖D‖²: D = W·C·(H + ridge)⁻¹, d = W·E[r] − D·E[s]."""
        value, missed = self.value / self.weight, self.missed / self.weight
        square = (self.square - self.weight * torch.outer(value, value)).double()
        cross = (self.cross - self.weight * torch.outer(value, missed)).double()
        diagonal = square.diagonal()
        diagonal += RIDGE * diagonal.mean() + torch.finfo(weight.dtype).tiny
        matrix = weight.detach().double().to(square.device)
        added = torch.linalg.solve(square, cross @ matrix.T).T
        bias = matrix @ missed.double() - added @ value.double()
        return torch.cat((added, bias[:, None]), 1).float().cpu()


def importance(row: Fisher, position: int | None, x: Tensor) -> Tensor:
    """Return the Fisher information of each row of [.., inputs], as a column; 1 where there are no positions."""
    if position is None:
        return x.new_ones(x[..., 0].numel(), 1)
    table = row.information.movedim(position, 0).flatten(1).sum(1).to(x)
    shape = [1] * x.dim()
    shape[position] = len(table)
    return table.view(shape).expand(*x.shape[:-1], 1).reshape(-1, 1) / table.mean()


@calibration_pass("refit", needs=("allocate",), whole=True)
def refit(state: PassState, given: PassContext) -> PassState:
    """Fit W + D and b + d for every linear map behind spikes, from x and its spikes in the original network.

    Rows are weighted by Fisher information: the class token is one in hundreds. Then the energy is met again, and the
    result is kept if it is nearer to the original network on inputs that it was not fitted to.
    """
    free, held = held_out("refit", given)
    goal, known = least(state, given), fisher(state, given)
    modules = dict(given.model.named_modules())
    linear = {
        site: modules[Site.parse(site).owner]
        for site, t in state.spiking.items()
        if type(modules[Site.parse(site).owner]) is nn.Linear and t.calls == 1
    }
    sums: dict[str, Moments] = {}

    def visit(site: str, x: Tensor, operand: Operand) -> Tensor:
        if site in linear:
            # half precision is too small for sums of squares
            exact, value = x.float(), fired[site](x).float()
            if site not in sums:
                sums[site] = Moments.none(x.shape[-1], exact)
            rows = importance(known[site], state.axes(site).position, exact)
            sums[site].add(value.flatten(0, -2), (exact - value).flatten(0, -2), rows)
        return x

    model, batches = unspiked(state, given), take_first(given.inputs, FISHER_IMAGES)[: len(free)]
    fired: dict[str, Any] = {str(site): neuron for site, neuron in named_neurons(model)}
    with torch.inference_mode(), probing(model, visit):
        for batch in given.progress("re-fitting", len(batches))(batches):
            call(model, to(batch, device_of(model)))
        changes = {
            site: {"change": of_site.change(linear[site].weight)}
            for site, of_site in sums.items()
            if bool(of_site.weight > 0)
        }
    fitted = fit(state.with_sites(changes), given, goal)
    judges = [given.inputs[i] for i in held]
    return min((state, fitted), key=lambda each: divergence(each, given, judges))
