"""`onespike convert`: a network becomes a run."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from onespike.cli import output
from onespike.cli.commands import Next, command, processes_of, refuse_several
from onespike.cli.options import NEW_RUN, RECIPE, Word, held_out, load_network
from onespike.cli.progress import progress
from onespike.errors import OnespikeWarning, UsageError, unknown
from onespike.recipe import Recipe

if TYPE_CHECKING:
    from onespike.adapters import LoadedModel
    from onespike.runs import NetworkPair

PREPROCESS = ("resize", "crop", "mean", "std")


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
    reference_weights: bool = False,
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
    --preset fast, a binary ratio of 0.2 of all MACs of the original. --max-drop 1% finds the least energy instead. --preset sformer is the paper's
    method. Bundled networks include their weights; others need --weights.
    """
    from onespike import runs
    from onespike.runtime.devices import check_device, in_blocks

    if data is not None and recipe.max_drop is None:
        raise UsageError("--data judges --max-drop, and there is none. Give for example --max-drop 1%.")
    if reference_weights and weights in (None, "pretrained", "random"):
        raise UsageError("--reference-weights needs a checkpoint to refer to. Give it with --weights FILE.")
    check_device(device)
    refuse_several(device_map)
    loaded = load_network(model, weights, length, attention=attention, on_disk=in_blocks(device_map))
    items = runs.choose(calibrate, limit, loaded.task)
    loaded = _preprocessed(loaded, preprocess or [])
    work = out.with_name(f".{out.name}.passes")  # an interrupted tuning resumes here
    pair = runs.convert_network(
        loaded,
        items,
        recipe,
        batch_size=batch_size,
        device=device,
        device_map=device_map,
        progress=progress,
        processes=processes_of(),
        work=work,
        validation=None if data is None else runs.choose_labeled(loaded, data),
        told=lambda estimate: output.line(f"blocks         {estimate}"),
    )
    if processes_of().is_main:
        runs.save(out, pair, reference_weights=Path(str(weights)) if reference_weights else None)
        shutil.rmtree(work, ignore_errors=True)
    converted(pair, out)
    images = held_out(calibrate)
    return ("inspect", out) if images is None else ("evaluate", out, "--data", images)


def converted(pair: NetworkPair, out: Path) -> None:
    """Print what was converted, and what it spends."""
    output.network(pair)
    output.sites(pair.snn, brief=True)
    output.line(f"calibrated on  {len(pair.data['names'])} {pair.loaded.task.unit} of {pair.data['source']}")
    output.spent(pair)
    output.line(f"written to     {out}")


def _preprocessed(loaded: LoadedModel, preprocess: list[str]) -> LoadedModel:
    """Return the network with other preprocessing; warn where its weights do not say which they need."""
    from onespike.adapters import renormalized, resized
    from onespike.tasks import check

    stated = dict[str, str]()
    for word in preprocess:
        name, _, value = word.partition("=")
        if name not in PREPROCESS:
            raise unknown("preprocessing", name, PREPROCESS)
        stated[name] = value
    if stated:
        check(loaded.task, "normalization")
    if "resize" in stated or "crop" in stated:
        sides = (_numbers(name, stated.get(name), 1) for name in ("resize", "crop"))
        loaded = resized(loaded, *(None if side is None else int(side[0]) for side in sides))
    elif loaded.reading.doubt:
        warnings.warn(
            f"{loaded.spec}: its published weights want different preprocessing ({loaded.reading.doubt}), and a file does not say "
            f"which; this run takes {loaded.reading.preprocessing}. Give --preprocess resize=N --preprocess crop=N.",
            OnespikeWarning,
            stacklevel=1,
        )
    if "mean" in stated or "std" in stated:
        mean, std = (_numbers(name, stated.get(name, ""), 3) or () for name in ("mean", "std"))
        loaded = renormalized(loaded, mean, std)
    return loaded


def _numbers(name: str, text: str | None, count: int) -> tuple[float, ...] | None:
    """Parse `0.5,0.5,0.5`; mean and deviation are given together."""
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        example = "Give both: mean=0.5,0.5,0.5 and std=0.5,0.5,0.5" if count > 1 else f"Give {name}=224"
        raise UsageError(f"--preprocess {name} takes numbers, not {text!r}. {example}.") from None
