"""Thin typer commands: each reads its options, calls the pipeline and shows the result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from onespike import pipeline
from onespike.adapters import ADAPTERS, load_model, renormalised
from onespike.cli import ablate as ablate  # registers its command, as the next ones do
from onespike.cli import doctor as doctor
from onespike.cli import report as report
from onespike.cli import reproduce as reproduce
from onespike.cli import search as search
from onespike.cli import show
from onespike.cli.commands import app as app
from onespike.cli.commands import command, processes_of
from onespike.cli.options import (
    Annotations,
    BatchSize,
    Data,
    Device,
    DeviceMap,
    Json,
    Limit,
    Mean,
    RunFolder,
    Std,
    numbers,
)
from onespike.cli.progress import progress
from onespike.errors import LoadError, UsageError, unknown
from onespike.files import write_atomically
from onespike.integer import optimize_
from onespike.neurons import NEURONS
from onespike.passes import PASSES, parse_passes
from onespike.recipe import PRESETS, preset
from onespike.theory import check_all
from onespike.tune import searched


@command("onespike demo --out my-demo", "onespike demo --task segmentation")
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for figures and JSON.")] = Path(
        "onespike-demo"
    ),
    task: Annotated[
        str, typer.Option(metavar="KIND", help="classification or segmentation.")
    ] = "classification",
) -> None:
    """Convert a bundled network and measure it.

    The network is a small vision transformer for CIFAR-10, or a small detector of clothes in composed scenes. Its
    accuracy and energy are printed, and figures and JSON written into a folder.
    """
    from onespike.demo import DEMOS

    if task not in DEMOS:
        raise unknown("demo", task, DEMOS)
    pair, result, files = DEMOS[task](out, progress)
    show.network(pair)
    show.sites(pair.snn, brief=True)
    show.line()
    show.evaluation(result, pair.loaded.published_top1)
    show.line()
    show.line(f"written to {out}: {', '.join(files)}")


@command(
    "onespike convert bundled:cifar10-vit \\\n    --calibrate bundled:cifar10-calibration --out run",
    "onespike convert timm:vit_base_patch16_224 --pretrained \\\n    --calibrate imagenet/train --limit 64 --out run",
    shared=True,
)
def convert(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="timm:NAME, torchvision:NAME, transformers:ID-OR-DIR, detectron2:CONFIG or bundled:NAME.",
        ),
    ],
    calibrate: Annotated[
        str, typer.Option(metavar="DIR", help="Folder with images, or bundled:cifar10-calibration.")
    ],
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run directory to write; it must not exist.")],
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A local checkpoint: .safetensors, .pth, .pt or .bin.")
    ] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Fetch the published weights.")] = False,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Convert an untrained network.")
    ] = False,
    reference_weights: Annotated[
        bool,
        typer.Option(
            "--reference-weights", help="Store the path and SHA-256 of --weights instead of a copy."
        ),
    ] = False,
    preset_name: Annotated[
        str,
        typer.Option(
            "--preset", metavar="NAME", help="Where the recipe starts: see `onespike list presets`."
        ),
    ] = "sformer",
    neuron: Annotated[str | None, typer.Option(metavar="NAME", help="See `onespike list neurons`.")] = None,
    scale: Annotated[float | None, typer.Option(metavar="λ", help="The scale of eq. 8, in (0, 1].")] = None,
    percentile: Annotated[
        float | None, typer.Option(metavar="P", help="Thresholds stand at the top p % of the activations.")
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="M", help="M of eq. 12, or linear:8, exponential:8, density:8, bits:8, mixed:64+8, 1,2,4."
        ),
    ] = None,
    rounding: Annotated[str | None, typer.Option(metavar="KIND", help="paper or nearest.")] = None,
    domain: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="all or sided: which activations the percentile is taken over."),
    ] = None,
    softmax: Annotated[
        str | None, typer.Option(metavar="KIND", help="site, model, head, or the threshold itself.")
    ] = None,
    granularity: Annotated[str | None, typer.Option(metavar="KIND", help="site or channel.")] = None,
    io: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="analog or spiking: the network's input and its output layer's input."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="T", help="Timesteps; above 1 the neurons keep membranes.")
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="synapse, or activation: neurons in place of ReLUs."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only sites that match this glob spike; may be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Sites that match this glob stay analog; may be repeated."),
    ] = None,
    attention: Annotated[str | None, typer.Option(metavar="KIND", help="sdpa or eager.")] = None,
    passes: Annotated[
        str | None, typer.Option(metavar="NAMES", help="nearest,center,…: see `onespike list passes`.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="RATIO", help="The energy ratio that the passes meet.")
    ] = None,
    energy: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The ratio meant: counts, nonzero or binary.")
    ] = None,
    scope: Annotated[
        str,
        typer.Option(metavar="KIND", help="all, or backbone: what a detector has beyond it stays analog."),
    ] = "all",
    mean: Mean = None,
    std: Std = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    device_map: DeviceMap = None,
) -> None:
    """Convert a network and write a run directory.

    Thresholds are calibrated on unlabelled images. The weights come from --weights or --pretrained; bundled
    networks have theirs.
    """
    given = {
        "neuron": neuron, "scale": scale, "percentile": percentile, "levels": levels, "rounding": rounding,
        "domain": domain, "softmax": _softmax(softmax), "granularity": granularity, "io": io,
        "steps": steps, "placement": placement,
        "include": tuple(include) if include else None, "exclude": tuple(exclude) if exclude else None,
        "passes": None if passes is None else parse_passes(passes), "budget": budget, "energy": energy,
    }  # fmt: skip
    recipe = preset(preset_name, **{k: v for k, v in given.items() if v is not None})
    if reference_weights and weights is None:
        raise UsageError("--reference-weights needs a checkpoint to refer to. Give it with --weights FILE.")
    if out.exists():
        raise UsageError(f"{out} exists. Choose another --out or remove it.")
    pipeline.check_device(device)
    _refuse_both(device_map)
    items = pipeline.choose(calibrate, limit)
    loaded = load_model(
        model, weights=weights, pretrained=pretrained, random_weights=random_weights, attention=attention
    )
    if mean is not None or std is not None:
        loaded = renormalised(loaded, numbers("mean", mean), numbers("std", std))
    work = out.with_name(f".{out.name}.passes")  # an interrupted tuning goes on from here
    recipe = pipeline.in_scope(recipe, loaded, scope)
    pair = pipeline.convert_network(
        loaded,
        items,
        recipe,
        batch_size=batch_size,
        device=device,
        device_map=device_map,
        progress=progress,
        processes=processes_of(),
        work=work,
    )
    if processes_of().first:
        pipeline.save_run(out, pair, reference_weights=weights if reference_weights else None)
        shutil.rmtree(work, ignore_errors=True)
    show.network(pair)
    show.sites(pair.snn, brief=True)
    show.line(f"calibrated on  {len(items)} images of {items.source}")
    show.line(f"written to     {out}")


def _refuse_both(device_map: str | None) -> None:
    """A device map spreads one network over the devices that several processes would share out among them."""
    if device_map is not None and processes_of().count > 1:
        raise UsageError("--device-map needs the devices of all processes. Start one process only.")


def _softmax(value: str | None) -> str | float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return value


@command(
    "onespike evaluate run --data imagenet/val --limit 1000 --json result.json",
    "onespike evaluate run --data coco/val2017 \\\n    --annotations coco/annotations/instances_val2017.json --picture both.png",
    shared=True,
)
def evaluate(
    run: RunFolder,
    data: Data,
    annotations: Annotations = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    device_map: DeviceMap = None,
    sites: Annotated[bool, typer.Option("--sites", help="Also show the ledger of each site.")] = False,
    integer: Annotated[
        bool, typer.Option("--integer", help="Weights as 8-bit integers, multiplied with integer spikes.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw what both detectors find on the first images.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Measure a run on labelled images.

    The original and the spiking network see the same images in one pass: accuracy, agreement, KL divergence and
    the energy ledger. Without labels (no sub-folders) there is no accuracy. Detectors are scored by COCO's AP.
    """
    _refuse_both(device_map)
    pair = pipeline.load_run(run, device=device, device_map=device_map)
    items, coco = pipeline.choose_labelled(pair.loaded, data, annotations, limit)
    metric = pipeline.metric_for(pair, items, coco)
    if picture is not None and coco is None:
        raise UsageError("--picture draws boxes, and this network classifies. Leave it out.")
    for purpose, used in (("calibration", pair.data), ("the search", searched(run))):
        seen = pipeline.overlap(used, items)
        if seen:
            show.line(f"note: {len(seen)} of these images were used for {purpose}, first {seen[0]}")
    if integer:
        show.line(f"integer        {optimize_(pair.snn)}")
    result = pipeline.evaluate_pair(
        pair, items, metric=metric, batch_size=batch_size, progress=progress, processes=processes_of()
    )
    show.network(pair)
    show.sites(pair.snn, brief=True)
    show.line()
    show.evaluation(result, pair.loaded.published_top1)
    if sites:
        show.line()
        show.ledger(result)
    if picture is not None and processes_of().first:
        write_atomically(picture, pipeline.picture(items, metric))
        show.line(f"picture        {picture}")
    if json_file is not None and processes_of().first:
        write_atomically(json_file, json.dumps(result.to_dict(), indent=1) + "\n")


