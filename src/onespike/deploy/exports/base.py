"""Export: one format is a function that writes a file, and one that reads it in its runtime.

Every file is read back and run before it takes its name; differences are written beside it.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onespike.deploy.exports.comparison import Answer, Comparison, Differences, compare, largest_class
from onespike.deploy.integer import check_deployable, optimize
from onespike.errors import LoadError, UsageError, unknown
from onespike.runtime.atomic import atomic_files
from onespike.runtime.batches import batches_of_inputs, call, count, take
from onespike.runtime.forward import evaluating
from onespike.runtime.provenance import stamped


@dataclass(frozen=True)
class Request:
    """What to write: the converted network or its integer form, real inputs, and text for the file."""

    network: nn.Module
    batches: Sequence[Any]
    facts: Mapping[str, Any]
    strict: bool = False
    """Whether a product that is left in floats is refused."""

    @staticmethod
    def of(
        snn: nn.Module, inputs: Any, integer: bool, facts: Mapping[str, Any], strict: bool = False
    ) -> Request:
        """Return the request for one form of a network; what no format can write is refused."""
        check_deployable(snn, "export", "a file")
        batches = batches_of_inputs(snn, inputs)
        if not batches or count(batches[0]) < 2:
            raise UsageError(
                "export: at least two inputs are needed, so that the size of a batch can be left open."
            )
        return Request(optimize(snn, integer_units=True) if integer else snn, batches, facts, strict)


@dataclass(frozen=True)
class Foreign:
    """A file's runtime (name and version), and what the reader should know, such as a fixed batch size."""

    runtime: str
    probe: Callable[[Any], Answer]
    """Runs the file's graph with the counts of every site as further outputs."""
    notes: tuple[str, ...] = ()


Run = Callable[[Any], list[Tensor]]
Writer = Callable[[Request, Path], Foreign]
Reader = Callable[[Path], Run]


@dataclass(frozen=True)
class Format:
    """One format: its writer, its reader, and the packages that it needs, which an extra of onespike installs.

    `forms` are the float form (False), the integer form (True) or both; the suffix of a folder is empty.
    """

    name: str
    about: str
    write: Writer
    read: Reader
    suffix: str
    needs: tuple[str, ...] = ()
    extra: str = ""
    forms: tuple[bool, ...] = (False, True)


FORMATS: dict[str, Format] = {}


def export_format(name: str, **facts: Any) -> Callable[[Writer], Writer]:
    """Register a writer with the other facts of its `Format`; the first line of its docstring is what it is about."""

    def register(write: Writer) -> Writer:
        if name in FORMATS:
            raise UsageError(f"the format '{name}' is registered already. Choose another name.")
        about = (write.__doc__ or "").strip().partition("\n")[0]
        FORMATS[name] = Format(name, about, write, **facts)
        return write

    return register


@dataclass(frozen=True)
class Exported:
    """What was written, and the result of the comparison.

    `milliseconds` are the best times of the first batch: the file in its runtime, and the network here.
    """

    file: Path
    format: str
    form: str
    runtime: str
    bytes: int
    comparison: Comparison
    milliseconds: dict[str, float]
    batch: int
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        record = asdict(self)
        return {name: record[name] for name in record if name not in ("file", "facts")} | {**self.facts}


def report_of(out: Path) -> Path:
    """Return the file of a comparison."""
    return out.with_name(f"{out.name}.verified.json")


def prepare(name: str, integer: bool | None, out: Path | None = None) -> tuple[Format, bool]:
    """Return a format and its form, if its runtime is installed, it has that form and the file may have that name."""
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    chosen = FORMATS[name]
    form = chosen.forms[0] if integer is None else integer
    if form not in chosen.forms:
        what = "the integer form" if form else "the float form"
        raise UsageError(
            f"export: {name} cannot hold {what}. {'Leave integer= out.' if form else 'It is always on integers.'}"
        )
    if out is not None and chosen.suffix and out.suffix != chosen.suffix:
        raise UsageError(
            f"export: files of {name} end in {chosen.suffix}, by which other programs know them. "
            f"Choose out='{out.with_suffix(chosen.suffix)}'."
        )
    for package in chosen.needs:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of other libraries, about themselves
                importlib.import_module(package)
        except ImportError as error:
            raise LoadError(
                f"export: {name} needs {package}. Install it with: pip install 'onespike[{chosen.extra}]'"
            ) from error
    return chosen, form


def export(
    snn: nn.Module,
    format: str,
    out: Path | str,
    inputs: Any,
    *,
    integer: bool | None = None,
    facts: Mapping[str, Any] | None = None,
    differences: Differences = largest_class,
) -> Exported:
    """Write a converted network for another runtime, read it back there, run it and compare every spike.

    Args:
        snn: a converted network on the CPU, with one timestep.
        format: `onespike list formats` lists them.
        out: the new file; differences are written beside it, as `OUT.verified.json`.
        inputs: real inputs, as for `spike`, or one batch of them. The first batch, of at least two inputs, traces the network.
        integer: multiply spikes by 8-bit weights; by default only in formats that have no other form. There it refuses a
            network of which a product is left in floats.
        facts: more text for the file.
        differences: returns how many answers differ between two outputs, per input; arg-maxes by default.
    """
    out = Path(out)
    chosen, form = prepare(format, integer, out)
    request = Request.of(snn, inputs, form, dict(facts or {}), bool(integer))
    batches = request.batches
    with atomic_files(out) as folder, torch.no_grad():
        file = folder / out.name
        foreign = chosen.write(request, file)
        run = chosen.read(file)
        with evaluating(request.network):
            comparison = compare(request.network, run, foreign.probe, batches, differences)
            runs = {"file": run, "onespike": lambda batch: call(request.network, batch)}
            times = best_times(runs, batches[0])
        done = Exported(
            out, chosen.name, "integer" if form else "float", foreign.runtime, size_of(file), comparison, times,
            count(batches[0]), foreign.notes, request.facts,
        )  # fmt: skip
        report_of(file).write_text(stamped(done.to_dict()), encoding="utf-8")
    return done


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def best_times(runs: Mapping[str, Callable[[Any], Any]], batch: Any, rounds: int = 3) -> dict[str, float]:
    """Return the best milliseconds of a batch; all take turns."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.perf_counter()
            run(batch)
            best[name] = min(best[name], 1000 * (time.perf_counter() - started))
    return best


def example(batches: Sequence[Any]) -> Any:
    """Return a few inputs to trace a network with."""
    return take(batches[0], slice(0, min(4, count(batches[0]))))
