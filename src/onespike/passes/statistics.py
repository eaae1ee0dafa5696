"""What the passes know about each site: Fisher information by position and channel, and samples of its values."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike.conversion.firing import is_spiking
from onespike.errors import UsageError
from onespike.evaluation.pairwise import pairwise
from onespike.passes.base import Axes, PassContext, PassState, reduced
from onespike.runtime.batches import call, count, take, take_first, to
from onespike.runtime.forward import device_of, in_turn
from onespike.runtime.progress import progress
from onespike.sites import Operand, Site, Visit, visiting
from onespike.sites.padding import mask_of, real, token_lengths

FISHER_IMAGES, SAMPLED_IMAGES, HELD = 256, 64, 128
PART = 4  # inputs per backward pass, few enough that it takes little beside a forward of a whole batch
SAMPLES = 2**17  # values drawn per site, shared by the groups of its positions
OCTAVES = 64  # the number of octaves of row magnitudes: 2⁻³² to 2³¹

Probe = Callable[[Operand, Tensor, Tensor | None], Tensor]  # probe(operand, x, padding): the value of a site


def unspiked(state: PassState, context: PassContext) -> nn.Module:
    """Return a copy of the network to be `probed`; sites that passes cannot serve are analog."""
    recipe = state.recipe.replace(exclude=(*state.recipe.exclude, *sorted(map(str, state.unserved))))
    return replace(state, recipe=recipe).network(context.model).requires_grad_(False).eval()


@contextmanager
def probed(model: nn.Module, batch: Any, probe: Probe) -> Iterator[Any]:
    """Give a copy's output on a batch; until the context ends every spiking site has the value of the probe, and fires nothing."""
    padding = mask_of(batch)

    def visit(operand: Operand, x: Tensor) -> Tensor:
        # an expert may get no tokens, a later stage of a detector no boxes
        return probe(operand, x, padding) if is_spiking(operand.neuron()) and x.numel() else x

    with visiting(model, Visit(visit)):
        yield call(model, to(batch, device_of(model)))


def observe(model: nn.Module, batches: Iterable[Any], probe: Probe) -> int:
    """Run a copy of the network on batches, and return its number of inputs."""

    def forward(batch: Any) -> int:
        with torch.inference_mode(), probed(model, batch, probe):
            return count(batch)

    return sum(in_turn(model, (partial(forward, batch) for batch in batches)))


Hear = Callable[[Tensor], None]
See = Callable[[Operand, Tensor, Tensor | None], Hear]
"""see(operand, value, padding) is shown an operand, and returns what takes in its gradient."""


def gradients(title: str, state: PassState, context: PassContext, inputs: int, seed: int, see: See) -> None:
    """One backward pass for every few of the first inputs, from the log-probability of what is drawn from the output."""
    model, generator = unspiked(state, context), torch.Generator().manual_seed(seed)
    batches = take_first(context.inputs, context.portion(inputs))

    def listen(operand: Operand, x: Tensor, padding: Tensor | None) -> Tensor:
        if not torch.is_grad_enabled():  # this block will be run again on the way back
            return x
        hear = see(operand, x.detach(), padding)
        x = x.view_as(x) if x.requires_grad else x.detach().clone().requires_grad_()
        x.register_hook(hear)
        return x

    def both_ways(part: Any, places: Tensor, drawn: Callable[[Any, Tensor], Tensor]) -> None:
        with torch.enable_grad(), probed(model, part, listen) as output:
            value = drawn(output, places)
            if value.requires_grad:  # else no site has a way to the output
                value.backward()

    bar = progress(title, len(batches))

    def works() -> Iterator[Callable[[], None]]:
        for batch in bar(batches):
            drawn = context.task.drawing(count(batch), generator)
            for places in torch.arange(count(batch)).split(PART):
                part = take(batch, slice(int(places[0]), int(places[-1]) + 1))
                yield partial(both_ways, part, places, drawn)

    for _ in in_turn(model, works(), gradients=True):
        pass


