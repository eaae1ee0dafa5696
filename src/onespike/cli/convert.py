"""`onespike convert`: a network becomes a run."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command, processes_of, refuse_several
from onespike.cli.options import (
    NEW_FOLDER,
    BatchSize,
    Device,
    DeviceMap,
    Length,
    Limit,
    Mean,
    Model,
    Pretrained,
    RandomWeights,
    Std,
    Weights,
    held_out,
    numbers,
)
from onespike.cli.progress import progress
from onespike.cli.recipe_options import recipe_options
from onespike.errors import OnespikeWarning, UsageError
from onespike.recipe import PASS, Recipe


@command(
    "onespike convert bundled:cifar10-vit \\\n    --calibrate bundled:cifar10-calibration --out run",
    "onespike convert timm:vit_base_patch16_224 --pretrained \\\n    --calibrate imagenet/train --limit 512 --max-drop 1% --out run",
    "onespike convert bundled:cifar10-vit --preset sformer \\\n    --calibrate bundled:cifar10-calibration --out run",
    "onespike convert transformers:SmolLM2-135M --pretrained \\\n    --calibrate text.txt --length 512 --limit 32 --out run",
    shared=True,
)
@recipe_options
def convert(
    model: Model,
    calibrate: Annotated[
        str,
        typer.Option(metavar="DIR", help="Folder with images, bundled:cifar10-calibration, or a text file."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="RUN", help="The run directory to write; it must not exist.", callback=NEW_FOLDER
        ),
    ],
    recipe: Recipe,
    weights: Weights = None,
    pretrained: Pretrained = False,
    random_weights: RandomWeights = False,
    reference_weights: Annotated[
        bool,
        typer.Option(
            "--reference-weights", help="Store the path and SHA-256 of --weights instead of a copy."
        ),
    ] = False,
    attention: Annotated[str | None, typer.Option(metavar="KIND", help="sdpa or eager.")] = None,
    scope: Annotated[
        str,
        typer.Option(metavar="KIND", help="all, or backbone: the rest of a detector stays analog."),
    ] = "all",
    validate: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Labeled images that judge --max-drop by accuracy.", rich_help_panel=PASS
        ),
    ] = None,
    resize: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Resize the shorter side of images to N pixels, not to the library's size."
        ),
    ] = None,
    crop: Annotated[int | None, typer.Option(metavar="N", help="Then crop the middle N pixels.")] = None,
    mean: Mean = None,
    std: Std = None,
    length: Length = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    device_map: DeviceMap = None,
) -> Next:
    """Convert a network and write a run directory.

    Thresholds are calibrated on unlabeled images or text, and improved by passes within an energy budget: by default
    --preset fast, a binary ratio of 0.2 of all MACs of the original. --max-drop 1% finds the least energy instead. --preset sformer is the paper's
    method. The weights come from --weights or --pretrained; bundled networks include theirs.
    """
    from onespike import runs
    from onespike.adapters import load_model, renormalized, resized
    from onespike.passes import check_recipe
    from onespike.runtime.devices import check_device, in_blocks
    from onespike.tasks import check

    recipe = recipe.replace(passes=check_recipe(recipe))
    if validate is not None and recipe.max_drop is None:
        raise UsageError("--validate judges --max-drop, and there is none. Give for example --max-drop 1%.")
    if reference_weights and weights is None:
        raise UsageError("--reference-weights needs a checkpoint to refer to. Give it with --weights FILE.")
    check_device(device)
    refuse_several(device_map)
    loaded = load_model(
        model, weights=weights, pretrained=pretrained, random_weights=random_weights, attention=attention,
        on_disk=in_blocks(device_map),
    )  # fmt: skip
    if length is not None:
        loaded = loaded.with_length(length)
    items = runs.choose(calibrate, limit, loaded.task)
    if resize is not None or crop is not None:
        check(loaded.task, "normalization")
        loaded = resized(loaded, resize, crop)
    elif loaded.reading.doubt:
        warnings.warn(
            f"{model}: its published weights want different preprocessing ({loaded.reading.doubt}), and a file does not say "
            f"which; this run takes {loaded.reading.preprocessing}. Give --resize and --crop.",
            OnespikeWarning,
            stacklevel=1,
        )
    if mean is not None or std is not None:
        check(loaded.task, "normalization")
        loaded = renormalized(loaded, numbers("mean", mean), numbers("std", std))
    work = out.with_name(f".{out.name}.passes")  # an interrupted tuning resumes here
    recipe = runs.in_scope(recipe, loaded, scope)
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
        validation=None if validate is None else runs.choose_labeled(loaded, validate),
        told=lambda estimate: output.line(f"blocks         {estimate}"),
    )
    if processes_of().is_main:
        runs.save_run(out, pair, reference_weights=weights if reference_weights else None)
        shutil.rmtree(work, ignore_errors=True)
    output.network(pair)
    output.sites(pair.snn, brief=True)
    output.line(f"calibrated on  {len(items)} {loaded.task.unit} of {items.source}")
    output.spent(pair)
    output.line(f"written to     {out}")
    images = held_out(calibrate)
    return ("inspect", out) if images is None else ("evaluate", out, "--data", images)
