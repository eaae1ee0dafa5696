"""Calibration: model + unlabeled batches → thresholds with their provenance, in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from onespike.calibration.decoding import decoding_sites
from onespike.calibration.observers import Histogram
from onespike.calibration.thresholds import EDGES, SiteThreshold, Thresholds, calibrated_by, is_bias
from onespike.errors import CalibrationError, UsageError
from onespike.neurons import NEURONS
from onespike.neurons.scale_and_fire import eight_bits
from onespike.recipe import Recipe
from onespike.runtime.batches import call, count, inputs_of, readable, to
from onespike.runtime.forward import check_network, device_of, evaluating, in_memory, in_turn
from onespike.runtime.processes import ALONE, Processes
from onespike.sites import Places, Site
from onespike.sites.padding import mask_of, without_padding
from onespike.sites.tracer import Trace, Tracer, joined
from onespike.sites.unfused import plain
from onespike.spikes import parse_levels

CHANNELS = 4  # inputs with at most so many channels are images: each channel has its range
ROUNDING = 2.0**-23  # differences up to this share of an output's spread are those of float32


class _SiteObserver:
    """The statistics of one site; its kind is known only at the end of the stream."""

    def __init__(self, site: Site, x: Tensor, recipe: Recipe) -> None:
        self.axis = {"linear": -1, "conv": -(x.dim() - 1)}.get(site.operation)
        self.may_be_softmax = site.operation in ("matmul", "einsum") and x.dim() > 1
        by_channel = recipe.granularity == "channel" and self.axis is not None
        self.histogram = Histogram(self.axis if by_channel else None)
        self.by_head, self.heads = x.dim() > 2, torch.zeros(())  # the largest value of each
        self.by_color = site.operation == "conv" and x.shape[1] <= CHANNELS
        self.low, self.high = torch.tensor(torch.inf), torch.tensor(-torch.inf)

    def update(self, site: Site, x: Tensor) -> None:
        self.histogram.update(x)
        low, high = self.histogram.minimum, self.histogram.maximum
        if not bool((low.isfinite() & high.isfinite()).all()):
            raise CalibrationError(
                f"calibrate: {site} receives NaN or infinite values. "
                "Check the weights and the preprocessing, or calibrate in float32."
            )
        if self.by_color:
            darkest, brightest = x.detach().float().movedim(1, 0).flatten(1).aminmax(dim=1)
            self.low, self.high = darkest.minimum(self.low), brightest.maximum(self.high)
        if self.may_be_softmax:
            sums = x.sum(-1, dtype=torch.float32)
            is_row = (sums - 1).abs() < 0.02
            self.may_be_softmax = bool((is_row | (sums == 0)).all()) and bool((low >= 0).all())
        if self.may_be_softmax and self.by_head:
            largest = x.detach().float().movedim(-3, 0).flatten(1).amax(1)
            if self.heads.dim() and len(self.heads) != len(largest):  # batch and heads in one dimension
                self.by_head = False
            else:
                self.heads = largest.maximum(self.heads)

    def merge(self, other: _SiteObserver) -> _SiteObserver:
        self.histogram.merge(other.histogram)
        self.may_be_softmax = self.may_be_softmax and other.may_be_softmax
        if self.by_head and other.by_head:
            self.heads = self.heads.maximum(other.heads)
        self.low, self.high = self.low.minimum(other.low), self.high.maximum(other.high)
        return self

    def threshold(self, side: int, recipe: Recipe) -> Tensor:
        value = self.histogram.quantile(recipe.percentile, side, recipe.domain)
        return value[0] if self.histogram.axis is None else value.view(-1, *[1] * (-self.histogram.axis - 1))

    @property
    def span(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest value, of each channel of an image or of the site; else 0 is between them."""
        if self.by_color and self.axis is not None:
            low, high = (end.cpu().view(-1, *[1] * (-self.axis - 1)) for end in (self.low, self.high))
        else:
            high, low = (s * self.histogram.quantile(0, s).max().cpu() for s in (+1, -1))
        return low, high

    @property
    def largest(self) -> float:
        return max(float(self.histogram.quantile(0, side).max()) for side in (+1, -1))

    def softmax_threshold(self, recipe: Recipe, levels: tuple[int, ...]) -> Tensor:
        """Return eq. 16, the largest softmax output over the largest level, or the threshold that the recipe fixes."""
        # a neuron whose threshold is the top of its range, not one step, takes the largest output itself
        top = levels[-1] if NEURONS[recipe.neuron].scaled else 1
        if not isinstance(recipe.softmax, str):
            return torch.tensor(float(recipe.softmax))
        if recipe.softmax_percentile is not None:
            return self.histogram.quantile(recipe.softmax_percentile, +1).max() / top
        if recipe.softmax == "head" and self.by_head:
            return self.heads.view(-1, 1, 1) / top
        return torch.tensor(self.largest) / top


