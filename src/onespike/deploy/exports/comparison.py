"""Compare a written file with the network: the spikes of every site, and the answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from onespike.errors import UsageError
from onespike.runtime.batches import call
from onespike.runtime.forward import evaluating
from onespike.sites import Operand, Visit, visiting


class Answer(NamedTuple):
    """The tensors of an output in order, and the signed counts of every site in firing order."""

    outputs: list[Tensor]
    counts: list[tuple[str, Tensor]]


Run = Callable[[Any], Answer]
"""How a runtime answers a batch; without counts where a file has no names for them."""


class Plain(nn.Module):
    """A network as it is, with the arguments of any call."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.network(*args, **kwargs)


class Recorded(Plain):
    """A network whose forward also returns the counts of every site."""

    sites: list[str]

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Tensor]]:
        sites, counts = list[str](), list[Tensor]()

        def record(operand: Operand, x: Tensor) -> Tensor:
            if not hasattr(operand.neuron(), "counts"):  # analog
                return operand.value(x)
            fired, value = operand.fire(x)
            sites.append(str(operand.site))
            counts.append(fired)
            return value

        with visiting(self.network, Visit(record)):
            output = super().forward(*args, **kwargs)
        self.sites = sites
        return output, counts


def tensors(output: Any) -> list[Tensor]:
    """Return the tensors of an output or a batch, in order."""
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def in_form_of(output: Any, values: Sequence[Tensor]) -> Any:
    """Return other tensors in an output's form."""
    rest = iter(values)
    return tree_map_only(Tensor, lambda leaf: next(rest), output)


def largest_class(expected: Any, actual: Any) -> Tensor:
    """Return how many of an output's arg-maxes differ, per input."""
    first, second = tensors(expected)[0], tensors(actual)[0]
    return (first.argmax(-1) != second.argmax(-1)).flatten(1 if first.dim() > 2 else 0).float()


Differences = Callable[[Any, Any], Tensor]
"""(output, other output) → how many answers differ, per input."""


@dataclass
class Comparison:
    """How many counts were compared (one per neuron, input and site), are not 0, and differ; likewise outputs and answers."""

    inputs: int = 0
    counts: int = 0
    active: int = 0
    differ: int = 0
    origins: int = 0
    """Counts that differ at the first site where their input differs; all others follow from these."""
    sites: dict[str, list[int]] = field(default_factory=dict)
    """Site → [compared, differ, largest difference]."""
    output_difference: float = 0.0
    output_largest: float = 0.0
    answers_differ: int = 0

    def update(self, expected: tuple[Any, Answer], actual: Answer, differences: Differences) -> None:
        """Add one batch."""
        output, answer = expected
        other = differences(output, in_form_of(output, actual.outputs))
        inputs = len(other)
        if [site for site, _ in answer.counts] != [site for site, _ in actual.counts]:
            raise UsageError("export: the file fires other sites than the network, an error of the format.")
        same = torch.ones(inputs, dtype=torch.bool)  # inputs without another count so far
        for (site, before), (_, after) in zip(answer.counts, actual.counts, strict=True):
            apart = (before.double() - after.double()).abs()
            differ = int((apart != 0).sum())
            compared, differing, largest = self.sites.get(site, (0, 0, 0))
            largest = max(largest, int(apart.max()) if differ else 0)
            self.sites[site] = [compared + before.numel(), differing + differ, largest]
            self.counts += before.numel()
            self.active += int((before != 0).sum())
            self.differ += differ
            if differ:
                each = before.numel() % inputs == 0  # else what fires here is the same for all inputs
                by_input = (apart != 0).reshape(inputs if each else 1, -1).sum(1)
                self.origins += int((by_input * (same if each else same.all())).sum())
                same = same & (by_input == 0)
        for before, after in zip(answer.outputs, actual.outputs, strict=True):
            if before.is_floating_point() and before.numel():
                self.output_difference = max(self.output_difference, float((before - after).abs().max()))
                self.output_largest = max(self.output_largest, float(before.abs().max()))
        self.answers_differ += int((other.reshape(inputs, -1).sum(1) > 0).sum())
        self.inputs += inputs

    @property
    def differing(self) -> dict[str, list[int]]:
        """The sites with a difference."""
        return {site: row for site, row in self.sites.items() if row[1]}

    def __str__(self) -> str:
        sites = self.differing
        first = ", ".join(list(sites)[:3]) + (" …" if len(sites) > 3 else "")
        where = f" (they go back to {self.origins}), at {first}" if self.differ else ""
        return (
            f"{self.differ} of {self.counts} spike counts differ{where}; "
            f"{self.answers_differ} of {self.inputs} answers differ; outputs differ by at most "
            f"{self.output_difference:.2g} of {self.output_largest:.3g}"
        )


def reference(network: nn.Module, batch: Any) -> tuple[Any, Answer]:
    """Return the network's own answers and spikes."""
    recorded = Recorded(network)
    with evaluating(network):
        output, counts = call(recorded, batch)
    return output, Answer(tensors(output), list(zip(recorded.sites, counts, strict=True)))


def compare(
    network: nn.Module, run: Run, probe: Run | None, batches: Sequence[Any], differences: Differences
) -> Comparison:
    """Run all on every batch: outputs are those of the file itself, counts its own or those of the probe, if any."""
    comparison = Comparison()
    with torch.no_grad():
        for batch in batches:
            (output, expected), answer = reference(network, batch), run(batch)
            counts = answer.counts if probe is None else probe(batch).counts
            expected = expected if counts else expected._replace(counts=[])
            comparison.update((output, expected), Answer(answer.outputs, counts), differences)
    return comparison
