"""A run in other forms, on the same inputs: exported files, integer networks, and every form by score, time and size."""

from __future__ import annotations

import copy
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.conversion.network import scale_of
from onespike.deploy.exports import Exported, export
from onespike.deploy.exports.base import FORMATS, Request, prepare, size_of
from onespike.deploy.exports.comparison import in_form_of
from onespike.deploy.integer import optimize
from onespike.deploy.post_training import GRANULARITIES, Observed, Quantized, observe, with_integer_weights
from onespike.energy.columns import COLUMNS, integer_reading
from onespike.energy.ledger import or_none
from onespike.errors import OnespikeError, UsageError, first_line, out_of_memory, unknown
from onespike.evaluation.pairwise import pairwise
from onespike.evaluation.side_by_side import Evaluation
from onespike.passes import no_progress
from onespike.passes.base import Progress
from onespike.runs.inputs import batches_of, choose, without
from onespike.runs.measuring import metric_for
from onespike.runs.pair import NetworkPair
from onespike.runtime.batches import call, count
from onespike.runtime.devices import state_of
from onespike.runtime.forward import evaluating
from onespike.runtime.provenance import versions
from onespike.tasks import Headline, Items, Metric, task_of
from onespike.tasks import limit as evenly


def facts_of(pair: NetworkPair) -> dict[str, Any]:
    """Return the facts about a network that its file states."""
    try:
        scale: float | None = float(scale_of(pair.snn).value)
    except UsageError:
        scale = None
    return {
        "network": pair.loaded.spec,
        "weights": pair.loaded.weights,
        "preprocessing": pair.loaded.reading.preprocessing,
        "classes": list(pair.loaded.task.class_names or ()),
        "scale": scale,
        "recipe": pair.recipe.to_dict(),
        "versions": versions(),
    }


def real_inputs(pair: NetworkPair, data: str | None, count: int, batch_size: int) -> list[Any]:
    """Return a few batches of a folder, or of the inputs that the run was calibrated on."""
    if count < 2 or batch_size < 2:
        raise UsageError(
            "export: at least two inputs are needed, so that the size of a batch can be left open."
        )
    if data is None:
        items = choose(pair.data["source"], None, pair.loaded.task)
        names = set(pair.data["names"])
        items = evenly(without(items, {item.name for item in items} - names), count)
    else:
        items = choose(data, count, pair.loaded.task)
    return list(batches_of(items, pair.loaded, batch_size))


def export_pair(
    pair: NetworkPair,
    format: str,
    out: Path,
    *,
    data: str | None = None,
    limit: int = 16,
    integer: bool | None = None,
    batch_size: int = 4,
) -> Exported:
    """Export the network of a run, and compare it on these inputs or on those of its calibration."""
    inputs = real_inputs(pair, data, limit, batch_size)
    return export(
        pair.snn, format, out, inputs,
        integer=integer, facts=facts_of(pair), differences=pair.loaded.task.differences,
    )  # fmt: skip


SPIKING, INTEGER = "spiking", "spiking, 8-bit weights"


@dataclass(frozen=True)
class Rival:
    """A network to compare with, and its energy column."""

    network: nn.Module
    column: str


def rivals(model: nn.Module, observed: Observed) -> dict[str, Rival]:
    """Return the original network as integers of 8 and of 4 bits: by our reference, and by torchao if it runs."""
    found = {
        f"{name.upper()}, per {granularity}": Rival(
            Quantized(model, observed, column.bits, granularity), name
        )
        for name, column in COLUMNS.items()
        if column.bits
        for granularity in GRANULARITIES
    }
    if (theirs := torchao(model)) is not None:
        found["W8A8, torchao (linear maps, per token)"] = Rival(theirs, "w8a8")
    return found


def torchao(model: nn.Module) -> nn.Module | None:
    """Return the network as torchao quantizes it, to 8-bit weights and activations; None if it is not installed.

    It takes linear maps only, and measures the range of every token at run time.
    """
    if not any(isinstance(module, nn.Linear) for module in model.modules()):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
        except ImportError:
            return None
        result = copy.deepcopy(model)
        quantize_(result, Int8DynamicActivationInt8WeightConfig())
    return result


def spiking_rivals(snn: nn.Module, model: nn.Module, observed: Observed, column: str) -> dict[str, Rival]:
    """Return the converted network and, for the integer reading of its column, the one with 8-bit weights."""
    found = {SPIKING: Rival(snn, column)}
    if (reading := integer_reading(column)) is not None:
        found[INTEGER] = Rival(with_integer_weights(snn, model, observed), reading)
    return found


def compared(
    model: nn.Module,
    networks: Mapping[str, Rival],
    batches: Iterable[tuple[Any, Any]],
    metric: Callable[[], Metric],
) -> list[dict[str, Any]]:
    """Return every network's figures against the original and against the first one, in one pass over the inputs.

    Args:
        model: the original.
        networks: the networks by name; the others are compared with the first.
        batches: (inputs, labels).
        metric: makes a metric of two networks; with `difference` and `standard_error` where it pairs them.
    """
    against, beside = ({name: metric() for name in networks} for _ in range(2))
    everyone = (model, *(rival.network for rival in networks.values()))
    for _, labels, (original, *outputs) in pairwise(everyone, batches):
        for name, output in zip(networks, outputs, strict=True):
            against[name].update(original, output, labels)
            beside[name].update(outputs[0], output, labels)
    return [
        {"network": name, "column": rival.column, **against[name].compute(), "beside": beside[name].compute()}
        for name, rival in networks.items()
    ]


def compare_pair(
    pair: NetworkPair,
    items: Items,
    calibration: Items,
    result: Evaluation,
    *,
    batch_size: int = 16,
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """A run that was evaluated, beside integer networks: figures, and the ratio of each one's column.

    Args:
        pair: the run.
        items: the inputs that it was evaluated on.
        calibration: those that it was calibrated on, which choose the integers' ranges, too.
        result: its evaluation: the ledger and the prices.
        batch_size: inputs of one forward.
        progress: wraps long loops.
    """

    def feed(source: Items, title: str) -> Iterable[tuple[Any, Any]]:
        return progress(title, -(-len(source) // batch_size))(pair.loaded.batches(source, batch_size))

    observed = observe(pair.ann, (x for x, _ in feed(calibration, "ranges of integers")))
    column = pair.recipe.energy
    networks = {**spiking_rivals(pair.snn, pair.ann, observed, column), **rivals(pair.ann, observed)}
    items = pair.loaded.task.named(items)
    rows = compared(pair.ann, networks, feed(items, "comparing"), lambda: pair.loaded.task.metric(items))
    return [
        {**row, "ratio": or_none(result.ledger.ratio(row["column"], prices=result.prices))} for row in rows
    ]


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
    """Return the size of all stored tensors, each of them once."""
    tensors = {tensor.data_ptr(): tensor for tensor in state_of(network).values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
