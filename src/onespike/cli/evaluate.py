"""`onespike evaluate`: both networks of a run, side by side."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from onespike.cli import output
from onespike.cli.commands import Next, command, processes_of
from onespike.cli.options import Word, words
from onespike.cli.progress import progress
from onespike.errors import UsageError
from onespike.runtime.atomic import write_atomically


@command(
    "onespike evaluate run --data imagenet/val --limit 1000 --json result.json",
    "onespike evaluate run --data coco/val2017 \\\n    --annotations coco/annotations/instances_val2017.json --picture both.png",
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
    data: str | None = None,
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
    tasks: str | None = None,
    repeat: int | None = None,
    seed: int | None = None,
    profile: str | None = None,
    picture: Path | None = None,
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
    from onespike.runs.searching import measurable, searched
    from onespike.runtime.devices import in_blocks
    from onespike.tasks import check

    if tasks is not None:
        folder = None if data is None else Path(data)
        return _asked(run, tasks, device, json_file, folder=folder, limit=limit, batch_size=batch_size)
    if data is None:
        raise UsageError("evaluate: there is nothing to measure on. Give --data DIR, or --tasks NAMES.")
    if format is not None:
        names = None if format == "all" else format.split(",")
        pair = runs.load(run)
        items = runs.choose_labeled(pair.loaded, data, annotations, limit)
        forms = benchmark_pair(pair, items, forms=names, batch_size=batch_size, progress=progress)
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
    drawn = repeat is not None or seed is not None
    if drawn and processes_of().count > 1:
        raise UsageError("--repeat calibrates in one process. Leave torchrun out.")
    pair = runs.load(run, device=device, device_map=device_map)
    task = pair.loaded.task
    items = measurable(run, pair, data, annotations, limit, held_out=held_out)
    metric = pair.loaded.task.metric(items)
    if picture is not None:
        check(task, "picture")
    search = {"sha256": searched(run).get("used", ())}
    for purpose, used in (("calibration", pair.data), ("the search", search)):
        if seen := runs.overlap(used, items):
            output.line(f"note: {len(seen)} of these {task.unit} were used for {purpose}, first {seen[0]}")
    if (cost := runs.estimate_of(pair.ann, runs.Inputs(items, pair.loaded), batch_size)) is not None:
        output.line(f"blocks         {cost}")
    if integer:
        output.line(f"integer        {optimize_(pair.snn)}")
    each: Any = {"batch_size": batch_size, "progress": progress}
    result = runs.evaluate_pair(pair, items, metric=metric, processes=processes_of(), **each)
    more: dict[str, Any] = {}
    if compare:
        more["compared"] = compare_pair(pair, items, result, **each)
    if drawn:
        finish = optimize_ if integer else lambda snn: None
        count = 1 if repeat is None else repeat
        more["calibrations"] = runs.evaluate_again(pair, items, count, seed or 0, finish=finish, **each)
    try:  # first, since nobody may be there to read the output
        if processes_of().is_main:
            output.figures(json_file, result.to_dict() | more)
            if picture is not None:
                write_atomically(picture, task.picture(items, metric))
    finally:  # and print it in any case: a disk may be full by now
        show.evaluated(pair, result)
        if drawn:
            show.again(more["calibrations"], task.unit)
        if compare:
            show.compared(more["compared"], result.prices.name)
        if sites:
            show.ledger(result)
    if picture is not None:
        output.line(f"picture        {picture}")
    return "report", run, *words(data=data, annotations=annotations, limit=limit)


def _asked(run: Path, names: str, device: str, json_file: Path | None, **questions: Any) -> Next:
    """Measure both networks on questions instead of inputs."""
    from onespike import runs
    from onespike.adapters.harness import harness
    from onespike.cli import show
    from onespike.energy.columns import beside
    from onespike.energy.metering import metered
    from onespike.runtime.options import names as split
    from onespike.tasks import check

    pair = runs.load(run, device=device)
    check(pair.loaded.task, "tasks")
    with metered(pair.snn) as ledger:
        rows = harness(pair.loaded, {"ann": pair.ann, "snn": pair.snn}, list(split(names)), **questions)
    column = pair.recipe.energy
    ratio = ledger.ratio(column)
    output.figures(json_file, {"tasks": [dataclasses.asdict(row) for row in rows], "energy": {column: ratio}})
    show.network(pair)
    cells = []
    for row in rows:
        difference = f"{row.difference:+.4f}" + ("" if row.error is None else f" ± {row.error:.4f}")
        scores = f"{row.ann:.4f}", f"{row.snn:.4f}", difference, str(row.questions)
        cells.append((row.task, row.metric, *scores))
    output.rows(("task", "metric", "original", "spiking", "difference", "questions"), cells, left=(0, 1))
    output.line(f"energy         {beside(column, ratio, ledger.analog_share)} ({column}), over all questions")
    return "report", run
