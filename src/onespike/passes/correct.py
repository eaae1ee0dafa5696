"""Passes `correct` and `refit`: offsets, or weights and biases, that make up for what spikes lose; both in closed form."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_leaves

from onespike.calibration.thresholds import is_bias
from onespike.conversion.firing import named_neurons
from onespike.passes.base import PassContext, PassState, calibration_pass, reduced
from onespike.passes.budget import fit, least
from onespike.passes.statistics import FISHER_IMAGES, fisher, held_out, judged, observe, unspiked
from onespike.runtime.batches import count, join, take_first
from onespike.runtime.progress import progress
from onespike.sites import Operand, Site

INPUTS, ELEMENTS = 64, 64 * 3 * 224 * 224
"""Inputs that `correct` puts through the network together, and how many numbers they may hold."""
RIDGE = 1.0
"""What is added to the spikes' variances, as a part of their mean: with less, few inputs decide too much."""
LARGEST, PLACES = 1280, 1024
"""The most inputs of one output whose products are summed, and how many places of a batch a convolution is fitted at."""


@calibration_pass("correct", stage="corrections", needs=("allocate",), affine=True)
def correct(state: PassState, context: PassContext) -> PassState:
    """Set offset_c += E[g·x] / E[g] − E[g·o] / E[g] at inputs of linear maps and convolutions, where it is a bias.

    x is the value in the original network, o that of its spikes: either those of x itself, so that each site makes up for
    its own loss, or those after earlier layers are corrected, so that mean losses do not add up over the depth. The
    energy is met again, and what is nearest to the original network on inputs that nothing was fitted to is kept: the
    one, the other or neither.
    """
    free, _ = held_out("correct", context)
    goal, rows = least(state, context), fisher(state, context)
    axes = {
        site: state.axes[site]
        for site in state.spiking
        if site.operation in ("linear", "conv") and state.axes[site].center
        if state.recipe.centers == "all" or is_bias(site, context.model)
    }
    original = unspiked(state, context)
    fired: dict[Site, Any] = dict(named_neurons(original))
    # a module that runs several times shares one offset, that of its first run
    wanted, apart, onward = (dict[Site, Tensor]() for _ in range(3))

    def mean(site: Site, x: Tensor) -> Tensor:
        """Return the mean of each channel; a class token is one in hundreds, so its information weighs."""
        exact, position = x.double(), axes[site].position
        weighted = exact if position is None else exact * rows[site].weights(position, exact)
        return reduced(weighted, axes[site].center, "mean").to(x.dtype)

    def compare(operand: Operand, x: Tensor, padding: Tensor | None) -> Tensor:
        site = operand.site
        if site in axes and site not in wanted:
            wanted[site] = mean(site, x)
            apart[site] = wanted[site] - mean(site, fired[site](x))
        return x

    def shift(operand: Operand, x: Tensor, padding: Tensor | None) -> Tensor:
        site, value = operand.site, operand.value(x)
        if site not in wanted:  # spikes may take a path, such as an expert, that the original did not
            return value
        if site not in onward:
            onward[site] = wanted[site] - mean(site, value)
        return value + onward[site]

    inputs = _together([context.inputs[i] for i in free], context.portion(INPUTS))
    observe(original, [inputs], compare)
    observe(state.network(context.model).eval(), [inputs], shift)
    corrected = [fit(_moved(state, offsets), context, goal) for offsets in (apart, onward)]
    return judged("correct", state, corrected, context)


def _moved(state: PassState, offsets: Mapping[Site, Tensor]) -> PassState:
    changes = {}
    for site, added in offsets.items():
        threshold = state.thresholds[site]
        center = torch.zeros_like(added) if threshold.center is None else threshold.center
        before = center if threshold.offset is None else threshold.offset
        changes[site] = {"center": center.cpu(), "offset": (before.to(added) + added).float().cpu()}
    return state.with_sites(changes)


def _together(batches: Sequence[Any], inputs: int) -> Any:
    """Return as many of the first inputs as may go through the network at once, in one batch."""
    chosen, seen = list[Any](), 0
    for batch in batches:
        elements = sum(x.numel() for x in tree_leaves(batch) if isinstance(x, Tensor))
        if chosen and (seen >= inputs or elements * (len(chosen) + 1) > ELEMENTS):
            break
        chosen.append(batch)
        seen += count(batch)
    return join(chosen)


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


def is_fitted(module: Any) -> bool:
    """Return whether this is a linear map, or a convolution padded with zeros and with few inputs per output."""
    if type(module) is not nn.Conv2d:
        return type(module) is nn.Linear
    padded = module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return padded and module.weight[0].numel() <= LARGEST


@calibration_pass("refit", stage="corrections", needs=("allocate",), whole=True)
def refit(state: PassState, context: PassContext) -> PassState:
    """Fit W + D and b + d for linear maps and convolutions behind spikes, from x and its spikes in the original network.

    A convolution is a linear map of the patches that it sees; one with more than 1,280 inputs per output keeps its
    weights. The energy is met again, and the result is kept if it is nearer to the original on inputs that it was not fitted to.
    """
    free, _ = held_out("refit", context)
    goal, informations = least(state, context), fisher(state, context)
    model = unspiked(state, context)
    batches = take_first(context.inputs, context.portion(FISHER_IMAGES))[: len(free)]
    once = [site for site, t in state.spiking.items() if t.calls == 1]
    modules: dict[Site, Any] = {site: model.get_submodule(site.owner) for site in once}
    fired: dict[Site, Any] = dict(named_neurons(model))
    generator = torch.Generator().manual_seed(context.seed + 3)
    sums: dict[Site, Moments] = {}

    def gather(operand: Operand, x: Tensor, padding: Tensor | None) -> Tensor:
        site = operand.site
        if site in modules and is_fitted(modules[site]):
            # half precision is too small for sums of squares
            exact, value = x.float(), fired[site](x).float()
            rows, missed = rows_of(modules[site], torch.stack((value, exact - value)), generator)
            if site not in sums:
                sums[site] = Moments(len(rows), rows.shape[-1], exact)
            position, weight = state.axes[site].position, exact.new_ones(1, 1)
            if position is not None:
                weight = informations[site].weights(position, exact).expand(*exact.shape[:-1], 1)
            sums[site].add(rows, missed, weight.reshape(-1, 1).expand(rows.shape[1], 1))
        return x

    observe(model, progress("re-fitting", len(batches))(batches), gather)
    with torch.inference_mode():
        weighed = {site: moments for site, moments in sums.items() if bool(moments.weight > 0)}
        changes = {s: {"change": moments.change(modules[s].weight)} for s, moments in weighed.items()}
    return judged("refit", state, [fit(state.with_sites(changes), context, goal)], context)
