"""`onespike evaluate`: both networks of a run, side by side."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.cli import output
from onespike.cli.commands import Next, command, processes_of, refuse_several
from onespike.cli.options import Word, words
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
    from onespike.deploy.integer import optimize_
    from onespike.runs.searching import measurable, searched
    from onespike.runtime.devices import in_blocks
    from onespike.tasks import check

    if tasks is not None:
        return _asked(run, tasks, data, limit, batch_size, device, json_file)
    if data is None:
        raise UsageError("evaluate: there is nothing to measure on. Give --data DIR, or --tasks NAMES.")
    if format is not None:
        return _forms(run, format, data, annotations, limit, batch_size, json_file)
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
    pair = runs.load(run, device=device, device_map=device_map)
    task = pair.loaded.task
    items = measurable(run, pair, data, annotations, limit, held_out=held_out)
    metric = runs.metric_for(pair, items)
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
    result = runs.evaluate_pair(
        pair, items, metric=metric, batch_size=batch_size, progress=progress, processes=processes_of()
    )
    more: dict[str, Any] = {}
    if compare:
        more["compared"] = _compared(pair, items, result, batch_size)
    if drawn:
        more["calibrations"] = runs.evaluate_again(
            pair, items, 1 if repeat is None else repeat, seed or 0, batch_size=batch_size, progress=progress,
            finish=optimize_ if integer else lambda snn: None,
        )  # fmt: skip
    try:  # first, since nobody may be there to read the output
        if processes_of().is_main:
            output.figures(json_file, result.to_dict() | more)
        if picture is not None and processes_of().is_main:
            write_atomically(picture, task.picture(items, metric))
    finally:  # and print it in any case: a disk may be full by now
        output.network(pair)
        output.sites(pair.snn, brief=True)
        output.line()
        output.measured(result.to_dict(), result.steps, pair.loaded.published_top1)
        if drawn:
            output.again(more["calibrations"], task.unit)
        if compare:
            output.line()
            output.compared(more["compared"], result.prices.name)
        if sites:
            output.line()
            output.ledger(result)
    if picture is not None:
        output.line(f"picture        {picture}")
    return "report", run, *words(data=data, annotations=annotations, limit=limit)


def _forms(
    run: Path,
    format: str,
    data: str,
    annotations: Path | None,
    limit: int | None,
    batch_size: int,
    json_file: Path | None,
) -> Next:
    """Compare the forms of a run: they take turns on the same batch, and the best of five times counts."""
    from onespike import runs
    from onespike.reports.tables import comparison
    from onespike.runs.forms import benchmark_pair

    pair = runs.load(run)
    items = runs.choose_labeled(pair.loaded, data, annotations, limit)
    names = None if format == "all" else format.split(",")
    rows = benchmark_pair(pair, items, forms=names, batch_size=batch_size, progress=progress)
    output.figures(json_file, [row.to_dict() for row in rows])
    done = [row for row in rows if not row.refused]
    more = {
        f"ms per batch of {min(batch_size, len(items))}": [f"{row.milliseconds:.1f}" for row in done],
        "MB": [f"{(row.bytes or 0) / 1e6:.2f}" for row in done],
    }
    output.rows(*comparison("form", [row.form for row in done], [row.headline for row in done], more), left=1)
    for row in rows:
        if row.refused:
            output.line(f"{row.form}: {row.refused}")
    return "export", run, "--format", "onnx", "--out", "network.onnx", "--data", data


def _asked(
    run: Path,
    names: str,
    folder: str | None,
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

    pair = runs.load(run, device=device)
    check(pair.loaded.task, "tasks")
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    with metered(pair.snn) as ledger:
        rows = harness(
            pair.loaded, {"ann": pair.ann, "snn": pair.snn}, wanted, folder=None if folder is None else Path(folder),
            limit=limit, batch_size=batch_size,
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
    from onespike import runs
    from onespike.runs.forms import compare_pair

    calibration = runs.calibration_images(pair.loaded, pair.data)
    return compare_pair(pair, items, calibration, result, batch_size=batch_size, progress=progress)
