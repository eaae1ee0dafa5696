"""What the passes know about each site: Fisher information by position and channel, and samples of its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from onespike.conversion.network import convert
from onespike.errors import UsageError
from onespike.evaluation.pairwise import pairwise
from onespike.neurons import Neuron
from onespike.passes.axes import Axes, reduced
from onespike.passes.base import PassContext, PassState
from onespike.runtime.batches import call, take, take_first, to
from onespike.runtime.batches import count as count_of
from onespike.runtime.forward import Around, backwards, device_of, in_turn
from onespike.sites import Operand, Site, Visit, visiting
from onespike.sites.padding import mask_of, real, token_lengths
from onespike.tasks.base import Drawing

FISHER_IMAGES, SAMPLED_IMAGES, HELD = 256, 64, 128
PART = 4
"""Inputs per backward pass, few enough that it keeps little beside a forward of a whole batch."""
SAMPLES = 2**17
"""Values kept per site, shared by the groups of its positions."""


OCTAVES = 64
"""The number of octaves of row magnitudes: 2⁻³² to 2³¹."""


@dataclass
class Fisher:
    """Sums over inputs at one site, by position and channel: squared gradients, |x|, and numbers of elements.

    At inputs of linear maps `by_octave` holds squared gradients by the octave of a row's mean magnitude and by channel,
    and `rows` the number of rows per octave.
    """

    information: Tensor
    magnitude: Tensor
    elements: float
    fan_out: float
    by_octave: Tensor | None = None
    rows: Tensor | None = None

    def add_rows(self, x: Tensor, gradient: Tensor) -> None:
        """Add the rows of an input of a linear map and their gradients."""
        if self.by_octave is None or self.rows is None:
            self.by_octave, self.rows = (
                x.new_zeros(OCTAVES, x.shape[-1]).double(),
                x.new_zeros(OCTAVES).double(),
            )
        at = octave(x).flatten()
        self.by_octave.index_add_(0, at, gradient.double().pow(2).flatten(0, -2))
        self.rows.index_add_(0, at, torch.ones_like(at, dtype=torch.double))

    def of_rows(self, x: Tensor) -> Tensor:
        """Return the Fisher information of the elements of rows, from rows of the same magnitude.

        An octave without rows takes that of the nearest one, for an error of the same relative size.
        """
        if self.by_octave is None or self.rows is None:
            raise UsageError("passes: rows were seen at inputs of linear maps only.")
        seen = self.rows.nonzero().flatten()
        every = torch.arange(OCTAVES, device=seen.device)
        nearest = seen[(every[:, None] - seen).abs().argmin(1)]
        table = (self.by_octave / self.rows.clamp(min=1)[:, None])[nearest]
        return (table * 4.0 ** (nearest - every).double()[:, None]).to(x)[octave(x)]

    def mean(self, kept: tuple[int, ...]) -> Tensor:
        """Return the Fisher information of one element, along the kept axes."""
        return reduced(self.information[None], kept, "mean") / self.elements


def octave(x: Tensor) -> Tensor:
    """Return the octave of each row's mean magnitude, from 0 to 63.

    >>> octave(torch.tensor([[1.0, 3.0], [0.0, 0.0], [0.2, 0.4]])).tolist()
    [33, 0, 30]
    """
    exponent = x.float().abs().mean(-1).frexp().exponent
    return (exponent.long() - 1 + OCTAVES // 2).clamp(0, OCTAVES - 1) * (x != 0).any(-1)


Probe = Callable[[Site, Tensor, Operand], Tensor]


def unspiked(state: PassState, given: PassContext) -> nn.Module:
    """Return a copy of the network with its sites in place, to be probed: `with probing(copy, probe)`.

    Sites that passes cannot serve are analog in it.
    """
    recipe = state.recipe.replace(exclude=(*state.recipe.exclude, *sorted(map(str, state.unserved))))
    return convert(given.model, state.thresholds, recipe, share_weights=True).requires_grad_(False).eval()


@contextmanager
def probing(model: nn.Module, probe: Probe) -> Iterator[None]:
    """Let every spiking site give its value to `probe(site, x, operand)` and fire nothing within this context."""

    def visit(operand: Operand, x: Tensor) -> Tensor:
        # an expert may get no tokens, a later stage of a detector no boxes
        return probe(operand.site, x, operand) if isinstance(operand.neuron(), Neuron) and x.numel() else x

    with visiting(model, Visit(visit)):
        yield


Heard = Callable[[Tensor], None]
"""Takes in the gradient of one operand."""


def gradients(
    title: str,
    state: PassState,
    given: PassContext,
    inputs: int,
    seed: int,
    see: Callable[[Operand, Tensor, Tensor | None], Heard],
) -> None:
    """One backward pass for every few of the first inputs, from the log-probability of what is drawn from the output.

    `see(operand, value, padding)` is shown the operands of all sites that spike, and returns what takes in their gradients.
    """
    model, generator = unspiked(state, given), torch.Generator().manual_seed(seed)
    batches = take_first(given.inputs, given.portion(inputs))

    def visit(padding: Tensor | None, site: Site, x: Tensor, operand: Operand) -> Tensor:
        if not torch.is_grad_enabled():  # this block will be run again on the way back
            return x
        heard, value = list[bool](), x.detach()
        hear = see(operand, value, padding)

        def once(gradient: Tensor) -> None:
            if heard:
                raise UsageError(
                    f"passes: the gradient at {site} comes in parts, since several blocks read it. Leave out the passes that "
                    "need gradients, or take another --device-map."
                )
            heard.append(True)
            hear(gradient)

        x = x.view_as(x) if x.requires_grad else value.clone().requires_grad_()
        x.register_hook(once)
        return x

    def log_probability(part: Any, places: Tensor, drawn: Drawing) -> Tensor:
        with torch.enable_grad():
            value = drawn(call(model, to(part, device_of(model))), places)
        return value if value.requires_grad else value.requires_grad_()  # no site has a way to the output

    def works() -> Iterator[tuple[Callable[[], Tensor], Around]]:
        for batch in given.progress(title, len(batches))(batches):
            drawn = given.task.drawing(count_of(batch), generator)
            for places in torch.arange(count_of(batch)).split(PART):
                part = take(batch, slice(int(places[0]), int(places[-1]) + 1))
                seen = partial(probing, model, partial(visit, mask_of(part)))
                yield partial(log_probability, part, places, drawn), seen

    backwards(model, works())


def fisher(state: PassState, given: PassContext) -> dict[Site, Fisher]:
    """Return the mean squared gradient of the log-probability of samples from the output, at each site of the original.

    The task defines the samples: a class, for example. Where positions have no meaning, as in a text, they
    are all taken together, and inputs may differ in length. It takes one backward pass per batch and no labels. The
    result is kept, since it does not depend on the thresholds. It leaves out sites without any gradient, and those whose
    sizes differ from call to call.
    """
    if "fisher" in given.memory:
        kept: dict[Site, Fisher] = given.memory["fisher"]
        return kept
    found, uneven, lengths = dict[Site, Fisher](), set[Site](), token_lengths(given.inputs[0])
    axes = {site: state.axes(site) for site in state.spiking}

    def see(operand: Operand, value: Tensor, padding: Tensor | None) -> Heard:
        site = operand.site
        place = axes[site]
        keep = place.center + place.step
        if place.position is not None and given.task.positional:
            fixed = state.thresholds[site].shape[place.position] not in lengths
            keep += (place.position,) if fixed else ()
        fan = operand.synapses.mean_fan_out
        tokens = real(operand.site, value, padding)
        size = reduced((value if tokens is None else value * tokens).abs().double(), keep)
        row = found.setdefault(site, Fisher(torch.zeros_like(size), torch.zeros_like(size), 0.0, fan))
        if row.magnitude.shape != size.shape:
            uneven.add(site)
            return lambda gradient: None
        row.magnitude += size
        share = 1.0 if tokens is None else float(tokens.double().mean())
        row.elements += share * value.numel() / size.numel()

        def hear(gradient: Tensor) -> None:
            row.information += reduced(gradient.double().pow(2), keep)
            if operand.site.operation == "linear" and value.dim() > 1:
                row.add_rows(value, gradient)

        return hear

    gradients("sensitivity", state, given, FISHER_IMAGES, given.seed, see)
    found = {s: row for s, row in found.items() if s not in uneven and bool(row.information.any())}
    given.memory["fisher"] = found
    return found


def held_out(name: str, given: PassContext) -> tuple[range, range]:
    """Return the parts that a pass may learn from, and those at the end that judge it: `HELD` inputs, at most a third."""
    count = len(given.inputs)
    if count < 2:
        raise UsageError(f"the pass '{name}' needs two calibration inputs at least. Give more images.")
    kept = count - max(1, min(-(-given.portion(HELD) // count_of(given.inputs[0])), count // 3))
    return range(kept), range(kept, count)


@dataclass
class Sample:
    """Values of one group of positions of a site, rows first, and how many elements each represents."""

    gain: float
    rows: Tensor
    weight: float
    positions: Tensor | None


def samples(state: PassState, given: PassContext) -> dict[Site, list[Sample]]:
    """Return values sampled from the original network, per site and per group of its positions with one gain.

    Sites that no input reaches, and those whose sizes differ from call to call, are left out.
    """
    identity = {s: None if t.gain is None else t.gain.flatten().tolist() for s, t in state.spiking.items()}
    if given.memory.get("identity") == identity:
        kept: dict[Site, list[Sample]] = given.memory["samples"]
        return kept
    batches = take_first(given.inputs, given.portion(SAMPLED_IMAGES))
    generator = torch.Generator().manual_seed(given.seed + 1)
    found: dict[Site, list[tuple[float, Tensor | None, list[Tensor], list[int]]]] = {}
    axes = {site: state.axes(site) for site in state.spiking}

    def visit(padding: Tensor | None, site: Site, x: Tensor, operand: Operand) -> Tensor:
        place, gain = axes[site], state.thresholds[site].gain
        groups = found.setdefault(site, [])
        if not groups:
            if gain is None or place.position is None:
                groups.append((1.0, None, [], [0]))
            else:
                flat = gain.flatten()
                for value in flat.unique().tolist():
                    groups.append((value, (flat == value).nonzero().flatten(), [], [0]))
        for _, positions, rows, seen in groups:
            if place.position is not None:
                part, tokens = x.movedim(place.position, 1), real(operand.site, x, padding)
                part = (part if positions is None else part[:, positions]).flatten(0, 1)
                if tokens is not None and positions is None:
                    part = part[tokens.flatten()]
            elif operand.site.operation == "conv":  # places of all images rather than all places of a few
                part = x.movedim(1, -1).flatten(0, -2)
            else:
                part = x
            seen[0] += part.numel()
            number = max(1, SAMPLES // (part[0].numel() * len(batches) * len(groups)))
            drawn = torch.randperm(len(part), generator=generator)[:number]
            chosen = part[drawn].detach().cpu()
            if place.position is not None:
                chosen = chosen.unsqueeze(place.position)
            elif operand.site.operation == "conv":
                chosen = chosen.view(*chosen.shape, *[1] * (x.dim() - 2))
            rows.append(chosen)
        return x

    model = unspiked(state, given)

    def sampled(batch: Any) -> None:
        with torch.inference_mode(), probing(model, partial(visit, mask_of(batch))):
            call(model, to(batch, device_of(model)))

    reading = given.progress("sampling", len(batches))(batches)
    for _ in in_turn(model, (partial(sampled, batch) for batch in reading)):
        pass
    images = sum(count_of(batch) for batch in batches)
    result = {}
    for site, groups in found.items():
        merged = [together(rows, axes[site]) for _, _, rows, _ in groups]
        of_site = [
            Sample(gain, rows, seen[0] / rows.numel() / images, positions)
            for (gain, positions, _, seen), rows in zip(groups, merged, strict=True)
            if rows is not None
        ]
        if len(of_site) == len(groups):
            result[site] = of_site
    given.memory["identity"], given.memory["samples"] = identity, result
    return result


def together(rows: list[Tensor], axes: Axes) -> Tensor | None:
    """Join samples of several batches; larger maps give evenly spaced places, as many as the smallest has.

    Where positions or channels differ in number, there is nothing to join.
    """
    if len({part.dim() for part in rows}) > 1:
        return None
    kept = {axis % rows[0].dim() for axis in (*axes.center, *axes.step, *filter(None, (axes.position,)))}
    for axis in range(1, rows[0].dim()):
        sizes = [part.shape[axis] for part in rows]
        if len(set(sizes)) == 1:
            continue
        if axis in kept:
            return None
        places = [torch.arange(min(sizes)) * size // min(sizes) for size in sizes]
        rows = [part.index_select(axis, place) for part, place in zip(rows, places, strict=True)]
    return torch.cat(rows).clone()


def information(row: Fisher, group: Sample, axis: int | None, x: Tensor) -> Tensor:
    """Return the Fisher information of an element, by channel, for the positions of one group."""
    table = row.information / row.elements
    if axis is not None:
        chosen = table if group.positions is None else table.index_select(axis, group.positions)
        table = chosen.mean(axis, keepdim=True)
    return table.to(x.dtype)


def judged(
    state: PassState, others: Sequence[PassState], given: PassContext, held: Sequence[int]
) -> PassState:
    """Return the nearest of the others to the original network on held-out inputs, or the state if it is clearly nearer.

    A few inputs decide a divergence where most have next to none, as in a network that knows its calibration images by
    heart. So a pass is undone only where it loses more than two standard errors of the paired difference.
    """
    before, *found = divergences([state, *others], given, [given.inputs[i] for i in held])
    best = min(range(len(others)), key=lambda index: float(found[index].sum()))
    worse = found[best] - before
    error = worse.std() * len(worse) ** 0.5 if len(worse) > 1 else 0.0
    return others[best] if bool(worse.sum() <= 2 * error) else state  # the state, too, where one is no number


def divergences(states: Sequence[PassState], given: PassContext, batches: Sequence[Any]) -> Tensor:
    """Return KL(original ‖ spiking) of each state, a row, on each batch."""
    model = given.model
    networks = [model, *(convert(model, each.thresholds, each.recipe, share_weights=True) for each in states)]
    columns = [
        [float(given.task.divergence(expected, actual)) for actual in others]
        for _, _, (expected, *others) in pairwise(networks, ((batch, None) for batch in batches))
    ]
    return torch.tensor(columns).double().T
