"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from onespike.errors import LoadError, UsageError
from onespike.runtime.atomic import refuse_existing, try_file, try_folder, try_new_folder
from onespike.runtime.validated import SEAL, parse

P = TypeVar("P", bound=Path | None)


def tried(attempt: Callable[[Path], None]) -> Callable[[P], P]:
    """Return an option's callback: a place that cannot be written is refused before the work starts."""

    def check(path: P) -> P:
        if path is not None:
            attempt(path)
        return path

    return check


DEVICE = "Device"
"""The panel of the help for options on where a network runs and in which batches."""


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


FILE, FOLDER, NEW_FOLDER, JSON = (tried(a) for a in (try_file, try_folder, try_new_folder, try_json))

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="timm:NAME, torchvision:NAME, transformers:ID-OR-DIR, detectron2:CONFIG, bundled:NAME or python:FILE.py:FACTORY.",
    ),
]
Weights = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A local checkpoint: .safetensors, .pth, .pt or .bin.")
]
Pretrained = Annotated[bool, typer.Option("--pretrained", help="Fetch the published weights.")]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="Convert an untrained network.")]
Data = Annotated[
    str,
    typer.Option(
        metavar="DIR", help="Folder with one sub-folder per class, bundled:cifar10-test, or a text file."
    ),
]
MaybeData = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Images to measure on: one sub-folder per class, or see --annotations; or a text."
    ),
]
Annotations = Annotated[
    Path | None, typer.Option(metavar="FILE", help="COCO's instances JSON; --data is then its image folder.")
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", help="Use N inputs, evenly spaced over the sorted list.")
]
HeldOut = Annotated[
    bool, typer.Option("--held-out", help="Leave out inputs that calibration or a search has used.")
]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Inputs per forward pass.", rich_help_panel=DEVICE)]
Device = Annotated[str, typer.Option(metavar="D", help="cpu, cuda, cuda:1, mps, …", rich_help_panel=DEVICE)]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        metavar="MAP",
        help="auto, balanced, sequential or a JSON file: accelerate's device maps; blocks or blocks:8GB: one block at a time.",
        rich_help_panel=DEVICE,
    ),
]
Repeat = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Calibrate N times on inputs drawn at random, and show the spread of the score.",
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="What these inputs are drawn by; 0 by default.")]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        "--out",
        metavar="FILE",
        help="Write the figures to this file; the tables, if it ends in .csv or .tex.",
        callback=JSON,
    ),
]

Prices = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME|FILE",
        help="Prices of the energy ratios: see `onespike list profiles`, or give a JSON file.",
    ),
]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `onespike convert` wrote.")]
Length = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Tokens of one window (or of a text, at most), for networks that read text."
    ),
]
Mean = Annotated[
    str | None, typer.Option(metavar="R,G,B", help="Normalize inputs with this mean, not the library's.")
]
Std = Annotated[str | None, typer.Option(metavar="R,G,B", help="And with this standard deviation.")]


def numbers(name: str, text: str | None) -> tuple[float, ...]:
    """Parse `0.5,0.5,0.5` as numbers; mean and deviation are given together."""
    try:
        return tuple(float(part) for part in (text or "").split(","))
    except ValueError:
        raise UsageError(
            f"--{name} takes three numbers, not {text!r}. Give both: --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5."
        ) from None


def given(**options: object) -> tuple[str, ...]:
    """Return options as the words of a command; None means not given.

    >>> given(data="photos", limit=None, batch_size=2)
    ('--data', 'photos', '--batch-size', '2')
    """
    known = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None}
    return tuple(str(word) for pair in known.items() for word in pair)


def held_out(calibration: str) -> str | None:
    """Return the bundled images to measure on, if bundled ones calibrate.

    >>> held_out("bundled:cifar10-calibration"), held_out("photos")
    ('bundled:cifar10-test', None)
    """
    name = calibration.removesuffix("-calibration")
    return f"{name}-test" if name != calibration and name.startswith("bundled:") else None


def unused(path: Path) -> Path:
    """Return this path, or the first of path-2, path-3, … that does not exist."""
    tried, number = path, 1
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.name}-{number}")
    return tried
