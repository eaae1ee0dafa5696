"""Pass `refit`: weights and biases of linear maps re-fitted in closed form to their spikes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from onespike.conversion.firing import named_neurons
from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.passes.budget import fit, least
from onespike.passes.statistics import FISHER_IMAGES, fisher, held_out, judged, probing, unspiked
from onespike.runtime.batches import call, take_first, to
from onespike.runtime.forward import device_of
from onespike.sites import Operand, Site

RIDGE = 1.0
"""What is added to the spikes' variances, as a part of their mean: with less, few inputs decide too much."""
LARGEST, PLACES = 1280, 1024
"""The most inputs of one output whose products are summed, and how many places of a batch a convolution is fitted at."""


class Moments:
    """Weighted sums over rows at one site, by group of channels: of the spikes' values s, of the errors r = x − s, of products."""

    def __init__(self, groups: int, inputs: int, like: Tensor) -> None:
        self.weight = like.new_zeros(())
        self.value, self.missed = like.new_zeros(2, groups, inputs).unbind()
        self.square, self.cross = like.new_zeros(2, groups, inputs, inputs).unbind()

    def add(self, value: Tensor, missed: Tensor, weight: Tensor) -> None:
        """Add rows of [groups, rows, inputs], each with a weight of [rows, 1]."""
        weighted = value * weight
        self.weight += weight.sum()
        self.value += weighted.sum(1)
        self.missed += (missed * weight).sum(1)
        self.square += weighted.mT @ value
        self.cross += weighted.mT @ missed

    def change(self, weight: Tensor) -> Tensor:
        """[D | d] of least Σ g·‖W·x − (W + D)·s − d‖² + ridge·‖D‖²: D = W·C·(H + ridge)⁻¹, d = W·E[r] − D·E[s]."""
        value, missed = self.value / self.weight, self.missed / self.weight
        square = (self.square - self.weight * value[:, :, None] * value[:, None]).double()
        cross = (self.cross - self.weight * value[:, :, None] * missed[:, None]).double()
        diagonal = square.diagonal(dim1=1, dim2=2)
        diagonal += RIDGE * diagonal.mean(1, keepdim=True) + torch.finfo(weight.dtype).tiny
        matrix = weight.detach().double().to(square.device).reshape(len(value), -1, value.shape[1])
        solution, singular = torch.linalg.solve_ex(square, cross @ matrix.mT)
        # inputs that never vary, or weigh nothing, say nothing about a weight
        solved = (singular == 0) & solution.isfinite().all(dim=(1, 2)) & value.isfinite().all(1)
        added = torch.where(solved[:, None, None], solution, 0).mT
        bias = matrix @ missed.double()[:, :, None] - added @ value.double()[:, :, None]
        bias = torch.where(solved[:, None, None], bias, 0)
        return torch.cat((added, bias), 2).flatten(0, 1).float().cpu()


def rows_of(module: nn.Module, both: Tensor, generator: Generator) -> Tensor:
    """What each output sums up, of two operands: [2, groups, rows, inputs]; of a convolution, patches at some places."""
    if not isinstance(module, nn.Conv2d):
        return both.flatten(1, -2)[:, None]
    part: Any = {"dilation": module.dilation, "padding": module.padding, "stride": module.stride}
    patches: Tensor = F.unfold(both.flatten(0, 1), module.kernel_size, **part)
    patches = patches.mT.reshape(2, -1, patches.shape[1])
    chosen = torch.randperm(patches.shape[1], generator=generator)[:PLACES].to(both.device)
    rows: Tensor = patches[:, chosen].unflatten(-1, (module.groups, -1)).transpose(1, 2)
    return rows


def weight_of(module: Any) -> Tensor | None:
    """Return the weight of a linear map, or of a convolution with few inputs per output; None of any other module."""
    kind = type(module)
    if kind is nn.Conv2d and (module.padding_mode != "zeros" or isinstance(module.padding, str)):
        return None
    fits = kind is nn.Linear or (kind is nn.Conv2d and module.weight[0].numel() <= LARGEST)
    return module.weight if fits else None


@calibration_pass("refit", needs=("allocate",), whole=True)
def refit(state: PassState, context: PassContext) -> PassState:
    """Fit W + D and b + d for linear maps and convolutions behind spikes, from x and its spikes in the original network.

    A convolution is a linear map of the patches that it sees; one with more than 1,280 inputs per output keeps its
    weights. The energy is met again, and the result is kept if it is nearer to the original on inputs that it was not fitted to.
    """
    free, _ = held_out("refit", context)
    goal, informations = least(state, context), fisher(state, context)
    model = unspiked(state, context)
    batches = take_first(context.inputs, context.portion(FISHER_IMAGES))[: len(free)]
    modules = {site: model.get_submodule(site.owner) for site, t in state.spiking.items() if t.calls == 1}
    weights = {site: weight_of(module) for site, module in modules.items()}
    fired: dict[Site, Any] = dict(named_neurons(model))
    generator = torch.Generator().manual_seed(context.seed + 3)
    sums: dict[Site, Moments] = {}

    def visit(operand: Operand, x: Tensor) -> Tensor:
        site = operand.site
        if weights.get(site) is not None:
            # half precision is too small for sums of squares
            exact, value, module = x.float(), fired[site](x).float(), modules[site]
            rows, missed = rows_of(module, torch.stack((value, exact - value)), generator)
            if site not in sums:
                sums[site] = Moments(len(rows), rows.shape[-1], exact)
            position, weight = state.axes[site].position, exact.new_ones(1, 1)
            if position is not None:
                weight = informations[site].weights(position, exact).expand(*exact.shape[:-1], 1)
            sums[site].add(rows, missed, weight.reshape(-1, 1).expand(rows.shape[1], 1))
        return x

    with torch.inference_mode(), probing(model, visit):
        for batch in context.progress("re-fitting", len(batches))(batches):
            call(model, to(batch, device_of(model)))
        changes = {
            site: {"change": of_site.change(weight)}
            for site, of_site in sums.items()
            if bool(of_site.weight > 0) and (weight := weights[site]) is not None
        }
    return judged("refit", state, [fit(state.with_sites(changes), context, goal)], context)
