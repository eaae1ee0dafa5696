"""Metering: within `metered(model)` a ledger counts every forward of a converted network.

Products of two spiking operands are counted pair by pair: ECMT's figure, and the cautious double count.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from onespike.conversion.firing import Analog, is_spiking, owners_of
from onespike.conversion.network import merging_of
from onespike.energy.analog_functions import AnalogFunctions
from onespike.energy.columns import READINGS
from onespike.energy.ledger import Ledger, SiteCount, add_up, sample
from onespike.neurons import Neuron
from onespike.runtime.batches import call, count
from onespike.runtime.forward import evaluating
from onespike.sites import Operand, Product, Site, Visitor, visiting
from onespike.sites.coverage import Operations, Owners
from onespike.sites.padding import mask_of, real

NEGLIGIBLE = 1e-3  # in units of one step: a smaller sum of spikes is zero apart from rounding


class Sent(NamedTuple):
    """What one operand of a product sends: its additions by reading, and where it sent anything before."""

    product: str
    additions: dict[str, Tensor]
    earlier: Tensor | None


class Pairs:
    """Pairs of spikes: what one operand adds times what the other adds, in each reading of a spike.

    A pair is what the product says it is: two elements that it multiplies, whichever function of torch does so.
    After the first timestep an operand meets everything its partner has sent before. So the pairs of A·B, A·ΣB and
    ΣA·B are counted, for readings in which a sum of spikes is one.
    """

    def __init__(self) -> None:
        self.first: Sent | None = None
        self.second: Sent | None = None
        self.before: dict[tuple[Site, int], Tensor] = {}

    def update(self, ledger: Ledger, operand: Operand, fired: Tensor, output: Tensor) -> None:
        """Add one operand; the second operand of a product gives the pairs of both, which stand at the first.

        The first may come in blocks of rows: blocks after the second operand give separate pairs.
        """
        product, site = operand.product, operand.site
        if len(product.operands) != 2:
            return
        call, now, earlier = operand.call, operand.timestep, None
        readings = {name: r for name, r in READINGS.items() if r.over_steps or call is None}
        additions = {name: reading.additions(fired) for name, reading in readings.items()}
        if call is not None:  # several timesteps
            earlier = self.before.pop((site, call), None) if now > 1 else None
            smallest = min(float(s[s > 0].min()) for _, s in operand.neuron().code().populations)
            self.before[site, call] = output.abs() * now > NEGLIGIBLE * smallest
        sent = Sent(site.product, additions, earlier)
        if site.role != next(iter(product.operands)):
            self.second = sent
        else:
            self.first, self.second = sent, self.second if operand.again else None
        first, second = self.first, self.second
        if first is None or second is None or first.product != second.product:
            return
        self.first = None
        pairs = {
            name: _pairs(product, adds, second.additions[name])
            + (0.0 if second.earlier is None else _pairs(product, adds, second.earlier))
            + (0.0 if first.earlier is None else _pairs(product, first.earlier, second.additions[name]))
            for name, adds in first.additions.items()
        }
        add_up(ledger.sites[site.operand(next(iter(product.operands)))].pairs, pairs)


def _pairs(product: Product, first: Tensor, second: Tensor) -> float:
    """Return the sum of all results of a product of two operands, without making them where it need not."""
    if product.visible is not None and not product.weighted:  # a mask hides some results
        return float((torch.matmul(first.mT.float(), product.visible.float()).double() * second).sum())
    if product.indices:  # sums over the indices of one operand come first
        return float(torch.einsum(f"{product.indices}->", first.double(), second.double()))
    kind = next(iter(product.operands.values())).dtype
    return float(product.multiply(first.to(kind), second.to(kind)).sum(dtype=torch.float64))


class Meter(Visitor):
    """Let every neuron fire once, and write into a ledger what that counts."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.pairs, self.blockwise = ledger, Pairs(), ledger.blockwise
        self.functions: AnalogFunctions | None = None

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        ledger, site, every = self.ledger, operand.site, self.ledger.every
        with ledger.counting():
            neuron = operand.neuron()
            if site not in ledger.sites:
                dense = getattr(neuron, "dense", False)
                ledger.sites[site] = SiteCount(site, operand.role, is_spiking(neuron), dense)
            row, synapses, tokens = ledger.sites[site], operand.synapses, self._tokens(operand, x)
            share = 1.0 if tokens is None else _share(operand, tokens)
            ledger.timesteps = max(ledger.timesteps, operand.timestep)
            if operand.timestep == 1:  # the original network, the base of the ratio, runs once
                row.macs += round(share * synapses.macs)
            row.elements += x.numel() if tokens is None else int(tokens.sum()) * (x.numel() // tokens.numel())
            row.visits += not operand.again
            # the softmax of a rule; others are seen as functions
            if operand.product.weighted and site.role == "lhs":
                ledger.functions["softmax"] += 2 * x.numel()
                if is_spiking(neuron):  # of scores in fixed point the exponentials are left
                    ledger.folded["softmax"] += x.numel()
                    ledger.values += x.numel()
            compared = is_spiking(neuron) and neuron.code().compared
            if self.functions is not None and not compared and operand.role != "input":
                self.functions.need(x, scaled=isinstance(neuron, Neuron))
        if not isinstance(neuron, Neuron):
            return x
        if neuron.dense:
            row.scaled += 0 if operand.role == "input" else x.numel()
            return operand.value(x)
        code = neuron.code()
        if code.offset is not None and site.operation not in ("linear", "conv"):
            row.constant_macs += share * synapses.macs / _shared(code.offset, x)
        row.fire(code, round(share * x.numel()), round(share * synapses.outputs))
        # where weights are integers the product fires its operand, and this only counts
        with ledger.counting() if operand.fired_by_product else nullcontext():
            fired, output = operand.fire(x)
        with ledger.counting():
            fan_out, each, later = synapses.fan_out, 1.0, operand.timestep > 1
            if tokens is not None:
                fired = fired * tokens
            if every > 1:
                fired = sample(fired, every)
                each = x.numel() / max(len(fired), 1)
                fan_out = sample(fan_out.expand_as(x), every) if isinstance(fan_out, Tensor) else fan_out
            row.count(neuron.largest, fired, fan_out, each, later)
            if every == 1:
                self.pairs.update(ledger, operand, fired, output)
                ledger.observe(operand, neuron, x, fired, output)
        return output

    def _tokens(self, operand: Operand, x: Tensor) -> Tensor | None:
        """Return which elements are not padding; None for all."""
        mask, rows = self.ledger.padding, operand.rows
        if mask is not None and rows is not None and rows.of == mask.shape[1]:
            mask = mask[:, rows.start : rows.stop]
        return real(operand.site, x, mask)


def _share(operand: Operand, tokens: Tensor) -> float:
    """Return the part of a product that is made for tokens, not for padding."""
    visible, lhs = operand.product.visible, operand.product.operands.get("lhs")
    if lhs is None or visible is None or operand.site.role != "lhs":
        return float(tokens.double().mean())
    rows = visible & tokens  # a padding query asks for nothing
    return int(rows.sum()) / max(int(visible.expand_as(rows).sum()), 1)


def _shared(offset: Tensor, x: Tensor) -> int:
    """Return how many rows or columns of an operand share one constant, and so one product."""
    return math.prod(
        x.shape[axis] for axis in (-2, -1) if offset.dim() < -axis or offset.shape[axis] < x.shape[axis]
    )


def counted(snn: nn.Module, *batches: Any, ledger: Ledger | None = None, watch: bool | None = None) -> Ledger:
    """Return what a converted network counts on these batches, in evaluation mode."""
    with evaluating(snn), metered(snn, ledger, watch=watch) as ledger:
        for batch in batches:
            call(snn, batch)
    return ledger


@contextmanager
def metered(model: nn.Module, ledger: Ledger | None = None, *, watch: bool | None = None) -> Iterator[Ledger]:
    """Count every forward of a converted network within this context; the outputs do not change.

    Forwards of other threads are refused: give those copies of the network, and merge their ledgers. To `watch` for
    products outside every rule costs time; by default only networks that have some are watched.
    """
    ledger, thread = ledger if ledger is not None else Ledger(), get_ident()
    meter, places, fewer = Meter(ledger), owners_of(model), merging_of(model)

    def count_inputs(model: nn.Module, args: Any, kwargs: Any) -> None:
        if thread == get_ident():
            ledger.inputs += count(args or kwargs)
            ledger.merged += 0.0 if fewer is None else fewer.saved * count(args or kwargs)
            ledger.padding = mask_of(kwargs)

    if watch is None:
        sites = (site for place in places for site in place.values())
        watch = any(isinstance(site, Analog) and site.macs is not None for site in sites)
    with ExitStack() as stack:
        if places:
            stack.enter_context(visiting(model, meter))
        stack.enter_context(model.register_forward_pre_hook(count_inputs, with_kwargs=True))
        if ledger.every == 1:
            meter.functions = AnalogFunctions(ledger)
            stack.enter_context(meter.functions)
        if watch:
            owners = Owners(model)
            stack.enter_context(owners.following())
            # the original network, whose MACs these are, runs once
            once = lambda: not places or places[0].timestep == 1  # noqa: E731
            meter.operations = Operations(owners, ledger.unruled, once)
            stack.enter_context(meter.operations)
        yield ledger
