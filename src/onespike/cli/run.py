"""`onespike run`: the whole workflow in one command, as a plan of commands that can be resumed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, app, command, following, processes_of
from onespike.cli.options import (
    Annotations,
    BatchSize,
    Device,
    Length,
    Limit,
    Model,
    Pretrained,
    RandomWeights,
    Weights,
    given,
)
from onespike.cli.plan import images_wanted, plan, searches
from onespike.cli.recipe_options import recipe_options
from onespike.cli.reported import FOLDER, reported
from onespike.errors import UsageError
from onespike.recipe import Recipe
from onespike.runtime.atomic import refuse_existing, try_new_folder, write_atomically
from onespike.runtime.validated import read_sealed, sealed

PLAN = "plan.json"


@dataclass(frozen=True)
class _Plan:
    """The schema of a plan: the commands as words, and how many of them are done."""

    commands: tuple[tuple[str, ...], ...]
    done: int


@command(
    "onespike run bundled:cifar10-vit --data bundled:cifar10-test \\\n    --calibrate bundled:cifar10-calibration --out run",
    "onespike run timm:vit_base_patch16_224 --pretrained --data imagenet/val \\\n    --max-drop 1% --export onnx",
    "onespike run transformers:SmolLM2-135M --pretrained \\\n    --data text.txt --length 512",
    interrupted="what is finished is kept. Run the same command again to go on.",
    needs="onespike.runs",
)
@recipe_options
def run(
    model: Model,
    data: Annotated[
        str,
        typer.Option(metavar="DIR", help="What to measure on, with labels: see `onespike evaluate --help`."),
    ],
    recipe: Recipe,
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="What to calibrate on, without labels; else a part of --data."),
    ] = None,
    annotations: Annotations = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The run directory to write; by default the network's name."),
    ] = None,
    weights: Weights = None,
    pretrained: Pretrained = False,
    random_weights: RandomWeights = False,
    images: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many inputs to calibrate on: 256, or 32 windows of a text."),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMAT", help="Also write it in a format of `onespike list formats`; may be repeated."
        ),
    ] = None,
    length: Length = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
) -> Next:
    """Convert a network, measure it and write its report.

    Runs convert, search (if λ must be found), report and, if requested, export, and prints each command first.
    Images that calibration or a search has used are not measured on. After Ctrl-C the same command
    resumes where it stopped.
    """
    if processes_of().count > 1:
        raise UsageError("run works in one process. Launch `onespike convert` and `evaluate` in several.")
    if images is not None and images < 1:
        raise UsageError(f"--images must be at least 1, not {images}.")
    exports = _suffixes(export or [])
    name = model.partition(":")[2].partition(".py:")[0]
    folder = out or Path(f"{Path(name).stem or 'network'}-spiking")
    running = given(
        batch_size=None if batch_size == 16 else batch_size, device=None if device == "cpu" else device
    )
    own = (*_weights(weights, pretrained, random_weights), *given(length=length), *running)
    found, enough = _counts(
        model, data, calibrate or data, annotations, weights, pretrained, random_weights, length
    )
    shared = calibrate in (None, data)
    wanted = images_wanted(images or enough, found, shared, searches(recipe))
    commands = plan(
        model, folder, recipe, data=data, calibrate=calibrate or data, annotations=annotations, images=wanted,
        limit=limit, exports=exports, own=own, running=running,
    )  # fmt: skip
    follow(folder, commands)
    _summary(folder, recipe)
    return "serve", folder


def follow(folder: Path, commands: tuple[tuple[str, ...], ...]) -> None:
    """Run the commands that are not done yet, and record each one that is done."""
    if not folder.name:  # this folder, or the root
        refuse_existing(folder)
    journal, finished = folder.with_name(f".{folder.name}.{PLAN}"), folder / PLAN
    remedy = f"Remove it and {folder}, or choose another --out."
    known = read_sealed(_Plan, journal, remedy) or read_sealed(_Plan, finished, remedy)
    done = 0 if known is None else int(known["done"])
    if (
        known is not None and not folder.exists()
    ):  # the first command did not end well, or the folder was removed
        known, done = None, 0
    if known is None:
        refuse_existing(folder)
        try_new_folder(folder)
    elif tuple(map(tuple, known["commands"])) != commands:
        raise UsageError(f"{folder}: a run with other options is there. Remove it, or choose another --out.")
    elif not done and folder.exists():  # it ended right after the first command
        done = 1
    try:
        for number, words in enumerate(commands, 1):
            shown = f"{number}/{len(commands)}: {shlex.join(('onespike', *words))}"
            if number <= done:
                output.note(f"{shown} (done before)")
                continue
            write_atomically(journal, sealed({"commands": commands, "done": number - 1}))
            if number > 1 and "--out" in words and Path(words[words.index("--out") + 1]).exists():
                continue  # it ended right after this command
            output.note(shown)
            _type(words)
    finally:
        if not folder.exists():  # there is nothing to resume
            journal.unlink(missing_ok=True)
    write_atomically(finished, sealed({"commands": commands, "done": len(commands)}))
    journal.unlink(missing_ok=True)


def _type(words: tuple[str, ...]) -> None:
    """Run one command of the plan as if it were typed, but without its `next:` line."""
    chosen = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    with following(), chosen.make_context(words[0], list(words[1:])) as context:
        chosen.invoke(context)


def _suffixes(formats: list[str]) -> dict[str, str]:
    """Return format → the ending of its file; refuse an unknown or missing format before the work starts."""
    if not formats:
        return {}
    from onespike.deploy.exports.base import prepare

    return {name: prepare(name, None)[0].suffix for name in formats}


def _weights(weights: Path | None, pretrained: bool, random_weights: bool) -> tuple[str, ...]:
    flags = {"--pretrained": pretrained, "--random-weights": random_weights}
    return (*given(weights=weights), *(name for name, is_set in flags.items() if is_set))


def _counts(
    model: str,
    data: str,
    source: str,
    annotations: Path | None,
    weights: Path | None,
    pretrained: bool,
    random_weights: bool,
    length: int | None,
) -> tuple[int, int]:
    """How many inputs there are to calibrate on, and how many are enough; what cannot be scored is refused."""
    from onespike import runs
    from onespike.adapters import load_model

    loaded = load_model(model, weights=weights, pretrained=pretrained, random_weights=random_weights)
    loaded = loaded if length is None else loaded.with_length(length)
    runs.choose_labeled(loaded, data, annotations)
    return len(runs.choose(source, None, loaded.task)), loaded.task.enough


def _summary(folder: Path, recipe: Recipe) -> None:
    from onespike.energy.columns import beside
    from onespike.reports.tables import figure
    from onespike.tasks import task_of
    from onespike.tasks.intervals import spelled

    record = reported(folder)
    evaluation = record["evaluation"]
    task, column = task_of(evaluation), record["energy"]
    head, ratio = task.headline(evaluation), evaluation["energy"][column]
    output.line()
    output.line(f"done           {record['network']['spec']} by {recipe!r}")
    output.line(
        f"calibrated on  {record['calibration']['images']} {record.get('unit', 'images')} of {record['calibration']['source']}"
    )
    output.line(f"measured on    {evaluation['images']} others of {record['data']['source']}")
    sure = "" if head.bounds is None else f" ({spelled(head.bounds, 2)})"
    output.line(f"score          {head.title}: {figure(head.original)} → {figure(head.spiking)}{sure}")
    if head.difference is not None:
        sure = "" if head.paired is None else f" ({spelled(head.paired, 2, sign=True)})"
        output.line(f"difference     {head.difference:+.2f}{sure}".replace("-", "−"))
    output.line(
        f"energy         {'–' if ratio is None else beside(column, ratio, evaluation['analog_share'])} "
        f"({column}, {evaluation['profile']})"
    )
    output.line(f"report         {folder / FOLDER / 'report.html'}")
    for file in sorted((folder / "export").glob("network*")):
        output.line(f"exported       {file}")
