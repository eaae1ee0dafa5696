"""A recipe as text: an editable file, the words of a command, and a call in Python."""

import json
import math
import shlex
from pathlib import Path
from typing import Any

from onespike.adapters import normalization
from onespike.errors import UsageError, require, unknown
from onespike.presets import DEFAULT, PRESETS
from onespike.recipe import VERSION, Recipe, words_of
from onespike.runs.pair import NetworkPair

REMEDY = "Write it as `onespike inspect RUN --recipe` does."


def recipe_record(recipe: Recipe) -> dict[str, Any]:
    """Return the contents of a recipe file: the preset, and the fields that differ from it."""
    return dict(json.loads(json.dumps({"version": VERSION, "preset": recipe.preset, **recipe.changes()})))


def recipe_text(recipe: Recipe) -> str:
    """Return a recipe file in YAML, one field per line."""
    lines = []
    for name, value in recipe_record(recipe).items():
        dumped = _yaml().safe_dump(value, allow_unicode=True, default_flow_style=True, width=math.inf)
        lines.append(f"{name}: " + dumped.removesuffix("...\n"))
    return "".join(lines)


def read_recipe(path: Path) -> Recipe:
    """Read the recipe in a YAML or JSON file; missing fields are the preset's."""
    kind = "JSON" if path.suffix == ".json" else "YAML"
    try:
        text = path.read_text(encoding="utf-8")
        record = json.loads(text) if kind == "JSON" else _plain(text)  # JSON's exponents are invalid YAML
        json.dumps(record, default=str)
    except OSError as error:
        raise UsageError(
            f"{path}: the recipe cannot be read ({error.strerror}). Give a YAML or JSON file."
        ) from error
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError, _yaml().YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}: this is no valid {kind}{line}. {REMEDY}") from error
    if not isinstance(record, dict):
        raise UsageError(f"{path}: a recipe has lines such as `scale: 0.25`, and this has none. {REMEDY}")
    for name in ("made", "versions"):  # how a command made the file
        record.pop(name, None)
    start = record.get("preset", Recipe.preset)
    if not isinstance(start, str) or start not in PRESETS:
        raise UsageError(f"{path}: {unknown('preset', str(start), PRESETS)}")
    return Recipe.from_dict({**PRESETS[start].settings, "preset": start, **record}, path, REMEDY, UsageError)


def _plain(text: str) -> Any:
    """Parse YAML without aliases: with them a short text can stand for an endless one."""
    for token in _yaml().scan(text):
        if isinstance(token, _yaml().AliasToken):
            raise _yaml().MarkedYAMLError(problem="an alias", problem_mark=token.start_mark)
    return _yaml().safe_load(text)


def _yaml() -> Any:
    return require("yaml", "cli", "a recipe file")


def recipe_options(recipe: Recipe) -> list[str]:
    """Return the options of `onespike convert` that lead from the preset to this recipe."""
    words = [] if recipe.preset == DEFAULT else ["--preset", recipe.preset]
    return words + words_of(recipe.changes())


def spike_call(**changes: Any) -> str:
    """Return the call that converts a network in Python again, with other recipe fields."""
    fields = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    return f"onespike.spike(model, batches, recipe{f'.replace({fields})' if fields else ''})"


def convert_command(
    pair: NetworkPair,
    out: Path | str,
    *,
    images: int | None = None,
    weights: Path | None = None,
    **changes: Any,
) -> str:
    """Return the `onespike convert` that makes this run, or a similar one with other recipe fields or more images.

    The run's own weights may replace the file that it was made from, which may be gone.
    """
    loaded, words = pair.loaded, ["onespike", "convert", pair.loaded.spec]
    if weights is not None and loaded.weights not in ("pretrained", "bundled"):
        words += ["--weights", str(weights)]
    elif loaded.weights not in ("bundled", "own"):
        words += ["--weights", loaded.weights]
    replaced = None if loaded.reading.replaced is None else normalization(loaded.reading.transform)
    for name, values in zip(("mean", "std"), changes.pop("normalization", replaced) or (), strict=False):
        words += ["--preprocess", f"{name}={','.join(f'{v:g}' for v in values)}"]
    for name, pixels in zip(("resize", "crop"), loaded.reading.size or (), strict=False):
        words += ["--preprocess", f"{name}={pixels}"]
    words += [] if loaded.reading.length is None else ["--length", str(loaded.reading.length)]
    words += ["--calibrate", str(pair.data["source"]), "--limit", str(images or len(pair.data["names"]))]
    return shlex.join([*words, *recipe_options(pair.recipe.replace(**changes)), "--out", str(out)])
