"""Export: one format is a function that writes a file, and one that reads it in its runtime.

Every file is read back and run before it takes its name; differences are written beside it.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onespike.deploy.exports.comparison import (
    Answer,
    Comparison,
    Differences,
    compare,
    inputs_in,
    largest_class,
)
from onespike.deploy.exports.marks import check
from onespike.deploy.integer import optimize
from onespike.errors import LoadError, UsageError, unknown
from onespike.runtime.atomic import atomic_files
from onespike.runtime.batches import call, count, take
from onespike.runtime.forward import evaluating
from onespike.runtime.provenance import stamped


@dataclass(frozen=True)
class Request:
    """What to write.

    Attributes:
        snn: the converted network.
        network: the network to compare with: the network itself, or its integer form.
        batches: real inputs; the first of them traces the network.
        integer: whether products with weights run on integers.
        facts: text for the file: λ, versions, preprocessing, ….
    """

    snn: nn.Module
    network: nn.Module
    batches: Sequence[Any]
    integer: bool
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Foreign:
    """What a file's runtime says about it.

    Attributes:
        runtime: the name and version of the runtime.
        probe: runs the file's graph with the counts of every site as further outputs.
        notes: what the reader should know, such as a fixed batch size.
    """

    runtime: str
    probe: Callable[[Any], Answer]
    notes: tuple[str, ...] = ()


Run = Callable[[Any], list[Tensor]]
Writer = Callable[[Request, Path], Foreign]
Reader = Callable[[Path], Run]


@dataclass(frozen=True)
class Format:
    """One format: its writer, its reader (a file → a batch → the tensors of its output), and the packages that it needs."""

    name: str
    about: str
    write: Writer
    read: Reader
    needs: tuple[str, ...]
    extra: str
    forms: tuple[bool, ...]
    suffix: str


FORMATS: dict[str, Format] = {}


def export_format(
    name: str,
    *,
    read: Reader,
    suffix: str,
    needs: tuple[str, ...] = (),
    extra: str = "",
    forms: tuple[bool, ...] = (False, True),
) -> Callable[[Writer], Writer]:
    """Register a writer under the name of its format.

    Args:
        name: the name of the format.
        read: reads a file of this format, and returns how its runtime runs it.
        suffix: the ending of its files; empty for a folder.
        needs: packages that it imports.
        extra: the extra of onespike that installs them.
        forms: whether it writes the float form (False), the integer form (True), or both.
    """

    def register(write: Writer) -> Writer:
        if name in FORMATS:
            raise UsageError(f"the format '{name}' is registered already. Choose another name.")
        about = (write.__doc__ or "").strip().partition("\n")[0]
        FORMATS[name] = Format(name, about, write, read, needs, extra, forms, suffix)
        return write

    return register


@dataclass(frozen=True)
class Exported:
    """What was written, and the result of the comparison.

    Attributes:
        file: the file or folder.
        form: `float` or `integer`.
        bytes: its size.
        comparison: spikes and answers beside the network's.
        milliseconds: best time of a forward pass of the first batch: the file in its runtime, and the network here.
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
        return {
            "format": self.format,
            "form": self.form,
            "runtime": self.runtime,
            "bytes": self.bytes,
            "comparison": self.comparison.to_dict(),
            "milliseconds": self.milliseconds,
            "batch": self.batch,
            "notes": list(self.notes),
            **self.facts,
        }


def report_of(out: Path) -> Path:
    """Return the file of a comparison."""
    return out.with_name(f"{out.name}.verified.json")


def prepare(name: str, integer: bool | None, out: Path | None = None) -> tuple[Format, bool]:
    """Return a format and its form, if its runtime is installed, it has that form and the file may have that name."""
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    known = FORMATS[name]
    form = known.forms[0] if integer is None else integer
    if form not in known.forms:
        what = "the integer form" if form else "the float form"
        raise UsageError(
            f"export: {name} cannot hold {what}. {'Leave --integer out.' if form else 'It is always on integers.'}"
        )
    if out is not None and known.suffix and out.suffix != known.suffix:
        raise UsageError(
            f"export: files of {name} end in {known.suffix}, by which other programs know them. "
            f"Choose --out {out.with_suffix(known.suffix)}."
        )
    for package in known.needs:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of other libraries, about themselves
                importlib.import_module(package)
        except ImportError as error:
            raise LoadError(
                f"export: {name} needs {package}. Install it with: pip install 'onespike[{known.extra}]'"
            ) from error
    return known, form


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
        inputs: a batch, or a list of batches, of real inputs. The first one, of at least two inputs, traces the network.
        integer: multiply spikes by 8-bit weights; by default only in formats that have no other form.
        facts: more text for the file.
        differences: returns how many answers differ between two outputs, per input; arg-maxes by default.
    """
    out = Path(out)
    known, form = prepare(format, integer, out)
    check(snn)
    batches = list(inputs) if isinstance(inputs, list) else [inputs]
    if not batches or count(batches[0]) < 2:
        raise UsageError(
            "export: at least two inputs are needed, so that the size of a batch can be left open."
        )
    network = optimize(snn, integer_units=True) if form else snn
    request = Request(snn, network, batches, form, dict(facts or {}))
    with atomic_files(out) as folder, torch.no_grad():
        file = folder / out.name
        foreign = known.write(request, file)
        run = known.read(file)
        found = compare(network, run, foreign.probe, batches, differences)
        done = Exported(
            out, format, "integer" if form else "float", foreign.runtime, size_of(file), found,
            _times(network, run, batches[0]), count(batches[0]), foreign.notes, request.facts,
        )  # fmt: skip
        report_of(file).write_text(stamped(done.to_dict()), encoding="utf-8")
    return done


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return (
        sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        if path.is_dir()
        else path.stat().st_size
    )


def _times(network: nn.Module, run: Run, batch: Any) -> dict[str, float]:
    with evaluating(network):
        return best_times({"file": run, "onespike": lambda inputs: call(network, inputs)}, batch)


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
    return take(batches[0], slice(0, min(4, inputs_in(batches[:1]))))
