"""`onespike run`: the whole workflow in one command; a journal of finished stages lets it be resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import output
from onespike.cli.commands import Next, command, processes_of
from onespike.cli.convert import converted
from onespike.cli.options import Word, load_network
from onespike.cli.progress import progress
from onespike.errors import UsageError
from onespike.recipe import Recipe
from onespike.runtime.atomic import refuse_existing, try_new_folder, write_atomically
from onespike.runtime.validated import read_sealed, sealed

if TYPE_CHECKING:
    from onespike.adapters import LoadedModel
    from onespike.runs import NetworkPair

PLAN = "plan.json"
TRIALS = 12
"""The trials of a search without labels, which needs few."""


@dataclass(frozen=True)
class _Plan:
    """The schema of a journal: what was asked for, and the stages that are done."""

    request: dict[str, Any]
    done: tuple[str, ...]


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
    if processes_of().count > 1:
        raise UsageError("run works in one process. Launch `onespike convert` and `evaluate` in several.")
    if images is not None and images < 1:
        raise UsageError(f"--images must be at least 1, not {images}.")
    name = model.partition(":")[2].partition(".py:")[0]
    folder = out or Path(f"{Path(name).stem or 'network'}-spiking")
    workflow = _Workflow(
        folder, model, recipe, data, calibrate or data, annotations, weights, images, length, limit, batch_size, device
    )  # fmt: skip
    workflow.stages |= _exports(workflow, format or [])
    _follow(workflow)
    _summary(folder, recipe)
    return "serve", folder


@dataclass
class _Workflow:
    """The request, the stages that answer it, and the networks once they are there."""

    folder: Path
    model: str
    recipe: Recipe
    data: str
    calibrate: str
    annotations: Path | None
    weights: str | None
    images: int | None
    length: int | None
    limit: int | None
    batch_size: int
    device: str
    stages: dict[str, Callable[[], None]] = field(init=False)
    loaded: LoadedModel = field(init=False)

    def __post_init__(self) -> None:
        stages = {"convert": self.convert, "search": self.search, "report": self.report}
        self.stages = {
            name: stage for name, stage in stages.items() if name != "search" or searches(self.recipe)
        }
        self._pair: NetworkPair | None = None

    def request(self) -> dict[str, Any]:
        """Return everything that decides the result, as JSON gives it back."""
        names = ("model", "data", "calibrate", "annotations", "weights", "images", "length", "limit", "batch_size", "device")  # fmt: skip
        request = {name: getattr(self, name) for name in names}
        record: dict[str, Any] = json.loads(
            json.dumps({**request, "recipe": self.recipe.to_dict(), "stages": list(self.stages)}, default=str)
        )
        return record

    @property
    def pair(self) -> NetworkPair:
        from onespike import runs

        if self._pair is None:  # an earlier command has converted it
            self._pair = runs.load(self.folder, device=self.device)
        return self._pair

    def prepare(self) -> None:
        """Load the network; what cannot be scored is refused before the work."""
        from onespike import runs
        from onespike.runtime.devices import check_device

        check_device(self.device)
        self.loaded = load_network(self.model, self.weights, self.length)
        runs.choose_labeled(self.loaded, self.data, self.annotations)

    def convert(self) -> None:
        from onespike import runs

        loaded = self.loaded
        available = runs.choose(self.calibrate, None, loaded.task)
        count = images_wanted(
            self.images or loaded.task.enough,
            len(available),
            self.calibrate == self.data,
            searches(self.recipe),
        )
        items = runs.choose(self.calibrate, count, loaded.task)
        work = self.folder.with_name(f".{self.folder.name}.passes")
        self._pair = runs.convert_network(
            loaded, items, self.recipe, batch_size=self.batch_size, device=self.device, progress=progress, work=work
        )  # fmt: skip
        runs.save(self.folder, self._pair)
        shutil.rmtree(work, ignore_errors=True)
        converted(self._pair, self.folder)

    def search(self) -> None:
        from onespike.cli.search import search_and_show

        shared = (
            self.calibrate == self.data
        )  # then a search takes as many as calibration, and leaves the rest
        budget = self.recipe.budget
        self._pair = search_and_show(
            self.folder,
            self.pair,
            self.calibrate,
            limit=len(self.pair.data["names"]) if shared else None,
            trials=TRIALS,
            objective="kl",
            budget=budget,
            energy=None if budget is None else self.recipe.energy,
            batch_size=self.batch_size,
            resume=True,
        )

    def report(self) -> None:
        from onespike.cli.report import report_pair
        from onespike.cli.reported import FOLDER
        from onespike.runs.searching import measurable

        items = measurable(self.folder, self.pair, self.data, self.annotations, self.limit, held_out=True)
        report_pair(self.folder, self.pair, items, self.folder / FOLDER, self.batch_size)


def _exports(workflow: _Workflow, formats: list[str]) -> dict[str, Callable[[], None]]:
    """Return a stage per format; an unknown or missing format is refused before the work starts."""
    if not formats:
        return {}
    from onespike.cli.export import exported
    from onespike.deploy.exports.base import prepare
    from onespike.runs.forms import export_pair

    def stage(name: str, file: Path) -> Callable[[], None]:
        def export() -> None:
            if not file.exists():  # else it ended right after this stage
                exported(export_pair(workflow.pair, name, file))

        return export

    folder = workflow.folder / "export"
    suffixes = {name: prepare(name, None)[0].suffix for name in formats}
    return {
        f"export {name}": stage(name, folder / f"network{suffix or f'-{name}'}")
        for name, suffix in suffixes.items()
    }


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


def _follow(workflow: _Workflow) -> None:
    """Run the stages that are not done yet, and record each one that is done."""
    folder, request = workflow.folder, workflow.request()
    if not folder.name:  # this folder, or the root
        refuse_existing(folder)
    journal, finished = folder.with_name(f".{folder.name}.{PLAN}"), folder / PLAN
    remedy = f"Remove it and {folder}, or choose another --out."
    record = read_sealed(_Plan, journal, remedy) or read_sealed(_Plan, finished, remedy)
    if record is None or not folder.exists():  # the first stage did not end well, or the folder was removed
        refuse_existing(folder)
        try_new_folder(folder)
        workflow.prepare()
        done = []
    elif record["request"] != request:
        raise UsageError(f"{folder}: a run with other options is there. Remove it, or choose another --out.")
    else:  # the folder is written in one step, so that its conversion is done
        done = ["convert", *(name for name in record["done"] if name != "convert")]
    try:
        for number, (name, stage) in enumerate(workflow.stages.items(), 1):
            title = f"{number}/{len(workflow.stages)}: {name}"
            if name in done:
                output.note(f"{title} (done before)")
                continue
            write_atomically(journal, sealed({"request": request, "done": done}))
            output.note(title)
            stage()
            done.append(name)
    finally:
        if not folder.exists():  # there is nothing to resume
            journal.unlink(missing_ok=True)
    write_atomically(finished, sealed({"request": request, "done": done}))
    journal.unlink(missing_ok=True)


def _summary(folder: Path, recipe: Recipe) -> None:
    from onespike.cli.reported import FOLDER, reported
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