def calibrate(
    model: nn.Module,
    batches: Iterable[Any],
    recipe: Recipe | None = None,
    *,
    provenance: Mapping[str, Any] | None = None,
    processes: Processes = ALONE,
) -> Thresholds:
    """Run the unlabeled batches through the network and take a threshold for every site.

    The network is left unchanged. Memory does not grow with the number of batches (of a network in blocks: by the hidden
    states of each), and their order and split do not change the result.

    A batch is a tensor, a tuple of positional arguments, or a mapping of keyword arguments; of the (x, labels) that a
    `DataLoader` yields, a network with one input is given x. The recipe is the paper's by default. `provenance`, facts
    about the data, is kept with the thresholds. Of several processes each gives every n-th batch, and gets the
    thresholds of all.

    >>> thresholds = calibrate(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), [torch.randn(8, 2)])
    >>> [str(site) for site in thresholds]
    ['0:linear0_input', '2:linear0_input']
    """
    recipe = recipe or Recipe()
    check_network("calibrate", model)
    if any(isinstance(module, Places) for module in model.modules()):
        raise UsageError("calibrate: this network is converted already. Call revert_ on it first.")
    observers: dict[Site, _SiteObserver] = {}
    activations, device, outputs = recipe.placement == "activation", device_of(model), _Variation()

    def observe(padding: Tensor | None, site: Site, x: Tensor) -> None:
        observer = observers.get(site)
        if observer is None:
            observer = observers[site] = _SiteObserver(site, x, recipe)
        if x.numel():  # a detector that finds nothing hands nothing to its later stages
            for part in without_padding(site, x, padding):
                observer.update(site, part)

    def observed(batch: Any) -> tuple[int, Trace]:
        size = count(batch)
        tracer = Tracer(model, partial(observe, mask_of(batch)), activations, varying)
        with readable("calibrate", batch):
            outputs.update(call(tracer.run, batch), size)
        first[:] = first or [batch]
        return size, tracer.trace

    samples, trace, varying, first = 0, Trace(), set[Site](), list[Any]()
    with evaluating(model), plain(model):
        inputs = (to(inputs_of(model, batch), device) for batch in batches)
        # a batch without inputs has nothing to observe
        works = (partial(observed, batch) for batch in inputs if count(batch))
        for number, (size, of_batch) in enumerate(in_turn(model, works)):
            for facts in of_batch.sites.values():
                facts.first = number * processes.count + processes.rank
            samples, trace = samples + size, joined(trace, of_batch)
            varying.update(site for site, facts in trace.sites.items() if facts.varies)
        if first and in_memory(model):
            trace.sites |= decoding_sites(model, first[0], trace, partial(observe, None))
    trace = joined(*processes.exchange(trace))
    samples, outputs = sum(processes.exchange(samples)), reduce(_Variation.merge, processes.exchange(outputs))
    if not samples:
        raise CalibrationError("calibrate: there are no calibration inputs. Give at least one batch.")
    if not trace.sites and not trace.uncovered:
        raise CalibrationError(
            "calibrate: this network multiplies nothing by a weight, so there is nothing to convert. "
            "Check that the right network was loaded."
        )
    if activations and not any(site.is_activation for site in trace.sites):
        raise CalibrationError(
            "calibrate: placement 'activation' puts neurons in place of ReLUs, and this network has none. "
            "Use placement='synapse'."
        )
    if not trace.output_depends or (samples > 1 and not outputs.varies):
        raise CalibrationError(
            f"calibrate: the network's output is the same for all {samples} inputs. "
            "Check its weights, and that the calibration inputs differ."
        )
    if processes.count > 1:
        observers = {site: _observed(processes, observers.get(site)) for site in trace.sites}
    origin = {
        "model": type(model).__name__,
        "samples": samples,
        "observer": f"percentile {recipe.percentile:g} ({recipe.domain}), error ≤ {2.0 ** -(Histogram().mantissa_bits + 1):.2g}",
        "torch": str(torch.__version__),
        "recipe": calibrated_by(recipe),
    }
    uncovered = {key: macs / samples for key, macs in trace.uncovered.items()}
    entries = _thresholds(model, trace, observers, recipe, samples)
    return Thresholds(entries, uncovered, trace.folds, origin | dict(provenance or {}))


