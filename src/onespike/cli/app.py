"""Thin typer commands: each reads its options, calls the pipeline and shows the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onespike import pipeline
from onespike.adapters import ADAPTERS, load_model
from onespike.cli import show
from onespike.cli.progress import progress
from onespike.errors import UsageError, unknown
from onespike.files import write_atomically
from onespike.neurons import NEURONS
from onespike.recipe import PRESETS, preset
from onespike.tasks import batches
from onespike.theory import check_all
from onespike.verify import verify as verify_network

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    help="Convert pretrained PyTorch networks to single-timestep spiking networks.\n\n"
    "Start with: onespike demo",
)

Data = Annotated[str, typer.Option(help="Folder with one sub-folder a class, or bundled:cifar10-test.")]
Limit = Annotated[int | None, typer.Option(help="Use N images, evenly spaced over the sorted list.")]
BatchSize = Annotated[int, typer.Option(help="Images in one forward pass.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, …")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `onespike convert` wrote.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for figures and JSON.")] = Path("onespike-demo"),
) -> None:
    """Convert the bundled CIFAR-10 network and show accuracy, energy and figures.

    Example: onespike demo --out my-demo
    """
    from onespike.demo import run_demo

    pair, result, files = run_demo(out, progress)
    show.network(pair)
    show.sites(pair.snn, brief=True)
    show.line()
    show.evaluation(result, pair.loaded.published_top1)
    show.line()
    show.line(f"written to {out}: {', '.join(files)}")


@app.command()
def convert(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="timm:NAME, torchvision:NAME, transformers:ID-OR-DIR or bundled:NAME."
        ),
    ],
    calibrate: Annotated[
        str, typer.Option(help="Folder with unlabelled images, or bundled:cifar10-calibration.")
    ],
    out: Annotated[Path, typer.Option(help="The run directory to write; it must not exist.")],
    weights: Annotated[
        Path | None, typer.Option(help="A local checkpoint: .safetensors, .pth, .pt or .bin.")
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
        str, typer.Option("--preset", help="Where the recipe starts: see `onespike list presets`.")
    ] = "sformer",
    neuron: Annotated[str | None, typer.Option(help="See `onespike list neurons`.")] = None,
    scale: Annotated[float | None, typer.Option(help="λ in (0, 1].")] = None,
    percentile: Annotated[
        float | None, typer.Option(help="Thresholds stand at the top p % of the activations.")
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(help="M of eq. 12, or linear:8, exponential:8, density:8, mixed:64+8, 1,2,4."),
    ] = None,
    rounding: Annotated[str | None, typer.Option(help="paper or nearest.")] = None,
    domain: Annotated[
        str | None, typer.Option(help="all or sided: which activations the percentile is taken over.")
    ] = None,
    softmax: Annotated[str | None, typer.Option(help="site, model, head, or the threshold itself.")] = None,
    granularity: Annotated[str | None, typer.Option(help="site or channel.")] = None,
    io: Annotated[
        str | None, typer.Option(help="analog or spiking: the network's input and its output layer's input.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(help="Only sites that match this glob spike; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Sites that match this glob stay analog; may be repeated.")
    ] = None,
    attention: Annotated[str | None, typer.Option(help="sdpa or eager.")] = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
) -> None:
    """Calibrate a network on unlabelled images and write a run directory.

    Examples:

      onespike convert bundled:cifar10-vit --calibrate bundled:cifar10-calibration --out run

      onespike convert timm:vit_base_patch16_224 --pretrained --calibrate imagenet/train --limit 64 --out run
    """
    given = {
        "neuron": neuron, "scale": scale, "percentile": percentile, "levels": levels, "rounding": rounding,
        "domain": domain, "softmax": _softmax(softmax), "granularity": granularity, "io": io,
        "include": tuple(include) if include else None, "exclude": tuple(exclude) if exclude else None,
    }  # fmt: skip
    recipe = preset(preset_name, **{k: v for k, v in given.items() if v is not None})
    if reference_weights and weights is None:
        raise UsageError("--reference-weights needs a checkpoint to refer to. Give it with --weights FILE.")
    if out.exists():
        raise UsageError(f"{out} exists. Choose another --out or remove it.")
    pipeline.check_device(device)
    items = pipeline.choose(calibrate, limit)
    loaded = load_model(
        model, weights=weights, pretrained=pretrained, random_weights=random_weights, attention=attention
    )
    pair = pipeline.convert_network(
        loaded, items, recipe, batch_size=batch_size, device=device, progress=progress
    )
    pipeline.save_run(out, pair, reference_weights=weights if reference_weights else None)
    show.network(pair)
    show.sites(pair.snn, brief=True)
    show.line(f"calibrated on  {len(items)} images of {items.source}")
    show.line(f"written to     {out}")


def _softmax(value: str | None) -> str | float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return value


@app.command()
def evaluate(
    run: RunFolder,
    data: Data,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    json_file: Json = None,
) -> None:
    """Measure the original and the spiking network side by side, with the energy ledger.

    Example: onespike evaluate run --data imagenet/val --limit 1000 --json result.json
    """
    pair = pipeline.load_run(run, device=device)
    items = pipeline.choose(data, limit)
    seen = pipeline.overlap(pair, items)
    if seen:
        show.line(f"note: {len(seen)} of these images were used for calibration, first {seen[0]}")
    result = pipeline.evaluate_pair(pair, items, batch_size=batch_size, progress=progress)
    if json_file is not None:
        write_atomically(json_file, json.dumps(result.to_dict(), indent=1) + "\n")
    show.network(pair)
    show.sites(pair.snn, brief=True)
    show.line()
    show.evaluation(result, pair.loaded.published_top1)


@app.command()
def inspect(run: RunFolder) -> None:
    """Show a run: its recipe, where its thresholds come from, and the table of sites.

    Example: onespike inspect run
    """
    pair = pipeline.load_run(run)
    show.network(pair)
    settings = ((k, v) for k, v in pair.recipe.to_dict().items() if k != "version")
    show.line("recipe         " + ", ".join(f"{k}={v}" for k, v in settings))
    show.line(f"calibrated on  {pair.thresholds.provenance['samples']} images of {pair.data['source']}")
    show.line(f"thresholds     {pair.thresholds.provenance['observer']}")
    show.sites(pair.snn)


@app.command()
def verify(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Also check that every neuron of this run takes part."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Images for that check.")] = None,
    trials: Annotated[int, typer.Option(help="Random cases for each claim.")] = 200,
    seed: Annotated[int, typer.Option(help="Where the random cases start.")] = 0,
) -> None:
    """Check eq. 5, Theorems 1 to 3 and the fire function in exact arithmetic; fail if one does not hold.

    Examples:

      onespike verify --trials 1000

      onespike verify run --data imagenet/val
    """
    if trials < 1:
        raise UsageError(f"trials must be at least 1, not {trials}. Try 200.")
    rows = check_all(trials, seed)
    show.theorems(rows)
    failed = not all(row.holds for row in rows)
    if run is not None:
        if data is None:
            raise UsageError("verify: a run is checked with images. Give a folder with --data DIR.")
        pair = pipeline.load_run(run)
        items = pipeline.choose(data, 8)
        inputs, _ = next(iter(batches(items, pair.loaded.transform, 8)))
        found = verify_network(pair.snn, inputs)
        show.line(str(found))
        failed |= not found.ok
    if failed:
        raise typer.Exit(1)


@app.command("list")
def list_names(
    what: Annotated[str, typer.Argument(metavar="models|neurons|presets")],
    contains: Annotated[str, typer.Argument(help="Show only names that contain this.")] = "",
) -> None:
    """List what there is: models, neurons or presets.

    Example: onespike list models vit_tiny
    """
    if what == "models":
        for kind, adapter in ADAPTERS.items():
            names = [f"{kind}:{name}" for name in adapter.names()] or [f"{kind}:ID-OR-DIR"]
            for name in names:
                if contains in name:
                    show.line(name)
    elif what == "neurons":
        for name, neuron in NEURONS.items():
            if contains in name:
                show.line(f"{name:<10} {(neuron.__doc__ or '').strip().splitlines()[0]}")
    elif what == "presets":
        for name in PRESETS:
            if contains in name:
                show.line(f"{name:<10} {preset(name)}")
    else:
        raise unknown("list", what, ("models", "neurons", "presets"))
