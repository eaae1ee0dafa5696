"""A converted network as a function of λ: what a search measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from onespike.calibrate import device_of, evaluating
from onespike.convert import set_scale_
from onespike.energy import Ledger, metered
from onespike.errors import DataError, unknown
from onespike.search import LOWEST, Hopeless, Measurement
from onespike.trace import call, logits, samples

OBJECTIVES = {"top1": True, "kl": False, "ap": True}
"""Name → whether larger is better: top-1 accuracy (percent, the paper's), KL to the original's outputs (nats), or
COCO's AP (percent, for detectors)."""

EVERY = 64
"""Counting would double the cost of a forward, so in a search one row of elements in 64 of the first batch is counted."""


def every_of(column: str | None) -> int:
    """One row of elements in how many is counted for a column; `strict` has parts that are counted as a whole."""
    return 1 if column == "strict" else EVERY


class ScaleObjective:
    """Measures one λ on a fixed set of inputs, which stay in memory with the original network's outputs.

    A trial is one forward of the converted network over the inputs. Where energy is asked for, spikes of the first
    batch are counted (one row in `EVERY`, always the same ones), so that counting costs little. A compiled network is
    compiled once: λ is a value that it reads.

    Attributes:
        images: number of inputs.
        forwards: inputs that went through either network so far.
    """

    def __init__(
        self,
        ann: nn.Module,
        snn: nn.Module,
        batches: Iterable[tuple[Tensor, Tensor | None]],
        kind: str = "kl",
        energy: str | None = None,
        compiled: bool = False,
    ) -> None:
        if kind not in ("top1", "kl"):
            raise unknown("objective of a classifier", kind, ("top1", "kl"))
        self.snn, self.kind, self.energy = snn, kind, energy
        self.run: Callable[[Tensor], Any] = torch.compile(snn) if compiled else snn
        self.parts: list[tuple[Tensor, Tensor]] = []
        self.images = self.forwards = 0
        device = device_of(ann)
        with evaluating(ann):
            for inputs, labels in batches:
                inputs = inputs.to(device)
                if kind == "top1" and labels is None:
                    raise DataError(
                        "search: the images have no labels. Use --objective kl, which needs none."
                    )
                expected = logits(ann(inputs)).log_softmax(-1) if labels is None or kind == "kl" else labels
                self.parts.append((inputs, expected.to(device)))
                self.images += len(inputs)
                self.forwards += len(inputs) if kind == "kl" else 0
        _check(self.images)

    def __call__(self, scale: float, hopeless: Hopeless) -> Measurement:
        set_scale_(self.snn, scale)
        total, seen, ledger = 0.0, 0, Ledger(every=every_of(self.energy))
        quarters = {max(1, round(len(self.parts) * q / 4)) for q in (1, 2, 3)}
        with evaluating(self.snn):
            for step, (inputs, expected) in enumerate(self.parts, 1):
                if step == 1 and self.energy is not None:
                    with metered(self.snn, ledger):
                        output = logits(self.snn(inputs))
                else:
                    output = logits(self.run(inputs))
                total += self._score(output, expected)
                seen += len(output)
                self.forwards += len(output)
                # where energy counts too, a trial with a poor metric may be on the front
                asks = self.energy is None and step in quarters and step < len(self.parts)
                if asks and hopeless(step, total / seen):
                    return Measurement(total / seen, finished=False)
        return Measurement(total / seen, None if self.energy is None else ledger.ratio(self.energy))

    def _score(self, output: Tensor, expected: Tensor) -> float:
        if self.kind == "top1":
            return 100.0 * float((output.argmax(-1) == expected).sum())
        divergence = torch.nn.functional.kl_div(
            output.double().log_softmax(-1), expected.double(), reduction="sum", log_target=True
        )
        return float(divergence)


HALVINGS = 12


def scale_within(snn: nn.Module, inputs: Tensor, column: str, ratio: float, every: int = 1) -> float:
    """The smallest λ whose energy on these inputs, counted on one row in `every`, stays within a ratio.

    Energy falls as λ grows; the interval is halved `HALVINGS` times.
    """
    low, high = LOWEST, 1.0
    with evaluating(snn):
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            set_scale_(snn, middle)
            with metered(snn, Ledger(every=every)) as ledger:
                snn(inputs)
            low, high = (low, middle) if ledger.ratio(column) <= ratio else (middle, high)
    return high


class OverallObjective:
    """Measures one λ by a figure of all outputs together, such as AP, which no sum over batches gives.

    Spikes are counted on the first batch, where energy is asked for; no trial is given up early.

    Args:
        snn: the converted network.
        batches: (inputs, labels); they stay in memory.
        score: from the (output, labels) of every batch to the figure.
        energy: the ledger's column that is asked for.
    """

    def __init__(
        self,
        snn: nn.Module,
        batches: Iterable[tuple[Any, Any]],
        score: Callable[[Sequence[tuple[Any, Any]]], float],
        energy: str | None = None,
    ) -> None:
        device = device_of(snn)
        self.snn, self.score, self.energy, self.forwards = snn, score, energy, 0
        self.parts = [(tree_map_only(Tensor, lambda x: x.to(device), x), labels) for x, labels in batches]
        self.images = sum(samples(x) for x, _ in self.parts)
        _check(self.images)

    def __call__(self, scale: float, hopeless: Hopeless) -> Measurement:
        set_scale_(self.snn, scale)
        outputs, ledger = [], Ledger(every=every_of(self.energy))
        with evaluating(self.snn):
            for step, (inputs, labels) in enumerate(self.parts):
                counts = step == 0 and self.energy is not None
                with metered(self.snn, ledger) if counts else nullcontext():
                    outputs.append((call(self.snn, inputs), labels))
        self.forwards += self.images
        return Measurement(self.score(outputs), None if self.energy is None else ledger.ratio(self.energy))


def _check(images: int) -> None:
    if not images:
        raise DataError("search: there are no images to search on. Give a folder with images of their own.")
