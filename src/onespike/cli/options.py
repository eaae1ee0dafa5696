"""Every option of the command line, once: its words in `words.toml`, what is checked before the work starts; and old ones."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from onespike.errors import LoadError, UsageError
from onespike.presets import DEFAULT
from onespike.recipe import FIELDS, Recipe, parse_field, preset
from onespike.runtime.atomic import refuse_existing, try_file, try_folder
from onespike.runtime.validated import SEAL, parse
from onespike.sources import forms

if TYPE_CHECKING:
    from onespike.adapters import LoadedModel

RECIPE = "Recipe"  # the panel of the help on how a network is converted


def try_json(path: Path) -> None:
    """Check like `try_file`; figures replace older figures, but no record of a run, image or checkpoint.

    Tables replace nothing: whose they are cannot be told.
    """
    try_file(path)
    if not path.is_file() or not path.stat().st_size:
        return
    if path.suffix in (".csv", ".tex"):
        refuse_existing(path)
    try:
        record = parse(object, path.read_bytes(), path, "")
    except LoadError:
        record = None
    if not isinstance(record, (dict, list)) or SEAL in record:
        raise UsageError(f"{path} exists and holds no figures. Choose another --json or remove it.")


class Word(NamedTuple):
    """An option or argument: a flag has no placeholder, and a place to write to is tried first."""

    metavar: str
    help: str
    panel: str | None = None
    attempt: Callable[[Path], None] | None = None
    names: tuple[str, ...] = ()


_WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
ARGUMENTS = {name: Word(*entry) for name, entry in _WORDS["arguments"].items()}
ARGUMENTS["model"] = Word("MODEL", f"{forms()}.")
OPTIONS = {name: Word(*entry) for name, entry in _WORDS["options"].items()}
OPTIONS["json_file"] = OPTIONS["json_file"]._replace(attempt=try_json, names=("--json", "--out"))
OPTIONS["out"] = OPTIONS["out"]._replace(attempt=try_folder)
RECIPE_OPTIONS = {
    name: Word(option.metavar, option.help, RECIPE) for name, option in FIELDS.items() if option.usual
} | {
    "changes": Word("FIELD=VALUE", "Any other field of the recipe: see `onespike list fields`; may be repeated.", RECIPE, names=("--set",)),
    "file": Word("FILE", "YAML or JSON that `onespike inspect RUN --recipe` prints; other options come after it.", RECIPE, names=("--recipe",)),
}  # fmt: skip
DIFFERENCES = {
    command: {name: Word(*entry) for name, entry in entries.items()}
    for command, entries in _WORDS["differences"].items()
}
"""Command → its options that mean something else there."""
EXAMPLES: dict[str, str] = _WORDS["examples"]  # command → what its help ends with
EARLIER_COMMANDS: dict[str, str] = _WORDS["earlier_commands"]
EARLIER_OPTIONS = {f"--{name.replace('_', '-')}": f"--set {name}=…" for name in FIELDS}
EARLIER_OPTIONS |= _WORDS["earlier_options"]
"""Commands and options of earlier versions, and how they are spelled now: whoever types an old one is told."""


def spelled_now(word: str, existing: set[str]) -> str | None:
    """Return what replaces an option that a command does not have.

    >>> spelled_now("--percentile=2", set())
    '--percentile is now --set percentile=…. See: onespike list fields'
    """
    name = word.partition("=")[0]
    if name in existing or name not in EARLIER_OPTIONS:
        return None
    hint = ". See: onespike list fields" if EARLIER_OPTIONS[name].startswith("--set") else "."
    return f"{name} is now {EARLIER_OPTIONS[name]}{hint}"


def typed(
    parameters: Mapping[str, inspect.Parameter], differences: Mapping[str, Word]
) -> Iterator[inspect.Parameter]:
    """Yield a command's parameters as typer reads them: positional ones are arguments, keyword-only ones options.

    A parameter `recipe` of type Recipe becomes the options of a recipe.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    for name, parameter in parameters.items():
        if parameter.annotation is Recipe:
            kinds: Any = {"changes": list[str] | None, "file": Path | None}
            for field, word in RECIPE_OPTIONS.items():
                kind: Any = Annotated[kinds.get(field, str | None), _option(field, word)]
                yield inspect.Parameter(field, keyword, default=None, annotation=kind)
            continue
        if parameter.kind is keyword:
            info = _option(name, differences.get(name) or OPTIONS[name])
        else:
            info = typer.Argument(metavar=ARGUMENTS[name].metavar, help=ARGUMENTS[name].help)
        yield parameter.replace(kind=keyword, annotation=Annotated[parameter.annotation, info])


def _option(name: str, word: Word) -> Any:
    def callback(value: Any) -> Any:
        if value is not None and word.attempt is not None:
            word.attempt(value)
        return value

    names = word.names or (f"--{name.replace('_', '-')}",)
    return typer.Option(
        *names, metavar=word.metavar or None, help=word.help, rich_help_panel=word.panel, callback=callback
    )


def recipe_of(changes: list[str] | None = None, file: Path | None = None, **texts: str | None) -> Recipe:
    """Return the recipe of a preset or a file, with the fields of the options and of --set; mistakes are found here."""
    from onespike.passes import check_recipe
    from onespike.runs.recipe_text import read_recipe

    fields = {name: [text] for name, text in texts.items() if text is not None}
    for change in changes or ():
        name, equals, value = change.partition("=")
        if not equals:
            raise UsageError(f"--set {change}: a field and its value are missing. Write --set percentile=2.")
        fields.setdefault(name.strip().replace("-", "_"), []).append(value)
    values = {name: parse_field(name, words) for name, words in fields.items()}
    if file is None:
        recipe = preset(values.pop("preset", DEFAULT), **values)
    elif "preset" in values:
        raise UsageError("--preset and --recipe both say where the recipe starts. Give one of them.")
    else:
        recipe = read_recipe(file).replace(**values)
    return recipe.replace(passes=check_recipe(recipe))


def load_network(model: str, weights: str | None, length: int | None = None, **more: Any) -> LoadedModel:
    """Load the network that MODEL, --weights and --length name."""
    from onespike.adapters import load_model

    kinds = {"pretrained": {"pretrained": True}, "random": {"random_weights": True}, None: {}}
    source: Any = kinds[weights] if weights in kinds else {"weights": Path(str(weights))}
    loaded = load_model(model, **source, **more)
    return loaded if length is None else loaded.with_length(length)


def words(**values: object) -> tuple[str, ...]:
    """Return options as the words of a command; None means that it is left out."""
    named = {f"--{name.replace('_', '-')}": value for name, value in values.items() if value is not None}
    return tuple(str(word) for pair in named.items() for word in pair)


def held_out(calibration: str) -> str | None:
    """Return the bundled images to measure on, if bundled ones calibrate."""
    name = calibration.removesuffix("-calibration")
    return f"{name}-test" if name != calibration and name.startswith("bundled:") else None


def unused(path: Path) -> Path:
    """Return this path, or the first of path-2, path-3, … that does not exist."""
    tried, number = path, 1
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.name}-{number}")
    return tried
