"""`onespike list`, `inspect` and `export`: names, what a run holds, and a run as a file for another runtime."""

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import onespike
from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import OPTIONS, Word, unused
from onespike.errors import LoadError, UsageError, unknown
from onespike.presets import PRESETS
from onespike.recipe import FIELDS, Recipe, words_of
from onespike.runtime.atomic import try_new_folder
from onespike.sources import SOURCES


@command(name="list", needs="onespike.recipe")
def list_names(what: str, contains: str = "") -> Next:
    """List presets, models, passes and other names."""
    if what not in LISTS:
        raise unknown("list", what, LISTS)
    listed = [(name, about) for name, about in LISTS[what]() if contains in name]
    width = max((len(name) for name, _ in listed), default=0)
    for name, about in listed:
        output.line(f"{name:<{width}} {about}".rstrip())
    network, images = "bundled:cifar10-vit", "bundled:cifar10-calibration"
    return "convert", network, "--calibrate", images, "--out", unused(Path("run"))


def _models() -> Iterator[tuple[str, str]]:
    for kind, form in SOURCES.items():
        adapter = import_module(f"onespike.adapters.{kind}")
        try:
            names = adapter.names() if hasattr(adapter, "names") else [form]
        except LoadError as error:  # a library that is not installed
            output.note(f"note: {error}")
            continue
        yield from ((f"{kind}:{name}", "") for name in names)


def _documented(registry: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the names of a registry with the first lines of their documentation."""
    return ((name, (entry.__doc__ or "").strip().splitlines()[0]) for name, entry in registry.items())


def _fields() -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(Recipe):
        option = FIELDS[field.name]
        name = f"--{field.name.replace('_', '-')}" if option.usual else f"--set {field.name}="
        kind = option.metavar or "|".join(option.choices)
        more = " May be repeated." if option.repeated else ""
        yield name, f"{kind and kind + ': '}{option.help}{more} Default: {field.default!r}."


def _presets() -> Iterator[tuple[str, str]]:
    """Yield what each preset is, its measured cost and loss, and its settings as options.

    `sformer` shows the settings that all others start from. The usual presets come first.
    """
    start = {f.name: f.default for f in dataclasses.fields(Recipe) if f.name != "preset"}
    for name, preset in PRESETS.items():
        measured = f"{preset.measured} ({preset.page})" if preset.page else "Not measured here."
        yield name, f"{preset.about}\n  {measured}\n  {shlex.join(words_of(preset.settings or start))}"


def _formats() -> Iterator[tuple[str, str]]:
    from onespike.deploy.exports import FORMATS

    for name, format in FORMATS.items():
        forms = " and ".join("integer" if form else "float" for form in format.forms)
        yield name, f"{format.about} ({forms} form)"


LISTS: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
    "columns": lambda: onespike.energy.columns.meanings().items(),
    "fields": _fields,
    "formats": _formats,
    "models": _models,
    "profiles": lambda: ((n, onespike.energy.profile(n).source) for n in onespike.energy.profiles.names()),
    "neurons": lambda: _documented(onespike.NEURONS),
    "passes": lambda: _documented({name: one.run for name, one in onespike.passes.PASSES.items()}),
    "presets": _presets,
}
RECORD = "Write its recipe to this file, as JSON for the same; with --hardware, the sheet."


@command(json_file=OPTIONS["json_file"]._replace(help=RECORD, names=("--json",)))
def inspect(
    run: Path, *, recipe: bool = False, hardware: bool = False, json_file: Path | None = None
) -> Next:
    """Show a run and the table of its sites.

    It prints the recipe, the source of the thresholds, what spikes, and what stays analog and why. With --hardware it is
    the sheet of the integer form: bytes, bits and spikes of every site, and every operation that is no spike.
    """
    from onespike import runs
    from onespike.cli import show
    from onespike.deploy.exports.base import hardware as sheet_of
    from onespike.runs import storage
    from onespike.runs.forms import real_inputs
    from onespike.runs.recipe_text import convert_command, recipe_record, recipe_text

    pair = runs.load(run)
    if hardware:
        sheet = sheet_of(pair.snn, real_inputs(pair, None, 8, 4))
        output.figures(json_file, sheet.to_dict())
        show.hardware(sheet)
        return "export", run, "--format", "integers", "--out", f"{run}-integers"
    output.figures(json_file, recipe_record(pair.recipe))
    if recipe:
        print(recipe_text(pair.recipe), end="")
        stored = run / storage.WEIGHTS
        new, weights = unused(run.with_name(f"{run.name}-2")), stored if stored.exists() else None
        return tuple(shlex.split(convert_command(pair, new, weights=weights))[1:])
    show.network(pair)
    settings = ((k, v) for k, v in pair.recipe.to_dict().items() if k != "version")
    provenance = pair.thresholds.provenance
    output.line(
        "recipe         " + ", ".join(f"{k}={v}" for k, v in settings),
        f"calibrated on  {provenance['samples']} {pair.loaded.task.unit} of {pair.data['source']}",
        f"thresholds     {provenance.get('observer', 'unknown')}",
    )
    listed = show.sites(pair.snn)
    output.rows(("site", "what stands there"), [(row["site"], row["neuron"]) for row in listed], left=(0, 1))
    return "report", run


@command(out=Word("FILE", "The new file (or folder).", None, try_new_folder))
def export(
    run: Path | None = None,
    *,
    format: str | None = None,
    out: Path | None = None,
    data: str | None = None,
    limit: int = 16,
    integer: bool = False,
    golden: int | None = None,
    verify: Path | None = None,
    batch_size: int = 4,
) -> Next:
    """Write a run for another runtime, and compare every spike there.

    The file is read back by its runtime, run on real inputs, and compared with the network: spikes of
    every site and answers. Differences are printed and written beside it, as FILE.verified.json. With --verify an
    existing file is compared again: with a run, or without one by the golden spikes that it holds.
    """
    from onespike import runs
    from onespike.cli import show
    from onespike.deploy.exports.base import prepare
    from onespike.runs.forms import export_pair, verify_pair

    each: Any = {"data": data, "limit": limit, "batch_size": batch_size}
    if verify is not None:
        if format is not None or out is not None:
            raise UsageError("--verify checks a file that exists. Leave --format and --out out.")
        show.export(verify_pair(None if run is None else runs.load(run), verify, **each))
        return "list", "formats"
    if run is None or format is None or out is None:
        raise UsageError("nothing to write. Give RUN, --format NAME and --out FILE, or --verify FILE.")
    form = True if integer else None  # some formats are always on integers
    prepare(format, form, out)  # an impossible format is refused before anything is loaded
    show.export(export_pair(runs.load(run), format, out, integer=form, golden=golden, **each))
    return ("evaluate", run, "--data", data, "--format", "all") if data else ("list", "formats")
