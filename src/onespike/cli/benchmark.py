"""`onespike benchmark`: every form of a run in one table."""

from __future__ import annotations

from typing import Annotated

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Annotations, BatchSize, Data, Json, Limit, RunFolder, given
from onespike.cli.progress import progress


@command(
    "onespike benchmark run --data imagenet/val --limit 64",
    "onespike benchmark run --data imagenet/val --forms eager,onnx-integer",
)
def benchmark(
    run: RunFolder,
    data: Data,
    annotations: Annotations = None,
    limit: Limit = 64,
    batch_size: BatchSize = 8,
    forms: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Only these: original, eager, compiled, integer, onnx, onnx-integer, pt2, …"
        ),
    ] = None,
    json_file: Json = None,
) -> Next:
    """Compare the forms of a run: accuracy, milliseconds and size.

    Forms are the original, the spiking network as it is, compiled and on integers, and every format of `onespike
    export` in its runtime. They take turns on the same batch, and the best of five times counts.
    """
    from onespike.runs.benchmark_run import benchmark_pair
    from onespike.runs.inputs import choose_labeled
    from onespike.runs.saving import load_run

    pair = load_run(run)
    items = choose_labeled(pair.loaded, data, annotations, limit)
    chosen = None if forms is None else forms.split(",")
    rows = benchmark_pair(pair, items, forms=chosen, batch_size=batch_size, progress=progress)
    output.figures(json_file, [row.to_dict() for row in rows])
    done = [row for row in rows if not row.refused]
    output.rows(
        ("form", done[0].title if done else "score", f"ms per batch of {min(batch_size, len(items))}", "MB"),
        [
            (
                row.form,
                f"{row.score:.2f}" if row.score is not None else "–",
                f"{row.milliseconds:.1f}",
                f"{(row.bytes or 0) / 1e6:.2f}",
            )
            for row in done
        ],
        left=1,
    )
    for row in rows:
        if row.refused:
            output.line(f"{row.form}: {row.refused}")
    return "export", run, "--format", "onnx", "--out", "network.onnx", *given(verify=data)