@dataclass
class Fisher:
    """Sums over inputs at one site, by position and channel: squared gradients, |x|, and numbers of elements.

    At inputs of linear maps `by_octave` holds squared gradients by the octave of a row's mean magnitude and by channel,
    and in a last column the number of rows.
    """

    information: Tensor
    magnitude: Tensor
    elements: float
    fan_out: float
    by_octave: Tensor | None = None

    def add(self, axes: tuple[int, ...], x: Tensor | None, gradient: Tensor) -> None:
        """Add the gradient of a value, which is known if it is an input of a linear map."""
        square = gradient.double().pow(2)
        self.information += reduced(square, axes)
        if x is not None:
            if self.by_octave is None:
                self.by_octave = x.new_zeros(OCTAVES, x.shape[-1] + 1).double()
            self.by_octave.index_add_(0, octave(x).flatten(), F.pad(square.flatten(0, -2), (0, 1), value=1.0))

    def of_rows(self, x: Tensor) -> Tensor:
        """Return the Fisher information of rows of this magnitude, or of the nearest one for the same relative error."""
        if self.by_octave is None:
            raise UsageError("passes: rows were seen at inputs of linear maps only.")
        rows = self.by_octave[:, -1:]
        seen = rows.flatten().nonzero().flatten()
        every = torch.arange(OCTAVES, device=seen.device)
        nearest = seen[(every[:, None] - seen).abs().argmin(1)]
        table = (self.by_octave[:, :-1] / rows.clamp(min=1))[nearest]
        return (table * 4.0 ** (nearest - every).double()[:, None]).to(x)[octave(x)]

    def of_positions(self, axis: int | None, positions: Tensor | None, like: Tensor) -> Tensor:
        """Return the Fisher information of an element, by channel, at some positions along an axis, or at all."""
        table = self.information / self.elements
        if axis is not None:
            chosen = table if positions is None else table.index_select(axis, positions)
            table = chosen.mean(axis, keepdim=True)
        return table.to(like.dtype)

    def mean(self, axes: tuple[int, ...]) -> Tensor:
        """Return the Fisher information of one element, along these axes."""
        return reduced(self.information[None], axes, "mean") / self.elements

    def weights(self, position: int, like: Tensor) -> Tensor:
        """Return the Fisher information of each position relative to their mean, along its axis of an operand."""
        table = self.information.movedim(position, 0).flatten(1).sum(1).to(like)
        return (table / table.mean()).view(-1, *[1] * (-position - 1))