@command("onespike inspect run")
def inspect(run: RunFolder) -> None:
    """Show a run and the table of its sites.

    That is its recipe, where its thresholds come from, what spikes, and what stays analog and why.
    """
    pair = pipeline.load_run(run)
    show.network(pair)
    settings = ((k, v) for k, v in pair.recipe.to_dict().items() if k != "version")
    show.line("recipe         " + ", ".join(f"{k}={v}" for k, v in settings))
    show.line(f"calibrated on  {pair.thresholds.provenance['samples']} images of {pair.data['source']}")
    show.line(f"thresholds     {pair.thresholds.provenance['observer']}")
    show.sites(pair.snn)


@command("onespike verify --trials 1000", "onespike verify run --data imagenet/val")
def verify(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Also check that every neuron of this run takes part."),
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Images for that check.")] = None,
    trials: Annotated[int, typer.Option(metavar="N", help="Random cases for each claim.")] = 200,
    seed: Annotated[int, typer.Option(metavar="N", help="Where the random cases start.")] = 0,
) -> None:
    """Check the theorems, and the neurons of a run.

    Equation 5, Theorems 1 to 3 and the fire function are tried on random cases in exact arithmetic; the exit code
    is 1 if one does not hold.
    """
    if trials < 1:
        raise UsageError(f"trials must be at least 1, not {trials}. Try 200.")
    if (run is None) != (data is None):
        raise UsageError("a run is checked with images. Give both: onespike verify RUN --data DIR.")
    found = pipeline.verify_run(run, data) if run and data else None
    rows = check_all(trials, seed)
    show.theorems(rows)
    if found:
        show.line()
        show.line(str(found))
    if not all(row.holds for row in rows) or (found and not found.ok):
        raise typer.Exit(1)


