"""Check that every neuron takes part: one batch through a converted network, eager and compiled."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onespike.conversion.firing import named_neurons
from onespike.conversion.network import is_converted
from onespike.energy.metering import counted
from onespike.errors import ConversionError
from onespike.neurons import Neuron
from onespike.runtime.batches import call, inputs_of, to
from onespike.runtime.forward import device_of
from onespike.sites import Operand, Site, Visit, visiting
from onespike.sites.coverage import ANALOG

SATURATED_SHARE = 0.01  # a neuron is saturated if more than this share of its inputs fires the largest level


@dataclass(frozen=True)
class Verification:
    """The result of one batch; `ok` if every neuron was reached and every product is known."""

    reached: tuple[str, ...]  # neurons that the batch reached
    silent: tuple[str, ...]  # those that it did not reach
    dead: tuple[str, ...]  # those that it reached and that never fired
    saturated: dict[str, float]  # neuron → share of its inputs at the largest level, where that is above 1 %
    uncovered: tuple[str, ...]  # products without a rule, as `module:operation`

    @property
    def ok(self) -> bool:
        return not self.silent and not self.uncovered

    def __str__(self) -> str:
        shares = [f"{name} ({100 * share:.1f} %)" for name, share in self.saturated.items()]
        lists = {"silent": self.silent, "dead": self.dead, "saturated": shares, "uncovered": self.uncovered}
        first = f"{len(self.reached)} of {len(self.reached) + len(self.silent)} neurons reached"
        return "\n".join([first, *(f"{title}: {', '.join(n) or 'none'}" for title, n in lists.items())])


def _reached_when_compiled(model: nn.Module, batch: Any, backend: str) -> set[Site]:
    def tick(operand: Operand, x: Tensor) -> Tensor:
        operand.neuron().ticks.add_(1)  # in a buffer, so that this compiles
        return operand.value(x)

    neurons = dict(named_neurons(model))
    for neuron in neurons.values():
        neuron.register_buffer("ticks", torch.zeros((), device=device_of(model)), persistent=False)
    try:
        with torch.no_grad(), visiting(model, Visit(tick)):
            call(torch.compile(model, backend=backend), batch)
        return {site for site, neuron in neurons.items() if float(neuron.get_buffer("ticks")) > 0}
    finally:
        for neuron in neurons.values():
            del neuron.ticks


def verify(
    model: nn.Module, batch: Any, *, compiled: bool = False, backend: str = "inductor"
) -> Verification:
    """Run one batch of any form through a converted network and report silent, dead and saturated neurons.

    With `compiled`, `torch.compile(model, backend=backend)` runs, too, and a neuron counts as reached if both reach it.
    """
    if not is_converted(model):
        raise ConversionError("verify: this network has no neurons. Convert it first.")
    batch = to(inputs_of(model, batch), device_of(model))
    ledger = counted(model, batch, watch=True)
    places = dict(named_neurons(model))
    neurons = [site for site, neuron in places.items() if isinstance(neuron, Neuron)]
    rows = {site: ledger.sites[site] for site in neurons if site in ledger.sites}
    reached = set(rows)
    if compiled:
        reached &= _reached_when_compiled(model, batch, backend)
    shares = {site: row.saturated / row.elements for site, row in rows.items() if row.saturated}
    return Verification(
        reached=tuple(str(site) for site in neurons if site in reached),
        silent=tuple(str(site) for site in neurons if site not in reached),
        dead=tuple(str(site) for site, row in rows.items() if not row.active),
        saturated={str(site): share for site, share in shares.items() if share > SATURATED_SHARE},
        uncovered=tuple(
            f"{owner}:{operation}"
            for owner, operation in ledger.unruled
            if operation not in ANALOG and Site(owner, operation.replace(".", "::")) not in places
        ),
    )