def _observed(processes: Processes, observer: _SiteObserver | None) -> _SiteObserver:
    """Return what all processes have seen at one site; some may not have reached it."""
    parts = () if observer is None else (observer, observer.histogram)
    for part in parts:  # they exchange what is on the CPU
        vars(part).update({name: x.cpu() for name, x in vars(part).items() if isinstance(x, Tensor)})
    return reduce(_SiteObserver.merge, filter(None, processes.exchange(observer)))


class _Variation:
    """Whether any of a network's floating-point outputs differs between two inputs, beyond rounding."""

    def __init__(self) -> None:
        self.first: list[Tensor] = []  # what the network answers to the first input
        self.varies = False

    def update(self, output: Any, size: int) -> None:
        answers = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]
        if any(bool(x.isnan().any()) for x in answers):
            raise CalibrationError("calibrate: the output holds NaN. Check the weights, or use float32.")
        if not answers or any(not x.dim() or len(x) != size for x in answers):
            self.varies = True  # not one row per input: nothing to compare
            return
        self.first = self.first or [x[0].cpu().clone() for x in answers]
        pairs = zip(answers, self.first, strict=False)
        self.varies = self.varies or any(_differ(x, first.to(x.device)) for x, first in pairs)

    def merge(self, other: _Variation) -> _Variation:
        pairs = zip(other.first, self.first, strict=False)
        self.varies |= other.varies or any(_differ(x[None], first) for x, first in pairs)
        self.first = self.first or other.first
        return self


def _differ(x: Tensor, first: Tensor) -> bool:
    """Return whether an output differs from the first input's, relative to its own spread.

    An output without any spread, such as that of a head of zeros that is yet to be trained, shows nothing of its input.
    """
    if x.shape[1:] != first.shape:
        return True
    gap = x.float() - first.float()
    finite = gap.isfinite()
    if not bool(finite.any()):
        return True
    low, high = x.float()[finite].aminmax()
    return bool((low == high) | (gap[finite].abs().max() > ROUNDING * (high - low)))


def _thresholds(
    model: nn.Module, trace: Trace, observers: dict[Site, _SiteObserver], recipe: Recipe, samples: int
) -> dict[Site, SiteThreshold]:
    levels, entries = recipe.payload(parse_levels(recipe.levels).integers), {}
    for site, facts in trace.sites.items():
        observer, role = observers[site], trace.role(site)
        if observer.histogram.empty:
            raise CalibrationError(
                f"calibrate: nothing ever reached {site}: the stages before it found nothing in any input. "
                "Calibrate on images with objects, or lower the network's own score threshold."
            )
        if role == "activation" and observer.may_be_softmax:
            role = "softmax"
        positive, negative = observer.threshold(+1, recipe), observer.threshold(-1, recipe)
        if site.is_activation:  # like the ReLU that it replaces, it passes nothing below zero
            negative = torch.zeros_like(negative)
        if role == "softmax":
            positive, negative = observer.softmax_threshold(recipe, levels), torch.zeros(())
        entries[site] = SiteThreshold(
            site, role, positive.cpu(), negative.cpu(), levels, observer.largest, facts.shape,
            facts.calls / trace.forwards, facts.macs / samples,
        )  # fmt: skip
        if recipe.io == "int8" and role in EDGES:
            centered = recipe.centers == "all" or is_bias(site, model)
            entries[site] = replace(entries[site], **eight_bits(*observer.span, centered))
    softmax = {site: t for site, t in entries.items() if t.role == "softmax"}
    if recipe.softmax == "model" and softmax:
        most = torch.stack([t.positive for t in softmax.values()]).max()
        entries |= {site: replace(t, positive=most) for site, t in softmax.items()}
    return entries
