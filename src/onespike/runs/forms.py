"""A run in other forms, on the same inputs: exported files, integer networks, and every form by score, time and size."""

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.calibration.inputs import batch_count, batches_of
from onespike.deploy.exports import Exported, export
from onespike.deploy.exports.base import FORMATS, Request, best_times, prepare, size_of, verify
from onespike.deploy.exports.comparison import in_form_of
from onespike.deploy.integer import optimize
from onespike.deploy.post_training import GRANULARITIES, Observed, Quantized, observe, with_integer_weights
from onespike.energy.columns import COLUMNS, integer_reading, strict_reading
from onespike.energy.ledger import or_none
from onespike.errors import OnespikeError, UsageError, first_line, out_of_memory, unknown
from onespike.evaluation.pairwise import pairwise
from onespike.evaluation.side_by_side import Evaluation, scale_if_any
from onespike.runs.inputs import calibration_images, choose
from onespike.runs.pair import NetworkPair
from onespike.runtime.batches import call, count
from onespike.runtime.devices import state_of
from onespike.runtime.forward import evaluating
from onespike.runtime.progress import progress
from onespike.runtime.provenance import versions
from onespike.tasks import Headline, Items, Metric, limit

HERE: dict[str, Callable[[NetworkPair], Any]] = {
    "original": lambda pair: pair.ann,
    "eager": lambda pair: pair.snn,
    "compiled": lambda pair: torch.compile(pair.snn),
    "integer": lambda pair: optimize(pair.snn).eval(),
}
ROUNDS, UNSCORED = 5, Headline("", None, None)
Rival = tuple[nn.Module, str]  # a network to compare with, and its energy column


def facts_of(pair: NetworkPair) -> dict[str, Any]:
    """Return the facts about a network that its file states."""
    return {
        "network": pair.loaded.spec,
        "weights": pair.loaded.weights,
        "preprocessing": pair.loaded.reading.preprocessing,
        "classes": list(pair.loaded.task.class_names or ()),
        "scale": scale_if_any(pair.snn),
        "recipe": pair.recipe.to_dict(),
        "versions": versions(),
    }


def real_inputs(pair: NetworkPair, data: str | None, count: int, batch_size: int) -> list[Any]:
    """Return a few batches of a folder, or of the inputs that the run was calibrated on."""
    if data is None:
        items = limit(calibration_images(pair.loaded, pair.data, whole=False), count)
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
    golden: int | None = None,
    batch_size: int = 4,
) -> Exported:
    """Export the network of a run, and compare it on these inputs or on those of its calibration."""
    inputs = real_inputs(pair, data, limit, batch_size)
    each: Any = {"integer": integer, "golden": golden, "differences": pair.loaded.task.differences}
    return export(pair.snn, format, out, inputs, facts=facts_of(pair), **each)


def verify_pair(
    pair: NetworkPair | None, file: Path, *, data: str | None = None, limit: int = 16, batch_size: int = 4
) -> Exported:
    """Check an exported file: with its run on these inputs, or alone by its golden spikes."""
    if pair is None:
        return verify(file)
    inputs = real_inputs(pair, data, limit, batch_size)
    return verify(file, pair.snn, inputs, differences=pair.loaded.task.differences)


SKIPPED = (0.3, 0.5, 0.7)
"""Shares of the activations that an integer network skips, the smallest of each channel."""


def rivals(model: nn.Module, observed: Observed) -> dict[str, Rival]:
    """Return the original network as integers of 8 and of 4 bits: by our reference, and by torchao if it runs."""
    networks: dict[str, Rival] = {}
    for name, column in COLUMNS.items():
        for granularity in GRANULARITIES if column.bits else ():
            network = Quantized(model, observed, column.bits, granularity)
            networks[f"{name.upper()}, per {granularity}"] = (network, name)
    for share in SKIPPED:
        name = f"W8A8, per channel, {100 * share:.0f} % skipped"
        networks[name] = (Quantized(model, observed, 8, "channel", share), "w8a8")
    if (theirs := torchao(model)) is not None:
        networks["W8A8, torchao (linear maps, per token)"] = (theirs, "w8a8")
    return networks


def torchao(model: nn.Module) -> nn.Module | None:
    """Return the network as torchao quantizes it, to 8-bit weights and activations; None if it is not installed.

    It takes linear maps only, and measures the range of every token at run time.
    """
    if not any(isinstance(module, nn.Linear) for module in model.modules()):
        return None
    with warnings.catch_warnings(action="ignore"):
        try:
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
        except ImportError:
            return None
        result = copy.deepcopy(model)
        quantize_(result, Int8DynamicActivationInt8WeightConfig())
    return result


def spiking_rivals(snn: nn.Module, model: nn.Module, observed: Observed, column: str) -> dict[str, Rival]:
    """Return the converted network and, for the integer reading of its column, the one with 8-bit weights."""
    networks: dict[str, Rival] = {"spiking": (snn, column)}
    if (reading := integer_reading(column)) is not None:
        networks["spiking, 8-bit weights"] = (with_integer_weights(snn, model, observed), reading)
    return networks


