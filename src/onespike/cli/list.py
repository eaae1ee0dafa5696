"""`onespike list`: the names that other commands take."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import unused
from onespike.errors import LoadError, unknown
from onespike.recipe import PRESETS, Recipe
from onespike.runtime.options import options

FIRST = ("convert", "bundled:cifar10-vit", "--calibrate", "bundled:cifar10-calibration")
TRY = {
    "neurons": ("--preset", "sformer", "--neuron", "mtn"),
    "passes": ("--passes", "nearest,allocate"),
    "presets": ("--preset", "best"),
}


@command("onespike list presets", "onespike list models vit_tiny", name="list", needs="onespike.recipe")
def list_names(
    what: Annotated[str, typer.Argument(metavar="columns|formats|models|neurons|passes|presets|profiles")],
    contains: Annotated[str, typer.Argument(metavar="TEXT", help="Show only names that contain this.")] = "",
) -> Next:
    """List presets, models, passes and other names."""
    if what not in LISTS:
        raise unknown("list", what, LISTS)
    found = [(name, about) for name, about in LISTS[what]() if contains in name]
    width = max((len(name) for name, _ in found), default=0)
    for name, about in found:
        output.line(f"{name:<{width}} {about}".rstrip())
    return (*FIRST, *TRY.get(what, ()), "--out", unused(Path("run")))


def _models() -> Iterator[tuple[str, str]]:
    from onespike.adapters import ADAPTERS

    for kind, adapter in ADAPTERS.items():
        try:
            names = adapter.names() or ("ID-OR-DIR",)
        except LoadError as error:  # a library that is not installed
            typer.echo(f"note: {error}", err=True)
            continue
        yield from ((f"{kind}:{name}", "") for name in names)


def _neurons() -> Iterator[tuple[str, str]]:
    from onespike.neurons import NEURONS

    return ((name, (neuron.__doc__ or "").strip().splitlines()[0]) for name, neuron in NEURONS.items())


def _passes() -> Iterator[tuple[str, str]]:
    from onespike.passes import PASSES

    return ((name, (function.__doc__ or "").strip().splitlines()[0]) for name, function in PASSES.items())


def _presets() -> Iterator[tuple[str, str]]:
    """Yield what each preset is, its measured cost and loss, and its settings as options.

    The first preset shows the settings that all others start from.
    """
    start = {f.name: f.default for f in dataclasses.fields(Recipe) if f.name != "preset"}
    known_options = options(Recipe)
    for name, known in PRESETS.items():
        given = (known.settings or start).items()
        settings = shlex.join(w for field, value in given for w in known_options[field].words(field, value))
        measured = known.measured
        if re.search(r"(counts|binary) 0?\.\d+\.$", measured):
            measured = f"{measured[:-1]} of all MACs."
        measured = f"{measured} ({known.page})" if known.page else "Not measured here."
        yield name, "\n".join((known.about, f"  {measured}", f"  {settings}"))


def _columns() -> Iterator[tuple[str, str]]:
    from onespike.energy.columns import meanings

    return iter(meanings().items())


def _profiles() -> Iterator[tuple[str, str]]:
    from onespike.energy.profiles import names, profile

    return ((name, profile(name).source) for name in names())


def _formats() -> Iterator[tuple[str, str]]:
    from onespike.deploy.exports import FORMATS

    for name, known in FORMATS.items():
        forms = " and ".join("integer" if form else "float" for form in known.forms)
        yield name, f"{known.about} ({forms} form)"


LISTS = {
    "columns": _columns,
    "formats": _formats,
    "models": _models,
    "profiles": _profiles,
    "neurons": _neurons,
    "passes": _passes,
    "presets": _presets,
}