def octave(x: Tensor) -> Tensor:
    """Return the octave of each row's mean magnitude, from 0 to 63.

    >>> octave(torch.tensor([[1.0, 3.0], [0.0, 0.0], [0.2, 0.4]])).tolist()
    [33, 0, 30]
    """
    exponent = x.float().abs().mean(-1).frexp().exponent
    return (exponent.long() - 1 + OCTAVES // 2).clamp(0, OCTAVES - 1) * (x != 0).any(-1)


def fisher(state: PassState, context: PassContext) -> dict[Site, Fisher]:
    """Return the mean squared gradient of the log-probability of samples from the output, at each site of the original.

    Where positions have no meaning, as in a text, they are all taken together. The result is remembered, since it does not
    depend on the thresholds. It leaves out sites without any gradient, and those whose sizes differ from call to call.
    """
    memory = context.memory.of(state.thresholds)
    if memory.fisher is not None:
        return memory.fisher
    lengths, rows, uneven = token_lengths(context.inputs[0]), dict[Site, Fisher](), set[Site]()

    def see(operand: Operand, value: Tensor, padding: Tensor | None) -> Hear:
        site, tokens = operand.site, real(operand.site, value, padding)
        center, step, position = state.axes[site]
        axes, shape = center + step, state.thresholds[site].shape
        if context.task.positional and position is not None and shape[position] not in lengths:
            axes += (position,)
        size = reduced((value if tokens is None else value * tokens).abs().double(), axes)
        if site not in rows:
            zeros = torch.zeros_like(size)
            rows[site] = Fisher(zeros, zeros.clone(), 0.0, operand.synapses.mean_fan_out)
        row = rows[site]
        if row.magnitude.shape != size.shape:
            uneven.add(site)
            return lambda gradient: None
        row.magnitude += size
        share = 1.0 if tokens is None else float(tokens.double().mean())
        row.elements += share * value.numel() / size.numel()
        return partial(row.add, axes, value if site.operation == "linear" and value.dim() > 1 else None)

    gradients("sensitivity", state, context, FISHER_IMAGES, context.seed, see)
    memory.fisher = {s: row for s, row in rows.items() if s not in uneven and row.information.any()}
    return memory.fisher


@dataclass
class Sample:
    """Values drawn at the positions of a site with one gain (None for all positions), rows first, at most so many a batch."""

    gain: float
    positions: Tensor | None
    most: int
    drawn: list[Tensor] = field(default_factory=list)
    elements: int = 0
    rows: Tensor = field(init=False)
    weight: float = field(init=False)  # how many elements of an input each value represents

    def draw(
        self, x: Tensor, operand: Operand, position: int | None, padding: Tensor | None, generator: Any
    ) -> None:
        """Draw rows of an operand."""
        conv = position is None and operand.site.operation == "conv"
        rows = x
        if position is not None:
            rows, tokens = x.movedim(position, 1), real(operand.site, x, padding)
            rows = (rows if self.positions is None else rows[:, self.positions]).flatten(0, 1)
            if tokens is not None and self.positions is None:
                rows = rows[tokens.flatten()]
        elif conv:  # places of all images rather than all places of a few
            rows = x.movedim(1, -1).flatten(0, -2)
        self.elements += rows.numel()
        number = max(1, self.most // rows[0].numel())
        chosen = rows[torch.randperm(len(rows), generator=generator)[:number]].detach().cpu()
        if position is not None:
            chosen = chosen.unsqueeze(position)
        self.drawn.append(chosen.view(*chosen.shape, *[1] * (x.dim() - 2)) if conv else chosen)

    def join(self, axes: Axes, images: int) -> bool:
        """Join what was drawn, of larger maps at evenly spaced places; return False where positions or channels differ."""
        rows = self.drawn
        if len({part.dim() for part in rows}) > 1:
            return False
        apart = {axis % rows[0].dim() for axis in (*axes.center, *axes.step, *filter(None, (axes.position,)))}
        for axis in range(1, rows[0].dim()):
            sizes = [part.shape[axis] for part in rows]
            if len(set(sizes)) > 1 and axis in apart:
                return False
            if len(set(sizes)) > 1:
                places = [torch.arange(min(sizes)) * size // min(sizes) for size in sizes]
                rows = [part.index_select(axis, place) for part, place in zip(rows, places, strict=True)]
        self.rows, self.drawn = torch.cat(rows).clone(), []
        self.weight = self.elements / self.rows.numel() / images
        return True


def samples(state: PassState, context: PassContext) -> dict[Site, list[Sample]]:
    """Return values of the original network by site and group of positions with one gain; as in `fisher`, sites are left out."""
    gains = {s: None if t.gain is None else t.gain.flatten().tolist() for s, t in state.spiking.items()}
    memory = context.memory.of(state.thresholds)
    if memory.samples is not None and memory.samples[0] == gains:
        return memory.samples[1]
    batches = take_first(context.inputs, context.portion(SAMPLED_IMAGES))
    generator = torch.Generator().manual_seed(context.seed + 1)
    groups: dict[Site, list[Sample]] = {}

    def grouped(site: Site, position: int | None) -> list[Sample]:
        gain, most = state.thresholds[site].gain, SAMPLES // len(batches)
        if gain is None or position is None:
            return [Sample(1.0, None, most)]
        flat, values = gain.flatten(), gain.unique().tolist()
        return [Sample(g, (flat == g).nonzero().flatten(), most // len(values)) for g in values]

    def draw(operand: Operand, x: Tensor, padding: Tensor | None) -> Tensor:
        site, position = operand.site, state.axes[operand.site].position
        if site not in groups:
            groups[site] = grouped(site, position)
        for group in groups[site]:
            group.draw(x, operand, position, padding, generator)
        return x

    images = observe(unspiked(state, context), progress("sampling", len(batches))(batches), draw)
    joined = {s: [group.join(state.axes[s], images) for group in of_site] for s, of_site in groups.items()}
    memory.samples = gains, {s: of_site for s, of_site in groups.items() if all(joined[s])}
    return memory.samples[1]


def held_out(name: str, context: PassContext) -> tuple[range, range]:
    """Return the parts that a pass may learn from, and those at the end that judge it: `HELD` inputs, at most a third."""
    parts = len(context.inputs)
    if parts < 2:
        raise UsageError(f"the pass '{name}' needs two calibration inputs at least. Give more images.")
    free = parts - max(1, min(-(-context.portion(HELD) // count(context.inputs[0])), parts // 3))
    return range(free), range(free, parts)


def judged(name: str, state: PassState, others: Sequence[PassState], context: PassContext) -> PassState:
    """Return the nearest of the others to the original network on held-out inputs, or the state if it is clearly nearer.

    Few inputs decide where a network knows most by heart, so a pass must lose more than two standard errors to be undone.
    """
    held = [context.inputs[i] for i in held_out(name, context)[1]]
    before, *after = divergences([state, *others], context, held)
    best = min(range(len(others)), key=lambda index: float(after[index].sum()))
    worse = after[best] - before
    error = worse.std() * len(worse) ** 0.5 if len(worse) > 1 else 0.0
    return others[best] if bool(worse.sum() <= 2 * error) else state  # the state, too, where one is no number


def divergences(states: Sequence[PassState], context: PassContext, batches: Sequence[Any]) -> Tensor:
    """Return KL(original ‖ spiking) of each state, a row, on each batch."""
    networks = [context.model, *(state.network(context.model) for state in states)]
    columns = [
        [float(context.task.divergence(expected, actual)) for actual in others]
        for _, _, (expected, *others) in pairwise(networks, ((batch, None) for batch in batches))
    ]
    return torch.tensor(columns).double().T