def compared(
    model: nn.Module,
    networks: Mapping[str, Rival],
    batches: Iterable[tuple[Any, Any]],
    metric: Callable[[], Metric],
) -> list[dict[str, Any]]:
    """Return every network's figures against the original and, `beside`, against the first one, in one pass over the inputs."""
    against, beside = ({name: metric() for name in networks} for _ in range(2))
    everyone = (model, *(network for network, _ in networks.values()))
    for _, labels, (original, *outputs) in pairwise(everyone, batches):
        for name, output in zip(networks, outputs, strict=True):
            against[name].update(original, output, labels)
            beside[name].update(outputs[0], output, labels)
    rows = list[dict[str, Any]]()
    for name, (network, column) in networks.items():
        facts = {"network": name, "column": column, "active": getattr(network, "active_share", 1.0)}
        rows.append({**facts, **against[name].compute(), "beside": beside[name].compute()})
    return rows


def compare_pair(
    pair: NetworkPair, items: Items, result: Evaluation, *, batch_size: int = 16
) -> list[dict[str, Any]]:
    """Compare a run, evaluated on these inputs, with integer networks: figures, and the ratio of each one's column.

    Their ranges are chosen on the run's calibration inputs.
    """
    task, ratio = pair.loaded.task, partial(result.ledger.ratio, prices=result.prices)
    items = task.named(items)

    def batches(title: str, source: Items) -> Iterable[tuple[Any, Any]]:
        return progress(title, batch_count(source, batch_size))(pair.loaded.batches(source, batch_size))

    calibration = batches("ranges of integers", calibration_images(pair.loaded, pair.data))
    observed = observe(pair.ann, (inputs for inputs, _ in calibration))
    networks = spiking_rivals(pair.snn, pair.ann, observed, pair.recipe.energy) | rivals(pair.ann, observed)
    rows = compared(pair.ann, networks, batches("comparing", items), lambda: task.metric(items))
    for row in rows:  # what is skipped costs nothing
        saved, strict = ratio(row["column"]) * (1 - row["active"]), strict_reading(row["column"])
        row["ratio"] = or_none(ratio(row["column"]) - saved)
        row["strict"] = None if strict is None else or_none(ratio(strict) - saved)
    return rows


@dataclass(frozen=True)
class Row:
    """One form: the task's figure beside the original's, best milliseconds of a batch, size in bytes; or why it was refused."""

    form: str
    headline: Headline = UNSCORED
    milliseconds: float | None = None
    bytes: int | None = None
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        scored = {"form": self.form, "title": self.headline.title, "score": self.headline.spiking}
        return scored | {name: getattr(self, name) for name in ("milliseconds", "bytes", "refused")}


def benchmark_pair(
    pair: NetworkPair, items: Items, *, forms: Sequence[str] | None = None, batch_size: int = 8
) -> list[Row]:
    """Measure score, time and size of every form on the same inputs; list impossible forms with the reason."""
    task, names = pair.loaded.task, list(HERE)
    for name, format in FORMATS.items():
        several = len(format.forms) > 1
        names += [f"{name}-integer" if form and several else name for form in format.forms if format.scored]
    chosen = list(names if forms is None else forms)
    for name in chosen:
        if name not in names:
            raise unknown("form", name, names)
    items = task.named(items)
    batches = list(pair.loaded.batches(items, batch_size))
    first, rows = batches[0][0], dict[str, Row]()
    if count(first) < 2:
        raise UsageError("benchmark: at least two inputs are needed. Give a larger limit= or batch_size=.")
    with tempfile.TemporaryDirectory() as folder, evaluating(pair.ann), evaluating(pair.snn):
        made = dict[str, tuple[Callable[[Any], Any], int]]()
        for name in progress("preparing", len(chosen))(chosen):
            try:
                made[name] = _form(name, pair, first, Path(folder))
            except OnespikeError as error:
                rows[name] = Row(name, refused=str(error))
        metrics = {name: task.metric(items) for name in made}
        scored = progress("scoring", len(batches))(batches)
        forwards: list[Callable[[Any], Any]] = [partial(call, pair.ann), *(run for run, _ in made.values())]
        for _, labels, (expected, *outputs) in pairwise((pair.ann, pair.snn), scored, forwards):
            for metric, output in zip(metrics.values(), outputs, strict=True):
                metric.update(expected, output, labels)
        times = best_times({name: run for name, (run, _) in made.items()}, first, ROUNDS)
    for name, (_, size) in made.items():
        rows[name] = Row(name, task.headline(metrics[name].compute()), times[name], size)
    return [rows[name] for name in chosen]


def _form(name: str, pair: NetworkPair, batch: Any, folder: Path) -> tuple[Callable[[Any], Any], int]:
    """Return what runs a form, and its size; it has run once, since a compiler compiles only then."""
    run: Callable[[Any], Any]
    if name in HERE:
        network = HERE[name](pair)
        each = {tensor.data_ptr(): tensor.nbytes for tensor in state_of(network).values()}
        run, size = partial(call, network), sum(each.values())
    else:
        format_name, _, integer = name.partition("-")
        format, form = prepare(format_name, bool(integer) if len(FORMATS[format_name].forms) > 1 else None)
        file = folder / f"{name}{format.suffix}"
        with torch.inference_mode(False), torch.no_grad():  # torch.export takes no tensors of inference mode
            format.write(Request.of(pair.snn, [batch], form, facts_of(pair)), file)
        read, like, size = format.read(file), call(pair.snn, batch), size_of(file)

        def run(inputs: Any) -> Any:
            return in_form_of(like, read(inputs).outputs)

    try:
        run(batch)
    except Exception as error:
        if name != "compiled" or out_of_memory(error):
            raise
        raise UsageError(f"torch.compile fails on this network ({first_line(error)}).") from error
    return run, size
