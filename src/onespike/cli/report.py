"""`onespike report` and `onespike compare`: runs as pages to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from onespike import pipeline, storage
from onespike.cli import show
from onespike.cli.commands import command
from onespike.cli.options import Annotations, BatchSize, Device, Limit, RunFolder
from onespike.cli.progress import progress
from onespike.errors import LoadError, UsageError
from onespike.files import write_atomically
from onespike.gather import VERSION, gather
from onespike.pipeline import Pair
from onespike.report import page, text
from onespike.tasks import Coco, Items

FOLDER, RECORD = "report", "report.json"

MaybeData = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Images to measure on: one sub-folder a class, or see --annotations."),
]


@command("onespike report run --data imagenet/val --limit 500")
def report(
    run: RunFolder,
    data: MaybeData = None,
    annotations: Annotations = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write; by default RUN/report.")
    ] = None,
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
) -> None:
    """Write a page about a run: one HTML file, Markdown and JSON.

    Accuracy (of a detector: COCO's AP), energy, every site with its distribution, the front of accuracy against
    energy, inputs with both networks' predictions. The page needs no network and no other file.
    """
    pair = pipeline.load_run(run, device=device)
    items, coco = _images(pair, data, annotations, limit)
    record = gather(run, pair, items, coco=coco, batch_size=batch_size, progress=progress)
    folder = out or run / FOLDER
    _write(folder, "report", page.render(record), text.markdown(record), record)


@command("onespike compare run-a run-b --data imagenet/val --out compared")
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two runs or more.")],
    data: MaybeData = None,
    annotations: Annotations = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.")] = Path("onespike-compare"),
    limit: Limit = None,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
) -> None:
    """Write one page about several runs.

    With --data each run is measured on the same images; without it, the figures are those of each run's report.
    """
    if len(runs) < 2:
        raise UsageError("compare needs two runs or more. Use `onespike report` for one.")
    records = [_record(run, data, annotations, limit, batch_size, device) for run in runs]
    markdown = text.compare_markdown(records, page.differences(records))
    _write(out, "compare", page.compare(records), markdown, {"version": VERSION, "runs": records})


def _images(
    pair: Pair, data: str | None, annotations: Path | None, limit: int | None
) -> tuple[Items | None, Coco | None]:
    if data is not None:
        return pipeline.choose_labelled(pair.loaded, data, annotations, limit)
    if annotations is not None:
        raise UsageError("--annotations says what is on the images of --data. Give both.")
    return None, None


def _record(
    run: Path, data: str | None, annotations: Path | None, limit: int | None, batch_size: int, device: str
) -> dict[str, Any]:
    if data is not None:
        pair = pipeline.load_run(run, device=device)
        record = gather(run, pair, None)
        items, coco = pipeline.choose_labelled(pair.loaded, data, annotations, limit)
        metric = pipeline.metric_for(pair, items, coco)
        result = pipeline.evaluate_pair(pair, items, metric=metric, batch_size=batch_size, progress=progress)
        return {**record, "evaluation": result.to_dict()}
    storage.load(run)  # a damaged run is named before its report is believed
    file = run / FOLDER / RECORD
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        measured = record["version"] == VERSION and record["evaluation"] is not None
    except FileNotFoundError:
        measured = False
    except (ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{file}: the report is damaged ({error}). Make it again.") from error
    if not measured:
        raise UsageError(
            f"{run}: it has no measured report. Give --data DIR, or run: onespike report {run} --data DIR"
        )
    return {**record, "run": str(run)}


def _write(folder: Path, name: str, html: str, markdown: str, record: dict[str, Any]) -> None:
    for suffix, contents in (
        (".html", html),
        (".md", markdown),
        (".json", json.dumps(record, indent=1) + "\n"),
    ):
        write_atomically(folder / f"{name}{suffix}", contents)
    show.line(f"written to {folder}: {name}.html ({len(html.encode()) / 1e6:.2f} MB), {name}.md, {name}.json")
