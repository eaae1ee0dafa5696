"""The plan of `onespike run`: the commands from a network to its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onespike.cli.options import given
from onespike.recipe import Recipe

TRIALS = 12
"""The trials of a search without labels, which needs few."""


def searches(recipe: Recipe) -> bool:
    """Return whether λ must be found: none is given, and no pass chooses steps."""
    return recipe.neuron == "sfn" and not recipe.passes and "scale" not in recipe.changes()


def plan(
    model: str,
    folder: Path,
    recipe: Recipe,
    *,
    data: str,
    calibrate: str,
    annotations: Path | None,
    images: int,
    limit: int | None,
    exports: Mapping[str, str],
    own: tuple[str, ...],
    running: tuple[str, ...],
) -> tuple[tuple[str, ...], ...]:
    """Return the commands as words; `exports` maps formats to the endings of their files."""
    from onespike.runs import as_command

    words = as_command.recipe_options(recipe)
    code = given(model=model if model.startswith("python:") else None)
    commands: list[tuple[Any, ...]] = [
        ("convert", model, *given(calibrate=calibrate, limit=images, out=folder), *words, *own)
    ]
    if searches(recipe):
        energy = () if recipe.budget is None else given(budget=recipe.budget, energy=recipe.energy)
        # if the same images are measured on, a search takes as many as calibration, and leaves the rest
        asked = given(
            data=calibrate, limit=images if calibrate == data else None, trials=TRIALS, objective="kl"
        )
        commands.append(("search", folder, *asked, *energy, "--resume", *running, *code))
    measured = given(data=data, annotations=annotations, limit=limit)
    commands.append(("report", folder, *measured, "--held-out", *running, *code))
    commands += [
        (
            "export",
            folder,
            *given(format=name, out=folder / "export" / f"network{suffix or f'-{name}'}"),
            *code,
        )
        for name, suffix in exports.items()
    ]
    return tuple(tuple(map(str, words)) for words in commands)


def images_wanted(images: int, found: int, shared: bool, searches: bool) -> int:
    """Return how many inputs calibrate: they must not be measured on, and a search needs others, too.

    >>> images_wanted(256, 1000, True, False), images_wanted(256, 300, False, False), images_wanted(256, 300, False, True)
    (250, 256, 200)
    """
    most = found // 4 if shared else found
    if searches:
        most = min(most, found - max(1, found // 3))
    return max(1, min(images, most))
