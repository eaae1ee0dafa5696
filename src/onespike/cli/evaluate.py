"""`onespike evaluate`: both networks of a run, side by side."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command, processes_of, refuse_several
from onespike.cli.options import (
    FILE,
    Annotations,
    BatchSize,
    Device,
    DeviceMap,
    HeldOut,
    Json,
    Limit,
    MaybeData,
    Prices,
    Repeat,
    RunFolder,
    Seed,
    given,
)
from onespike.cli.progress import progress
from onespike.errors import UsageError
from onespike.runtime.atomic import write_atomically

if TYPE_CHECKING:
    from onespike.evaluation.side_by_side import Evaluation
    from onespike.runs import NetworkPair
    from onespike.tasks import Items


@command(
    "onespike evaluate run --data imagenet/val --limit 1000 --json result.json",
    "onespike evaluate run --data coco/val2017 \\\n    --annotations coco/annotations/instances_val2017.json --picture both.png",
    "onespike evaluate run --data text.txt --limit 32 --batch-size 4",
    shared=True,
)
def evaluate(
    run: RunFolder,
    data: MaybeData = None,
    annotations: Annotations = None,
    limit: Limit = None,
    held_out: HeldOut = False,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    device_map: DeviceMap = None,
    sites: Annotated[bool, typer.Option("--sites", help="Also show the ledger of each site.")] = False,
    integer: Annotated[
        bool, typer.Option("--integer", help="Weights as 8-bit integers, multiplied with integer spikes.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Also measure the network with 8-bit weights, and W8A8 and W4A4 quantization of the original.",
        ),
    ] = False,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Instead of --data: tasks of lm-evaluation-harness, such as piqa,arc_easy."
        ),
    ] = None,
    task_folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with your task files for --tasks.")
    ] = None,
    repeat: Repeat = None,
    seed: Seed = None,
    profile: Prices = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw both networks' answers on the first images.", callback=FILE),
    ] = None,
    json_file: Json = None,
) -> Next:
    """Measure a run on labeled images, or on text.

    The original and the spiking network see the same inputs in one pass: accuracy or perplexity, agreement, KL
    divergence and the energy ledger. Without labels (no sub-folders) there is no accuracy.
    """
    from onespike import runs
    from onespike.deploy.integer import optimize_
    from onespike.runs.search_run import measurable, searched
    from onespike.runtime.devices import in_blocks
    from onespike.tasks import check

    if tasks is not None:
        return _asked(run, tasks, task_folder, data, limit, batch_size, device, json_file)
    if data is None:
        raise UsageError("evaluate: there is nothing to measure on. Give --data DIR, or --tasks NAMES.")
    refuse_several(device_map)
    if in_blocks(device_map) and (integer or compare):
        raise UsageError(
            "--integer and --compare make integers of all weights in memory, and --device-map blocks keeps them on disk. "
            "Leave one of them out."
        )
    if compare and (integer or processes_of().count > 1):
        raise UsageError("--compare makes integer networks of its own, in one process. Leave --integer out.")
    drawn = repeat is not None or seed is not None
    if drawn and processes_of().count > 1:
        raise UsageError("--repeat calibrates in one process. Leave torchrun out.")
    pair = runs.load_run(run, device=device, device_map=device_map)
    task = pair.loaded.task
    items = measurable(run, pair, data, annotations, limit, held_out=held_out)
    metric = runs.metric_for(pair, items)
    if picture is not None:
        check(task, "picture")
    for purpose, used in (
        ("calibration", pair.data),
        ("the search", {"sha256": searched(run).get("used", ())}),
    ):
        seen = runs.overlap(used, items)
        if seen:
            output.line(f"note: {len(seen)} of these {task.unit} were used for {purpose}, first {seen[0]}")
    if (found := runs.estimate_of(pair.loaded, pair.ann, items, batch_size)) is not None:
        output.line(f"blocks         {found}")
    if integer:
        output.line(f"integer        {optimize_(pair.snn)}")
    result = runs.evaluate_pair(
        pair, items, metric=metric, batch_size=batch_size, progress=progress, processes=processes_of()
    )
    rows = _compared(pair, items, result, batch_size) if compare else []
    again = None
    if drawn:
        again = runs.evaluate_again(
            pair, items, repeat or 1, seed or 0, batch_size=batch_size, progress=progress,
            finish=optimize_ if integer else lambda snn: None,
        )  # fmt: skip
    try:  # first, since nobody may be there to read the output
        if processes_of().is_main:
            more = ({"compared": rows} if compare else {}) | (
                {} if again is None else {"calibrations": again}
            )
            output.figures(json_file, result.to_dict() | more)
        if picture is not None and processes_of().is_main:
            write_atomically(picture, task.picture(items, metric))
    finally:  # and print it in any case: a disk may be full by now
        output.network(pair)
        output.sites(pair.snn, brief=True)
        output.line()
        output.evaluation(result, pair.loaded.published_top1)
        if again is not None:
            output.again(again, task.unit)
        if compare:
            output.line()
            output.compared(rows, result.prices.name)
        if sites:
            output.line()
            output.ledger(result)
    if picture is not None:
        output.line(f"picture        {picture}")
    return "report", run, *given(data=data, annotations=annotations, limit=limit)


def _asked(
    run: Path,
    names: str,
    folder: Path | None,
    data: str | None,
    limit: int | None,
    batch_size: int,
    device: str,
    json_file: Path | None,
) -> Next:
    """Measure both networks on questions instead of inputs."""
    from onespike import runs
    from onespike.adapters.harness import harness
    from onespike.energy.columns import beside
    from onespike.energy.metering import metered
    from onespike.tasks import check

    if data is not None:
        raise UsageError("--data and --tasks both say what to measure on. Give one of them.")
    pair = runs.load_run(run, device=device)
    check(pair.loaded.task, "tasks")
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    with metered(pair.snn) as ledger:
        rows = harness(
            pair.loaded, {"ann": pair.ann, "snn": pair.snn}, wanted, folder=folder, limit=limit, batch_size=batch_size
        )  # fmt: skip
    ratio = ledger.ratio(pair.recipe.energy)
    asked = [dataclasses.asdict(row) for row in rows]
    output.figures(json_file, {"tasks": asked, "energy": {pair.recipe.energy: ratio}})
    output.network(pair)
    output.rows(
        ("task", "metric", "original", "spiking", "difference", "questions"),
        [
            (
                row.task, row.metric, f"{row.ann:.4f}", f"{row.snn:.4f}",
                f"{row.difference:+.4f}" + ("" if row.error is None else f" ± {row.error:.4f}"), str(row.questions),
            )
            for row in rows
        ],
        left=2,
    )  # fmt: skip
    column = pair.recipe.energy
    output.line(f"energy         {beside(column, ratio, ledger.analog_share)} ({column}), over all questions")
    return "report", run


def _compared(pair: NetworkPair, items: Items, result: Evaluation, batch_size: int) -> list[dict[str, Any]]:
    from onespike.runs.comparison import compare_pair
    from onespike.studies.ablate import calibration_images

    calibration = calibration_images(pair)
    return compare_pair(pair, items, calibration, result, batch_size=batch_size, progress=progress)
