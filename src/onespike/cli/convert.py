"""`onespike convert`: a network becomes a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import WARNING, output, say
from onespike.cli.commands import Next, command, processes_of
from onespike.cli.options import NEW_RUN, RECIPE, Word, held_out, load_network
from onespike.errors import UsageError, unknown
from onespike.recipe import Recipe

if TYPE_CHECKING:
    from onespike.adapters import LoadedModel
    from onespike.runs import NetworkPair
    from onespike.tasks import Items

PREPROCESS = {"resize": "256", "crop": "224", "mean": "0.5,0.5,0.5", "std": "0.5,0.5,0.5"}
"""What --preprocess takes, each with an example."""


@command(
    "onespike convert bundled:cifar10-vit \\\n    --calibrate bundled:cifar10-calibration --out run",
    "onespike convert timm:vit_base_patch16_224 --weights pretrained \\\n    --calibrate imagenet/train --limit 512 --max-drop 1% --out run",
    "onespike convert bundled:cifar10-vit --preset sformer --set percentile=2 \\\n    --calibrate bundled:cifar10-calibration --out run",
    "onespike convert transformers:SmolLM2-135M --weights pretrained \\\n    --calibrate text.txt --length 512 --limit 32 --out run",
    shared=True,
    out=NEW_RUN,
    data=Word("DIR", "Labeled images that judge --max-drop by accuracy.", RECIPE),
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
    options |= {"progress": output.progress, "processes": processes, "work": work}
    options |= {"told": lambda estimate: output.line(f"blocks         {estimate}")}
    pair = runs.convert_network(loaded, items, recipe, **options)
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
