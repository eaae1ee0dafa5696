"""`onespike reproduce`: the paper's tables and figures, measured again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Annotations, BatchSize, Device, Limit, Pretrained, Prices, Repeat, Seed
from onespike.cli.progress import progress
from onespike.errors import UsageError, unknown
from onespike.runtime.atomic import try_folder

if TYPE_CHECKING:
    from onespike.adapters import LoadedModel
    from onespike.tasks import Items

IMAGES = {"cifar10-vit": 500, "cifar10-resnet18": 200}
"""The default number of test images for the bundled networks, so that every study ends within minutes."""


@command(
    "onespike reproduce list",
    "onespike reproduce table-ablation",
    "onespike reproduce table-detection",
    "onespike reproduce table-energy --model timm:vit_base_patch16_224 \\\n    --weights vit.safetensors --data imagenet/val",
    interrupted="finished rows are kept. Run the same command again to go on.",
)
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A study, `all`, or `list` for their names.")],
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="As in `onespike convert`; a bundled one by default.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(metavar="FILE", help="A local checkpoint.")] = None,
    pretrained: Pretrained = False,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Labeled images; the bundled ones by default.")
    ] = None,
    annotations: Annotations = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Images for calibration and searches; by default taken out of --data.",
        ),
    ] = None,
    calibration_images: Annotated[
        int, typer.Option(metavar="N", help="Images for calibration; a search takes as many.")
    ] = 64,
    repeat: Repeat = None,
    seed: Seed = None,
    limit: Limit = None,
    batch_size: BatchSize = 50,
    device: Device = "cpu",
    profile: Prices = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for results and finished rows.")
    ] = None,
) -> Next:
    """Measure a table or figure of the paper again.

    CSV, LaTeX, JSON, Markdown and figures are written to the --out folder, with the paper's numbers beside ours. Every
    finished row is kept there, so that the same command resumes an interrupted study.
    """
    from onespike import runs
    from onespike.adapters import load_model
    from onespike.runtime.devices import check_device, place_
    from onespike.studies.reproduce import STUDIES, Bench, run_study
    from onespike.studies.reproduce.study import cell, columns_of

    if name == "list":
        found = [(study.name, study.title) for study in STUDIES.values()]
        output.rows(("study", "what it shows"), found, left=2)
        return "reproduce", next(iter(STUDIES))
    name = name.replace("quantis", "quantiz")
    if name not in STUDIES and name != "all":
        raise unknown("study", name, (*STUDIES, "all"))
    if model is not None and data is None and not model.startswith("bundled:"):
        raise UsageError(
            "a network of your own is measured on images of your own. Give them with --data DIR."
        )
    if calibration_images < 2:
        raise UsageError(f"calibration needs at least 2 images, not {calibration_images}. Try 64.")
    check_device(device)
    for study in STUDIES.values() if name == "all" else (STUDIES[name],):
        spec = model or f"bundled:{study.network}"
        place = out or Path("reproduction") / spec.partition(":")[2].replace("/", "-")
        try_folder(place)
        loaded = load_model(spec, weights=weights, pretrained=pretrained)
        if study.task not in (None, loaded.task.name):
            reason = f"{study.name} is about {study.task}, and {spec} is not. Give another --model."
            if name != "all":
                raise UsageError(reason)
            output.line(reason)
            continue
        count = limit or (None if data else IMAGES.get(spec.partition(":")[2]))
        sets = _images(loaded, data, annotations, calibrate, calibration_images, count)
        runs.check_forward(loaded, place_(loaded.model, device), sets[0])
        draws: list[Items] = []
        first = sets[0]
        if repeat is not None or seed is not None:
            source = _labeled(loaded, data, annotations, calibrate)
            first, *draws = runs.draws(source, len(first), repeat or 1, seed or 0, sets[1:])
        bench = Bench(loaded, first, *sets[1:], place, batch_size=batch_size, progress=progress, draws=draws)
        rows, files = run_study(study, bench)
        every = columns_of(rows)
        metrics = dict.fromkeys(str(row["metric"]) for row in rows if row.get("metric"))
        columns = study.columns(rows)
        output.line(study.title + "".join(f"; score: {metric}" for metric in metrics))
        if len(rows) <= 60:
            output.rows(tuple(columns), [tuple(cell(row.get(c)) for c in columns) for row in rows])
        output.line(f"{study.note} {bench.note}".strip())
        more = f" with {len(every)} columns" if len(columns) < len(every) else ""
        output.line(f"written to {', '.join(str(file) for file in files)}{more}")
        output.line()
    later = [*STUDIES, "list"]
    return "reproduce", "list" if name == "all" else later[later.index(name) + 1]


def _images(
    loaded: LoadedModel,
    data: str | None,
    annotations: Path | None,
    calibrate: str | None,
    each: int,
    count: int | None,
) -> tuple[Items, Items, Items]:
    """Return images for calibration, for searches and for the figures."""
    from onespike import runs
    from onespike.studies.reproduce.bench import split
    from onespike.tasks import check

    if calibrate is not None:
        check(loaded.task, "calibrate")
    found = runs.choose_labeled(loaded, data or loaded.task.bundled[1], annotations)
    apart = calibrate is not None or data is None
    calibration = _labeled(loaded, data, annotations, calibrate, 2 * each) if apart else None
    return split(found, calibration, each, count)


def _labeled(
    loaded: LoadedModel,
    data: str | None,
    annotations: Path | None,
    calibrate: str | None,
    count: int | None = None,
) -> Items:
    """Return the images that calibration and searches take theirs from."""
    from onespike import runs

    source = calibrate or data or loaded.task.bundled[0]
    return runs.choose_labeled(loaded, source, annotations if source == data else None, count)
