"""A record → its files: the page, Markdown, JSON, and figures for papers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from onespike.reports import html, markdown, plots
from onespike.reports.record import gather
from onespike.runs import Progress, no_progress
from onespike.runs.in_memory import in_memory
from onespike.runtime.atomic import try_folder, write_atomically
from onespike.runtime.validated import sealed
from onespike.tasks import Task


def write_pages(folder: Path, name: str, page: str, text: str, record: dict[str, Any]) -> str:
    """Write a page as HTML, Markdown and JSON; return what was written, for people."""
    for suffix, contents in ((".html", page), (".md", text), (".json", sealed(record))):
        write_atomically(folder / f"{name}{suffix}", contents)
    return f"written to {folder}: {name}.html ({len(page.encode()) / 1e6:.2f} MB), {name}.md, {name}.json"


def write_report(folder: Path, record: dict[str, Any]) -> str:
    """Write the pages of one run, and its figures as SVG and PDF; return what was written, for people."""
    done = write_pages(folder, "report", html.render(record), markdown.markdown(record), record)
    for name, plot in html.figures(record).items():
        for file, contents in plots.files(plot, name).items():
            write_atomically(folder / file, contents)
    return done


def report(
    model: nn.Module,
    snn: nn.Module,
    loader: Iterable[tuple[Any, Any]],
    folder: Path | str,
    *,
    task: Task | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure a converted network, write `report.html` and its other files into a folder, and return its record.

    Args:
        model: the original network.
        snn: its converted copy.
        loader: (inputs, labels) to measure on; labels may be None.
        folder: the folder to write.
        task: the meaning of the output; classification by default.
        progress: progress(title, total) wraps the batches of a long stage.
    """
    try_folder(Path(folder))
    pair, items = in_memory(model, snn, loader, task)
    record = gather(None, pair, items, progress=progress)
    write_report(Path(folder), record)
    return record
