"""The options of the recipe, made from its fields: a new field of the recipe is an option of `onespike convert`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from onespike.cli.commands import Next
from onespike.errors import UsageError
from onespike.recipe import DEFAULT, RECIPE, Recipe, preset
from onespike.runtime.options import Option, options

PLAIN = (int, float, str)
FILE = inspect.Parameter(
    "recipe",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML or JSON that `onespike inspect RUN --recipe` prints; other options come after it.",
            rich_help_panel=RECIPE,
        ),
    ],
)


def recipe_options(function: Callable[..., Next]) -> Callable[..., Next]:
    """Replace a command's parameter `recipe` by --recipe and one option per field of the recipe."""
    signature, fields = inspect.signature(function, eval_str=True), options(Recipe)
    made = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name, option)
        )
        for name, option in fields.items()
    ]
    parameters = [
        parameter
        for own in signature.parameters.values()
        for parameter in ([FILE, *made] if own.name == "recipe" else [own.replace(kind=own.KEYWORD_ONLY)])
    ]

    @wraps(function)
    def run(**values: Any) -> Next:
        words, file = {name: values.pop(name) for name in fields}, values.pop("recipe")
        return function(**values, recipe=recipe_of(words, file))

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": Next}
    return run


def _annotation(name: str, option: Option) -> Any:
    kind: Any = option.read if option.read in PLAIN else str
    shown = typer.Option(
        option.name(name), metavar=option.metavar, help=option.help, rich_help_panel=option.panel
    )
    return Annotated[(list[str] if option.repeated else kind) | None, shown]


def recipe_of(words: dict[str, Any], file: Path | None = None) -> Recipe:
    """Return the recipe of the options: a preset or a file, and the fields that differ from it."""
    changes: dict[str, Any] = {
        name: tuple(map(option.read, words[name])) if option.repeated else option.read(words[name])
        for name, option in options(Recipe).items()
        if words[name] is not None and words[name] != []
    }
    from onespike.runs.recipe_file import read_recipe

    if file is None:
        return preset(changes.pop("preset", DEFAULT), **changes)
    if "preset" in changes:
        raise UsageError("--preset and --recipe both say where the recipe starts. Give one of them.")
    return read_recipe(file).replace(**changes)
