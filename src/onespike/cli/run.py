"""`onespike run`: the whole workflow in one command, resumed by a journal of finished stages; and `onespike demo`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import output
from onespike.cli.commands import Next, command, processes_of
from onespike.cli.convert import convert_and_show
from onespike.cli.measure import search_and_show
from onespike.cli.options import Word, load_network, unused
from onespike.cli.report import FOLDER, report_pair
from onespike.errors import UsageError, unknown
from onespike.recipe import Recipe, preset
from onespike.runtime.atomic import refuse_existing, try_new_folder, write_atomically
from onespike.runtime.validated import read_sealed, sealed

if TYPE_CHECKING:
    from onespike.adapters import LoadedModel
    from onespike.runs import NetworkPair

DEMOS = {
    "classification": ("bundled:cifar10-vit", "bundled:cifar10", None, 100),
    "segmentation": ("bundled:scenes", "bundled:scenes", 48, 20),
}
"""Network, images, how many of them calibrate, and batch size."""
PLAN = "plan.json"
TRIALS = 12
"""The trials of a search without labels, which needs few."""


@dataclass(frozen=True)
class _Plan:
    """The schema of a journal: what was asked for, and the stages that are done."""

    request: dict[str, Any]
    done: tuple[str, ...]


@command("onespike demo --out my-demo", "onespike demo segmentation")
def demo(task: str = "classification", *, out: Path = Path("onespike-demo")) -> Next:
    """Convert a bundled network and measure it.

    The network is a small vision transformer for CIFAR-10, or a small detector of clothes in composed scenes. Accuracy
    and energy are printed, and a report is written into a folder.
    """
    from onespike import runs
    from onespike.adapters import load_model
    from onespike.cli import show

    if task not in DEMOS:
        raise unknown("demo", task, DEMOS)
    spec, images, count, batch_size = DEMOS[task]
    calibration = runs.choose(f"{images}-calibration", count)
    pair = runs.convert_network(load_model(spec), calibration, preset("sformer"), progress=output.progress)
    items = runs.choose_labeled(pair.loaded, f"{images}-test")
    show.network(pair)
    show.sites(pair.snn)
    output.line()
    report_pair(out / "run", pair, items, out, batch_size)
    return "convert", spec, "--calibrate", calibration.source, "--out", unused(out / "run")


@command(
    "onespike run bundled:cifar10-vit --data bundled:cifar10-test \\\n    --calibrate bundled:cifar10-calibration --out run",
    "onespike run timm:vit_base_patch16_224 --weights pretrained \\\n    --data imagenet/val --max-drop 1% --format onnx",
    "onespike run transformers:SmolLM2-135M --weights pretrained \\\n    --data text.txt --length 512",
    interrupted="what is finished is kept. Run the same command again to go on.",
    calibrate=Word("DIR", "What to calibrate on, without labels; else a part of --data."),
    out=Word("RUN", "The run directory to write; by default the network's name."),
    images=Word("N", "How many inputs to calibrate on: 256, or 32 windows of a text."),
    format=Word("NAME", "Also export it in a format of `onespike list formats`; may be repeated."),
)
def run(
    model: str,
    *,
    data: str,
    recipe: Recipe,
    calibrate: str | None = None,
    annotations: Path | None = None,
    out: Path | None = None,
    weights: str | None = None,
    images: int | None = None,
    format: list[str] | None = None,
    length: int | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    device: str = "cpu",
) -> Next:
    """Convert a network, measure it and write its report.

    The stages are convert, search (if λ must be found), report and, if requested, export; the network is loaded once.
    Images that calibration or a search has used are not measured on. After Ctrl-C the same command
    resumes where it stopped.
    """
    from onespike import runs
    from onespike.cli import show
    from onespike.runs.searching import measurable

    if processes_of().count > 1:
        raise UsageError("run works in one process. Launch `onespike convert` and `evaluate` in several.")
    if images is not None and images < 1:
        raise UsageError(f"--images must be at least 1, not {images}.")
    name = model.partition(":")[2].partition(".py:")[0]
    folder = out or Path(f"{Path(name).stem or 'network'}-spiking")
    calibrate = calibrate or data

    def prepare() -> LoadedModel:
        loaded = load_network(model, weights, length)
        runs.choose_labeled(loaded, data, annotations)
        return loaded

    def convert(loaded: LoadedModel) -> NetworkPair:
        available = len(runs.choose(calibrate, None, loaded.task))
        count = images_wanted(images or loaded.task.enough, available, calibrate == data, searches(recipe))
        items = runs.choose(calibrate, count, loaded.task)
        return convert_and_show(loaded, items, recipe, folder, batch_size=batch_size, device=device)

    def search(pair: NetworkPair) -> NetworkPair:
        # of one folder, a search takes as many as calibration, and leaves the rest
        count = len(pair.data["names"]) if calibrate == data else None
        options: Any = {"trials": TRIALS, "objective": "kl", "batch_size": batch_size, "resume": True}
        if recipe.budget is not None:
            options |= {"budget": recipe.budget, "energy": recipe.energy}
        return search_and_show(folder, pair, calibrate, limit=count, **options)

    def report(pair: NetworkPair) -> NetworkPair:
        items = measurable(folder, pair, data, annotations, limit, held_out=True)
        report_pair(folder, pair, items, folder / FOLDER, batch_size)
        return pair

    stages: dict[str, Stage] = {"convert": convert}
    if searches(recipe):
        stages["search"] = search
    stages |= {"report": report, **_exports(folder, format or [])}
    request = {
        "model": model, "data": data, "calibrate": calibrate, "annotations": annotations, "weights": weights, "images": images,
        "length": length, "limit": limit, "batch_size": batch_size, "device": device, "recipe": recipe.to_dict(),
    }  # fmt: skip
    _follow(folder, request, prepare, stages)
    show.summary(folder, recipe)
    return "serve", folder


Stage = Callable[[Any], "NetworkPair"]
"""Part of the work: takes what the one before gave, at first the loaded network, and gives the pair of networks."""


def _exports(folder: Path, formats: list[str]) -> dict[str, Stage]:
    """Return a stage per format; an unknown or missing format is refused before the work starts."""
    if not formats:
        return {}
    from onespike.cli import show
    from onespike.deploy.exports.base import prepare
    from onespike.runs.forms import export_pair

    def export(name: str, file: Path, pair: NetworkPair) -> NetworkPair:
        if not file.exists():  # else it ended right after this stage
            show.export(export_pair(pair, name, file))
        return pair

    names = {name: f"network{prepare(name, None)[0].suffix or f'-{name}'}" for name in formats}
    return {f"export {name}": partial(export, name, folder / "export" / file) for name, file in names.items()}


def searches(recipe: Recipe) -> bool:
    """Return whether λ must be found: none is given, and no pass chooses steps."""
    return recipe.neuron == "sfn" and not recipe.passes and "scale" not in recipe.changes()


def images_wanted(images: int, available: int, shared: bool, searches: bool) -> int:
    """Return how many inputs calibrate: they must not be measured on, and a search needs others, too.

    >>> images_wanted(256, 1000, True, False), images_wanted(256, 300, False, False), images_wanted(256, 300, False, True)
    (250, 256, 200)
    """
    most = available // 4 if shared else available
    if searches:
        most = min(most, available - max(1, available // 3))
    return max(1, min(images, most))


def _follow(
    folder: Path, request: dict[str, Any], prepare: Callable[[], Any], stages: dict[str, Stage]
) -> None:
    """Run the stages that are not done yet, and record each one that is done.

    `request` is everything that decides the result. A new run is prepared, so that it is refused before the work.
    """
    from onespike import runs

    if not folder.name:  # this folder, or the root
        refuse_existing(folder)
    asked = json.loads(json.dumps({**request, "stages": list(stages)}, default=str))
    journal, finished = folder.with_name(f".{folder.name}.{PLAN}"), folder / PLAN
    remedy = f"Remove it and {folder}, or choose another --out."
    record = read_sealed(_Plan, journal, remedy) or read_sealed(_Plan, finished, remedy)
    if record is None or not folder.exists():  # the first stage did not end well, or the folder was removed
        try_new_folder(folder)
        result, done = prepare(), list[str]()
    elif record["request"] != asked:
        raise UsageError(f"{folder}: a run with other options is there. Remove it, or choose another --out.")
    else:  # the folder is written in one step, so that its conversion is done
        result, done = None, list(dict.fromkeys(("convert", *record["done"])))
    try:
        for number, (name, stage) in enumerate(stages.items(), 1):
            title = f"{number}/{len(stages)}: {name}"
            if name in done:
                output.note(f"{title} (done before)")
                continue
            write_atomically(journal, sealed({"request": asked, "done": done}))
            output.note(title)
            result = stage(runs.load(folder, device=request["device"]) if result is None else result)
            done.append(name)
    finally:
        if not folder.exists():  # there is nothing to resume
            journal.unlink(missing_ok=True)
    write_atomically(finished, sealed({"request": asked, "done": done}))
    journal.unlink(missing_ok=True)
