"""Export: one format is a function that writes a file, and one that reads it in its runtime.

Every file is read back and run before it takes its name; differences are written beside it.
"""

from __future__ import annotations

import importlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onespike.deploy.exports.comparison import Comparison, Differences, Run, compare, largest_class
from onespike.deploy.exports.sheet import Sheet, sheet
from onespike.deploy.integer import check_deployable, optimize
from onespike.errors import LoadError, UsageError, unknown
from onespike.runtime.atomic import atomic_files, damage, digests
from onespike.runtime.batches import batches_of_inputs, call, count, take
from onespike.runtime.forward import evaluating
from onespike.runtime.provenance import stamped
from onespike.runtime.validated import read_sealed, sealed

REMEDY = "Export it again."


@dataclass(frozen=True)
class Request:
    """What to write: the converted network or its integer form, real inputs, and text for the file."""

    network: nn.Module
    batches: Sequence[Any]
    facts: Mapping[str, Any]
    integer: bool = False
    """Whether it is the integer form."""
    golden: int | None = None
    """How many inputs are stored with their spikes, in a format that holds them; those that trace the network if None."""

    @staticmethod
    def of(
        snn: nn.Module, inputs: Any, integer: bool, facts: Mapping[str, Any], golden: int | None = None
    ) -> Request:
        """Return the request for one form of a network; what no format can write is refused."""
        check_deployable(snn, "export", "a file")
        batches = batches_of_inputs(snn, inputs)
        if not batches or count(batches[0]) < 2:
            raise UsageError(
                "export: at least two inputs are needed, so that the size of a batch can be left open."
            )
        if golden is not None and not 0 < golden <= sum(map(count, batches)):
            raise UsageError(
                f"export: golden={golden} is not from 1 to {sum(map(count, batches))}, the number of inputs. "
                "Give more inputs with limit=."
            )
        network = optimize(snn, integer_units=True) if integer else snn
        return Request(network, batches, facts, integer, golden)


@dataclass(frozen=True)
class Foreign:
    """A file's runtime (name and version), and what the reader should know, such as a fixed batch size."""

    runtime: str
    probe: Run | None = None
    """Runs the file's graph with the counts of every site as further outputs, where the file itself does not name them."""
    notes: tuple[str, ...] = ()


Writer = Callable[[Request, Path], Foreign]


@dataclass(frozen=True)
class Format:
    """One format: its writer, its reader, and the packages that it needs, which an extra of onespike installs.

    `forms` are the float form (False), the integer form (True) or both; the suffix of a folder is empty.
    """

    name: str
    about: str
    write: Writer
    read: Callable[[Path], Run]
    """Returns how the runtime answers a batch, with the counts of every site where these have names in the file."""
    suffix: str
    needs: tuple[str, ...] = ()
    extra: str = ""
    forms: tuple[bool, ...] = (False, True)
    scored: bool = True
    """Whether it is fast enough to be measured beside other forms of a network."""
    golden: Callable[[Path], Comparison] | None = None
    """Compares an existing file with the spikes that it holds."""
    hardware: bool = True
    """Whether the sheet for hardware belongs beside its integer form."""


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
    files: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of the file, as that of `.`, or of every file of the folder by its path there."""
    sheet: Sheet | None = None
    """What the integer form needs of hardware."""

    def to_dict(self) -> dict[str, Any]:
        record = asdict(replace(self, sheet=None, facts={}))
        del record["file"], record["sheet"], record["facts"]
        return record | {**self.facts}


def beside(out: Path, what: str) -> Path:
    """Return the file of a comparison (`verified`), or of the sheet for hardware (`sheet`)."""
    return out.with_name(f"{out.name}.{what}.json")


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
            with warnings.catch_warnings(action="ignore"):  # of other libraries, about themselves
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
    golden: int | None = None,
    facts: Mapping[str, Any] | None = None,
    differences: Differences = largest_class,
) -> Exported:
    """Write a converted network for another runtime, read it back there, run it and compare every spike.

    Args:
        snn: a converted network on the CPU, with one timestep.
        format: `onespike list formats` lists them.
        out: the new file; differences are written beside it, as `OUT.verified.json`, and of integer forms for other
            runtimes than torch the sheet for hardware, as `OUT.sheet.json`.
        inputs: real inputs, as for `spike`, or one batch of them. The first batch, of at least two inputs, traces the network.
        integer: multiply spikes by 8-bit weights; by default only in formats that have no other form. There it refuses a
            network of which a product is left in floats.
        golden: how many inputs `integers` stores with all their spikes; 4 by default.
        facts: more text for the file.
        differences: returns how many answers differ between two outputs, per input; arg-maxes by default.
    """
    out = Path(out)
    chosen, form = prepare(format, integer, out)
    if golden is not None and chosen.golden is None:
        raise UsageError(
            f"export: {format} holds no golden spikes. Leave golden= out, or take format='integers'."
        )
    request = Request.of(snn, inputs, form, dict(facts or {}), golden)
    batches, made = request.batches, None
    if form and chosen.hardware:
        made = sheet(request.network, batches)
        if integer and False not in chosen.forms and made.floats:
            layers = ", ".join(operation.layer for operation in made.floats)
            raise UsageError(
                f"export: the products of {layers} are left in floats. Convert with io='int8', or leave integer= out."
            )
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
            count(batches[0]), foreign.notes, request.facts, digests(file), made,
        )  # fmt: skip
        if made is not None:
            text = json.dumps(made.to_dict(), indent=1, ensure_ascii=False) + "\n"
            beside(file, "sheet").write_text(text, encoding="utf-8")
        beside(file, "verified").write_text(sealed(json.loads(stamped(done.to_dict()))), encoding="utf-8")
    return done


def hardware(snn: nn.Module, inputs: Any) -> Sheet:
    """Return what a converted network's integer form needs of hardware, on a few inputs, as `export` takes them."""
    request = Request.of(snn, inputs, True, {})
    return sheet(request.network, request.batches)


@dataclass(frozen=True)
class Verified:
    """What `OUT.verified.json` must say."""

    format: str
    form: str
    runtime: str
    batch: int
    files: dict[str, str]


def verify(
    file: Path, snn: nn.Module | None = None, inputs: Any = None, *, differences: Differences = largest_class
) -> Exported:
    """Check a file that `export` wrote: its bytes, and in its runtime its answers on these inputs.

    Spikes are compared, too, where the file names them. Without a network its golden spikes are compared.
    """
    report = beside(file, "verified")
    record = read_sealed(Verified, report, REMEDY)
    if record is None:
        raise LoadError(f"{report}: no such file, which says what the export was. {REMEDY}")
    for name, digest in record["files"].items():
        if difference := damage(file / name, digest):
            raise LoadError(f"{file / name}: the export is damaged: it {difference}. {REMEDY}")
    chosen, form = prepare(record["format"], record["form"] == "integer")
    run, request = chosen.read(file), None if snn is None else Request.of(snn, inputs, form, {})
    if request is not None:
        with evaluating(request.network):
            comparison = compare(request.network, run, None, request.batches, differences)
    elif chosen.golden is not None:
        comparison = chosen.golden(file)
    else:
        raise UsageError(
            f"export: {file} holds no golden spikes. Give the run whose network it is, and its answers are compared again."
        )
    return Exported(
        file, chosen.name, record["form"], record["runtime"], size_of(file), comparison, {}, comparison.inputs,
        files=record["files"],
    )  # fmt: skip


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
    return take(batches[0], slice(0, 4))
