"""Every form of a run's network on the same inputs: score, time and size."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.adapters.base import first_line
from onespike.deploy.exports.base import FORMATS, Request, prepare, size_of
from onespike.deploy.exports.comparison import in_form_of
from onespike.deploy.integer import optimize
from onespike.errors import OnespikeError, UsageError, out_of_memory, unknown
from onespike.evaluation.pairwise import pairwise
from onespike.passes import no_progress
from onespike.passes.base import Progress
from onespike.runs.export_run import facts_of
from onespike.runs.measuring import metric_for
from onespike.runs.pair import NetworkPair
from onespike.runtime.batches import call, count
from onespike.runtime.devices import state_of
from onespike.runtime.forward import evaluating
from onespike.tasks import Headline, Items, task_of

HERE = ("original", "eager", "compiled", "integer")
ROUNDS = 5
UNKNOWN = Headline("", None, None)


@dataclass(frozen=True)
class Row:
    """One form.

    Attributes:
        form: its name.
        headline: the task's figure of this form beside the original's; without one if it was refused.
        milliseconds: best time of one batch, all forms in turn.
        bytes: size of its file, or of its weights in memory.
        refused: why this form does not exist.
    """

    form: str
    headline: Headline = UNKNOWN
    milliseconds: float | None = None
    bytes: int | None = None
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        scored = {"form": self.form, "title": self.headline.title, "score": self.headline.spiking}
        return scored | {name: getattr(self, name) for name in ("milliseconds", "bytes", "refused")}


@dataclass
class Form:
    """A form that runs: a batch → an output, and its size."""

    name: str
    run: Callable[[Any], Any]
    bytes: int
    best: float = float("inf")


def form_names() -> tuple[str, ...]:
    """Return all forms: those that run here, and each format that gives the network's answers."""
    exported = (
        name + ("-integer" if integer and len(known.forms) > 1 else "")
        for name, known in FORMATS.items()
        for integer in known.forms
        if name not in ("integers", "nir")
    )
    return (*HERE, *exported)


def benchmark_pair(
    pair: NetworkPair,
    items: Items,
    *,
    forms: Sequence[str] | None = None,
    batch_size: int = 8,
    progress: Progress = no_progress,
) -> list[Row]:
    """Measure score, time and size of every form on the same inputs; list impossible forms with the reason."""
    chosen = list(form_names() if forms is None else forms)
    for name in chosen:
        if name not in form_names():
            raise unknown("form", name, form_names())
    items = pair.loaded.task.named(items)
    batches = list(pair.loaded.batches(items, batch_size))
    if count(batches[0][0]) < 2:
        raise UsageError("benchmark: at least two inputs are needed. Give a larger limit= or batch_size=.")
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for network in (pair.ann, pair.snn):
            stack.enter_context(evaluating(network))
        made: list[Form] = []
        for name in progress("preparing", len(chosen))(chosen):
            try:
                made.append(_tried(_form(name, pair, batches[0][0], Path(folder)), batches[0][0]))
            except OnespikeError as error:
                rows[name] = Row(name, refused=str(error))
        metrics = {form.name: metric_for(pair, items) for form in made}
        scored = progress("scoring", len(batches))(batches)
        runs: list[Callable[[Any], Any]] = [partial(call, pair.ann), *(form.run for form in made)]
        for _, labels, (expected, *outputs) in pairwise((pair.ann, pair.snn), scored, runs):
            for form, output in zip(made, outputs, strict=True):
                metrics[form.name].update(expected, output, labels)
        for _ in range(ROUNDS):
            for form in made:
                started = time.perf_counter()
                form.run(batches[0][0])
                form.best = min(form.best, 1000 * (time.perf_counter() - started))
        for form in made:
            found = metrics[form.name].compute()
            headline = task_of(found).headline(found)
            rows[form.name] = Row(form.name, headline, form.best, form.bytes)
    return [rows[name] for name in chosen]


def _form(name: str, pair: NetworkPair, batch: Any, folder: Path) -> Form:
    if name in HERE:
        makers: dict[str, Callable[[], Any]] = {
            "original": lambda: pair.ann,
            "eager": lambda: pair.snn,
            "compiled": lambda: torch.compile(pair.snn),
            "integer": lambda: optimize(pair.snn).eval(),
        }
        network = makers[name]()
        return Form(name, lambda inputs: call(network, inputs), _bytes(network))
    format_name, _, integer = name.partition("-")
    known, form = prepare(format_name, bool(integer) if len(FORMATS[format_name].forms) > 1 else None)
    file = folder / f"{name}{known.suffix}"
    with torch.inference_mode(False), torch.no_grad():  # torch.export takes no tensors of inference mode
        known.write(Request.of(pair.snn, [batch], form, facts_of(pair)), file)
    run, like = known.read(file), call(pair.snn, batch)
    return Form(name, lambda inputs: in_form_of(like, run(inputs)), size_of(file))


def _tried(form: Form, batch: Any) -> Form:
    """Return a form that has run once; a compiler compiles only then."""
    try:
        form.run(batch)
    except Exception as error:
        if form.name != "compiled" or out_of_memory(error):
            raise
        raise UsageError(f"torch.compile fails on this network ({first_line(error)}).") from error
    return form


def _bytes(network: nn.Module) -> int:
    return sum(_sizes(network))


def _sizes(network: nn.Module) -> Iterator[int]:
    """Yield the size of each stored tensor once."""
    seen: set[int] = set()
    for tensor in state_of(network).values():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            yield tensor.numel() * tensor.element_size()
