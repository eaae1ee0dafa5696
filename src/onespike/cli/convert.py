"""A network becomes a run: `onespike convert`; `run`, the whole way, resumed by a journal of finished stages; `demo`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import WARNING, output, say
from onespike.cli.commands import Next, command, processes_of
from onespike.cli.measure import search_and_show
from onespike.cli.options import Word, held_out, load_network, unused
from onespike.cli.report import FOLDER, report_pair
from onespike.errors import UsageError, unknown
from onespike.recipe import Recipe, preset
from onespike.runtime.atomic import refuse_existing, try_new_folder, write_atomically
from onespike.runtime.validated import read_sealed, sealed

if TYPE_CHECKING:
    from onespike.adapters import LoadedModel
    from onespike.runs import NetworkPair
    from onespike.tasks import Items

PREPROCESS = {"resize": "256", "crop": "224", "mean": "0.5,0.5,0.5", "std": "0.5,0.5,0.5"}
"""What --preprocess takes, each with an example."""
DEMOS = {
    "classification": ("bundled:cifar10-vit", "bundled:cifar10", None, 100),
    "segmentation": ("bundled:scenes", "bundled:scenes", 48, 20),
}
"""Network, images, how many of them calibrate, and batch size."""
PLAN = "plan.json"
TRIALS = 12  # the trials of a search without labels, which needs few


@dataclass(frozen=True)
class _Plan:
    """The schema of a journal: what was asked for, and the stages that are done."""

    request: dict[str, Any]
    done: tuple[str, ...]


@command(
    shared=True, out=Word("RUN", "The run directory to write; it must not exist.", attempt=try_new_folder)
)
def convert(
    model: str,
    *,
    calibrate: str,
    out: Path,
    recipe: Recipe,
    weights: str | None = None,
    attention: str | None = None,
    data: str | None = None,
    preprocess: list[str] | None = None,
    length: int | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    device: str = "cpu",
    device_map: str | None = None,
) -> Next:
    """Convert a network and write a run directory.

    Thresholds are calibrated on unlabeled images or text, and improved by passes within an energy budget: by default
    --preset fast, the least energy that is expected to lose 0.5 %, at most a binary ratio of 0.2 of all MACs of the
    original. --budget and --max-drop say otherwise. --preset sformer is the paper's
    method. Bundled networks include their weights; others need --weights.
    """
    from onespike import runs
    from onespike.runtime.devices import in_blocks

    if data is not None and recipe.max_drop is None:
        raise UsageError("--data judges --max-drop, and there is none. Give for example --max-drop 1%.")
    loaded = load_network(model, weights, length, attention=attention, on_disk=in_blocks(device_map))
    items = runs.choose(calibrate, limit, loaded.task)
    loaded = _preprocessed(loaded, preprocess or [])
    validation = None if data is None else runs.choose_labeled(loaded, data)
    places: Any = {"device": device, "device_map": device_map}
    convert_and_show(loaded, items, recipe, out, batch_size=batch_size, validation=validation, **places)
    images = held_out(calibrate)
    return ("inspect", out) if images is None else ("evaluate", out, "--data", images)


def convert_and_show(
    loaded: LoadedModel, items: Items, recipe: Recipe, out: Path, **options: Any
) -> NetworkPair:
    """Convert a network, write the run, and print what it is and spends."""
    from onespike import runs
    from onespike.cli import show

    processes = processes_of()
    work = out.with_name(f".{out.name}.passes")  # an interrupted tuning resumes there
    pair = runs.convert_network(loaded, items, recipe, processes=processes, work=work, **options)
    if processes.is_main:
        runs.save(out, pair)
        shutil.rmtree(work, ignore_errors=True)
    show.network(pair)
    show.sites(pair.snn)
    output.line(f"calibrated on  {len(pair.data['names'])} {pair.loaded.task.unit} of {pair.data['source']}")
    show.spent(pair)
    output.line(f"written to     {out}")
    show.chips(pair)
    return pair


def _preprocessed(loaded: LoadedModel, preprocess: list[str]) -> LoadedModel:
    """Return the network with other preprocessing; warn where its weights do not say which they need."""
    from onespike.adapters import renormalized, resized

    stated = dict[str, list[float]]()
    for word in preprocess:
        name, _, text = word.partition("=")
        if name not in PREPROCESS:
            raise unknown("preprocessing", name, PREPROCESS)
        if loaded.task.unit != "images":
            raise UsageError("mean= and std= are for images, and this network reads text. Leave them out.")
        try:
            stated[name] = [float(part) for part in text.split(",")]
        except ValueError:
            example = f"Write {name}={PREPROCESS[name]}."
            raise UsageError(f"--preprocess {name} takes numbers, not {text!r}. {example}") from None
    resize, crop = (int(stated[name][0]) if name in stated else None for name in ("resize", "crop"))
    if resize is not None or crop is not None:
        loaded = resized(loaded, resize, crop)
    elif loaded.reading.doubt:
        say(
            f"{loaded.spec}: its published weights want different preprocessing ({loaded.reading.doubt}), and a file does not say "
            f"which; this run takes {loaded.reading.preprocessing}. Give --preprocess resize=N --preprocess crop=N.",
            start=WARNING,
        )
    if "mean" in stated or "std" in stated:
        loaded = renormalized(loaded, stated.get("mean", ()), stated.get("std", ()))
    return loaded


@command()
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
    pair = runs.convert_network(load_model(spec), calibration, preset("sformer"))
    items = runs.choose_labeled(pair.loaded, f"{images}-test")
    show.network(pair)
    show.sites(pair.snn)
    output.line()
    report_pair(out / "run", pair, items, out, batch_size)
    return "convert", spec, "--calibrate", calibration.source, "--out", unused(out / "run")


@command(interrupted="what is finished is kept. Run the same command again to go on.")
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
    from onespike.deploy.exports.base import prepare
    from onespike.runs.forms import export_pair
    from onespike.runs.searching import measurable

    if processes_of().count > 1:
        raise UsageError("run works in one process. Launch `onespike convert` and `evaluate` in several.")
    if images is not None and images < 1:
        raise UsageError(f"--images must be at least 1, not {images}.")
    name = model.partition(":")[2].partition(".py:")[0]
    folder = out or Path(f"{Path(name).stem or 'network'}-spiking")
    calibrate = calibrate or data

    def load() -> LoadedModel:
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
        return search_and_show(folder, pair, calibrate, limit=count, **options)

    def report(pair: NetworkPair) -> NetworkPair:
        items = measurable(folder, pair, data, annotations, limit, held_out=True)
        report_pair(folder, pair, items, folder / FOLDER, batch_size)
        return pair

    def export(form: str, file: Path, pair: NetworkPair) -> NetworkPair:
        if not file.exists():  # else it ended right after this stage
            show.export(export_pair(pair, form, file))
        return pair

    stages: dict[str, Stage] = {"convert": convert}
    if searches(recipe):
        stages["search"] = search
    stages["report"] = report
    for form in format or ():  # an unknown or missing format is refused before the work starts
        file = folder / "export" / f"network{prepare(form, None)[0].suffix or f'-{form}'}"
        stages[f"export {form}"] = partial(export, form, file)
    request = {
        "model": model, "data": data, "calibrate": calibrate, "annotations": annotations, "weights": weights, "images": images,
        "length": length, "limit": limit, "batch_size": batch_size, "device": device, "recipe": recipe.to_dict(),
    }  # fmt: skip
    _follow(folder, request, load, stages)
    show.summary(folder, recipe)
    return "serve", folder


Stage = Callable[[Any], "NetworkPair"]
"""Part of the work: takes what the one before gave, at first the loaded network, and gives the pair of networks."""


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
