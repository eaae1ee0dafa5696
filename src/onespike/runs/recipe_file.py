"""A recipe as an editable file: the preset, and the fields that differ from it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from onespike.errors import UsageError, unknown
from onespike.recipe import PRESETS, VERSION, Recipe
from onespike.runtime.options import options
from onespike.runtime.validated import parse

REMEDY = "Write it as `onespike inspect RUN --recipe` does."


def recipe_record(recipe: Recipe) -> dict[str, Any]:
    """Return the contents of a recipe file.

    >>> recipe_record(Recipe(scale=0.5))
    {'version': 1, 'preset': 'sformer', 'scale': 0.5}
    """
    record = {"version": VERSION, "preset": recipe.preset, **recipe.changes()}
    plain: dict[str, Any] = json.loads(json.dumps(record))
    return plain


def recipe_text(recipe: Recipe) -> str:
    """Return a recipe file in YAML, one field per line.

    >>> print(recipe_text(Recipe(scale=0.3)), end="")
    version: 1
    preset: sformer
    scale: 0.3
    >>> print(recipe_text(Recipe(exclude=("head:*",))), end="")
    version: 1
    preset: sformer
    exclude: ['head:*']
    """
    fields = recipe_record(recipe).items()
    return "".join(
        f"{name}: {_yaml().safe_dump(value, allow_unicode=True, default_flow_style=True, width=math.inf)}".removesuffix(
            "...\n"
        )
        for name, value in fields
    )


def read_recipe(path: Path) -> Recipe:
    """Read the recipe in a YAML or JSON file; missing fields are the preset's."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(
            f"{path}: the recipe cannot be read ({reason}). Give a YAML or JSON file."
        ) from error
    given = _parsed(path, text)
    for name in ("made", "versions"):  # how a command made the file
        given.pop(name, None)
    if given.pop("version", VERSION) != VERSION:
        raise UsageError(f"{path}: this onespike reads recipes of version {VERSION}. {REMEDY}")
    start, known = given.get("preset", Recipe.preset), options(Recipe)
    for name in given:
        if name not in known:
            raise UsageError(f"{path}: {unknown('recipe field', str(name), known)}")
    if not isinstance(start, str) or start not in PRESETS:
        raise UsageError(f"{path}: {unknown('preset', str(start), PRESETS)}")
    record = {"preset": start, **PRESETS[start].settings, **given}
    return parse(Recipe, json.dumps(record, default=str), path, REMEDY, UsageError)


def _parsed(path: Path, text: str) -> dict[str, Any]:
    """Parse JSON as JSON: numbers with exponents make it invalid YAML."""
    try:
        found = json.loads(text) if path.suffix == ".json" else _plain(text)
        json.dumps(found, default=str)
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError, _yaml().YAMLError) as error:
        place = getattr(error, "problem_mark", None)
        line = f" at line {place.line + 1}" if place else ""
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise UsageError(f"{path}: this is no valid {kind}{line}. {REMEDY}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: a recipe has lines such as `scale: 0.25`, and this has none. {REMEDY}")
    return found


def _plain(text: str) -> Any:
    """Parse YAML without aliases: with them a short text can stand for an endless one."""
    for token in _yaml().scan(text):
        if isinstance(token, _yaml().AliasToken):
            raise _yaml().MarkedYAMLError(problem="an alias", problem_mark=token.start_mark)
    return _yaml().safe_load(text)


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as absent:
        raise UsageError("recipe files need PyYAML. Install it with: pip install 'onespike[cli]'") from absent
    return yaml
