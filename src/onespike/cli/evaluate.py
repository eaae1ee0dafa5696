"""`onespike evaluate`: both networks of a run, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onespike.cli import output
from onespike.cli.commands import Next, command, processes_of
from onespike.cli.options import Word, words
from onespike.errors import UsageError


@command(
    "onespike evaluate run --data imagenet/val --limit 1000 --json result.json",
    "onespike evaluate run --data coco/val2017 \\\n    --annotations coco/annotations/instances_val2017.json",
    "onespike evaluate run --data text.txt --limit 32 --batch-size 4",
    "onespike evaluate run --data imagenet/val --format eager,onnx-integer",
    shared=True,
    format=Word(
        "A,B", "Instead, forms by score, time and size: all, original, eager, compiled, integer, onnx, …"
    ),
)
def evaluate(
    run: Path,
    *,
    data: str,
    annotations: Path | None = None,
    limit: int | None = None,
    held_out: bool = False,
    batch_size: int = 16,
    device: str = "cpu",
    device_map: str | None = None,
    sites: bool = False,
    integer: bool = False,
    compare: bool = False,
    format: str | None = None,
    profile: str | None = None,
    json_file: Path | None = None,
) -> Next:
    """Measure a run on labeled images, or on text.

    The original and the spiking network see the same inputs in one pass: accuracy or perplexity, agreement, KL
    divergence and the energy ledger. Without labels (no sub-folders) there is no accuracy.
    """
    from onespike import runs
    from onespike.cli import show
    from onespike.deploy.integer import optimize_
    from onespike.runs.forms import benchmark_pair, compare_pair
    from onespike.runs.searching import measurable, uses
    from onespike.runtime.devices import in_blocks

    if format is not None:
        names = None if format == "all" else format.split(",")
        pair = runs.load(run)
        items = runs.choose_labeled(pair.loaded, data, annotations, limit)
        forms = benchmark_pair(pair, items, forms=names, batch_size=batch_size, progress=output.progress)
        output.figures(json_file, [form.to_dict() for form in forms])
        show.forms(forms, min(batch_size, len(items)))
        return "export", run, "--format", "onnx", "--out", "network.onnx", "--data", data
    if in_blocks(device_map) and (integer or compare):
        raise UsageError(
            "--integer and --compare make integers of all weights in memory, and --device-map blocks keeps them on disk. "
            "Leave one of them out."
        )
    if compare and (integer or processes_of().count > 1):
        raise UsageError("--compare makes integer networks of its own, in one process. Leave --integer out.")
    pair = runs.load(run, device=device, device_map=device_map)
    task = pair.loaded.task
    items = measurable(run, pair, data, annotations, limit, held_out=held_out)
    metric = pair.loaded.task.metric(items)
    for purpose, used in uses(run, pair).items():
        if seen := runs.overlap(used, items):
            output.line(f"note: {len(seen)} of these {task.unit} were used for {purpose}, first {seen[0]}")
    if (cost := runs.estimate_of(pair.ann, runs.Inputs(items, pair.loaded), batch_size)) is not None:
        output.line(f"blocks         {cost}")
    if integer:
        output.line(f"integer        {optimize_(pair.snn)}")
    each: Any = {"batch_size": batch_size, "progress": output.progress}
    result = runs.evaluate_pair(pair, items, metric=metric, processes=processes_of(), **each)
    compared = compare_pair(pair, items, result, **each) if compare else []
    try:  # first, since nobody may be there to read the output
        if processes_of().is_main:
            more = {"sites": result.ledger.table()} | ({"compared": compared} if compare else {})
            output.figures(json_file, result.to_dict() | more)
    finally:  # and print it in any case: a disk may be full by now
        show.network(pair)
        show.sites(pair.snn)
        output.line()
        show.measured(result.to_dict(), result.steps, pair.loaded.published_top1)
        if compare:
            show.compared(compared, result.prices.name)
        if sites:
            show.ledger(result)
    return "report", run, *words(data=data, annotations=annotations, limit=limit)
