"""A recipe as the words of a command: the one that made a run, or that would make a better one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from onespike.adapters import normalization
from onespike.recipe import DEFAULT, Recipe
from onespike.runs.pair import NetworkPair
from onespike.runtime.options import options


def recipe_options(recipe: Recipe) -> list[str]:
    """Return the options of `onespike convert` that lead from the preset to this recipe.

    >>> recipe_options(Recipe(scale=0.3, exclude=("*fc1:*",)))
    ['--preset', 'sformer', '--scale', '0.3', '--exclude', '*fc1:*']
    """
    known, words = options(recipe), list[str]()
    if recipe.preset != DEFAULT:
        words += known["preset"].words("preset", recipe.preset)
    for name, value in recipe.changes().items():
        words += known[name].words(name, value)
    return words


def spike_call(**changes: Any) -> str:
    """Return the call that converts a network in Python again, with other recipe fields.

    >>> spike_call(scale=0.3)
    'onespike.spike(model, batches, recipe.replace(scale=0.3))'
    """
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
    elif loaded.weights in ("pretrained", "random"):
        words.append("--pretrained" if loaded.weights == "pretrained" else "--random-weights")
    elif loaded.weights not in ("bundled", "own"):
        words += ["--weights", loaded.weights]
    own = None if loaded.reading.replaced is None else normalization(loaded.reading.transform)
    if (given := changes.pop("normalization", own)) is not None:
        for option, values in zip(("--mean", "--std"), given, strict=True):
            words += [option, ",".join(f"{v:g}" for v in values)]
    if loaded.reading.size is not None:
        words += ["--resize", str(loaded.reading.size[0]), "--crop", str(loaded.reading.size[1])]
    words += [] if loaded.reading.length is None else ["--length", str(loaded.reading.length)]
    words += ["--calibrate", str(pair.data["source"]), "--limit", str(images or len(pair.data["names"]))]
    return shlex.join([*words, *recipe_options(pair.recipe.replace(**changes)), "--out", str(out)])
