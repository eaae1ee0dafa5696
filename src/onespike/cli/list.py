"""`onespike list`: the names that other commands take."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

import onespike
from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import unused
from onespike.errors import LoadError, unknown
from onespike.presets import PRESETS
from onespike.recipe import FIELDS, Recipe, words_of
from onespike.sources import SOURCES

FIRST = ("convert", "bundled:cifar10-vit", "--calibrate", "bundled:cifar10-calibration")
TRY = {
    "fields": ("--preset", "sformer", "--set", "percentile=2"),
    "neurons": ("--preset", "sformer", "--set", "neuron=mtn"),
    "passes": ("--passes", "nearest,allocate"),
    "presets": ("--preset", "best"),
}


@command("onespike list presets", "onespike list models vit_tiny", name="list", needs="onespike.recipe")
def list_names(what: str, contains: str = "") -> Next:
    """List presets, models, passes and other names."""
    if what not in LISTS:
        raise unknown("list", what, LISTS)
    listed = [(name, about) for name, about in LISTS[what]() if contains in name]
    width = max((len(name) for name, _ in listed), default=0)
    for name, about in listed:
        output.line(f"{name:<{width}} {about}".rstrip())
    return (*FIRST, *TRY.get(what, ()), "--out", unused(Path("run")))


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
        settings = shlex.join(words_of(preset.settings or start))
        measured = f"{preset.measured} ({preset.page})" if preset.page else "Not measured here."
        yield name, f"{preset.about}\n  {measured}\n  {settings}"


def _formats() -> Iterator[tuple[str, str]]:
    from onespike.deploy.exports import FORMATS

    for name, format in FORMATS.items():
        forms = " and ".join("integer" if form else "float" for form in format.forms)
        yield name, f"{format.about} ({forms} form)"


def _profiles() -> Iterator[tuple[str, str]]:
    from onespike.energy.profiles import names, profile

    return ((name, profile(name).source) for name in names())


LISTS: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
    "columns": lambda: onespike.energy.columns.meanings().items(),
    "fields": _fields,
    "formats": _formats,
    "models": _models,
    "profiles": _profiles,
    "neurons": lambda: _documented(onespike.NEURONS),
    "passes": lambda: _documented({name: one.run for name, one in onespike.passes.PASSES.items()}),
    "presets": _presets,
}