@command("onespike list models vit_tiny", name="list")
def list_names(
    what: Annotated[str, typer.Argument(metavar="models|neurons|passes|presets")],
    contains: Annotated[str, typer.Argument(metavar="TEXT", help="Show only names that contain this.")] = "",
) -> None:
    """List models, neurons, passes or presets."""
    if what not in LISTS:
        raise unknown("list", what, LISTS)
    for name, about in LISTS[what]():
        if contains in name:
            show.line(f"{name:<10} {about}".rstrip())


def _models() -> Iterator[tuple[str, str]]:
    for kind, adapter in ADAPTERS.items():
        try:
            names = adapter.names() or ("ID-OR-DIR",)
        except LoadError as error:  # a library that is not installed
            typer.echo(f"note: {error}", err=True)
            continue
        yield from ((f"{kind}:{name}", "") for name in names)


def _neurons() -> Iterator[tuple[str, str]]:
    return ((name, (neuron.__doc__ or "").strip().splitlines()[0]) for name, neuron in NEURONS.items())


def _passes() -> Iterator[tuple[str, str]]:
    return ((name, (function.__doc__ or "").strip().splitlines()[0]) for name, function in PASSES.items())


def _presets() -> Iterator[tuple[str, str]]:
    return ((name, str(preset(name))) for name in PRESETS)


LISTS = {"models": _models, "neurons": _neurons, "passes": _passes, "presets": _presets}
