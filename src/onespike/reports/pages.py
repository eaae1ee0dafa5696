"""Records → one page about a run or several, as HTML, Markdown and JSON, and their figures for papers.

A page makes no requests, and no text in it can run. The texts are templates; here is what they show.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from torch import nn

from onespike.energy.columns import DEFINITION, PAPER, beside, meanings, of_what_spikes
from onespike.reports import plots
from onespike.reports.record import VERSION, gather
from onespike.reports.tables import dearer, fairness, figure, sheet_tables
from onespike.runs.pair import in_memory
from onespike.runtime.atomic import try_folder, write_atomically
from onespike.runtime.provenance import made, versions
from onespike.runtime.validated import sealed
from onespike.tasks import Task, compared, task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from onespike.reports.live import Session

Record = Mapping[str, Any]
TEMPLATES = Path(__file__).parent / "templates"
APART_DB = 10.0  # two networks differ where the noise between them is above a tenth of the signal


def report(
    model: nn.Module,
    snn: nn.Module,
    loader: Iterable[tuple[Any, Any]],
    folder: Path | str,
    *,
    task: Task | None = None,
    hardware: bool = False,
) -> dict[str, Any]:
    """Measure a converted network, write `report.html` and its other files into a folder, and return its record.

    The loader gives (inputs, labels); labels may be None. The task is the meaning of the output. `hardware` adds the sheet of what
    the integer form needs.
    """
    try_folder(Path(folder))
    pair, items = in_memory(model, snn, loader, task)
    record = gather(None, pair, items, hardware=hardware)
    write_report(Path(folder), [record])
    return record


def write_report(folder: Path, records: Sequence[Record], column: str | None = None) -> str:
    """Write one page about one run (`report`) or several (`compare`); return what was written, for people.

    Several runs are drawn in this energy column, or in the one that they share.
    """
    name, page = _name(records), html(records, column)
    files: dict[str, str | bytes] = {f"{name}.html": page, f"{name}.md": markdown(records)}
    if len(records) == 1:
        stored = dict(records[0])
        for title, plot in figures_of(records).items():
            files |= plots.files(plot, title)
    else:
        stored = {"version": VERSION, "runs": list(records), "made": made(), "versions": versions()}
    files[f"{name}.json"] = sealed(stored)
    for file, contents in files.items():
        write_atomically(folder / file, contents)
    return f"written to {folder}: {name}.html ({len(page.encode()) / 1e6:.2f} MB), {name}.md, {name}.json"


def html(records: Sequence[Record], column: str | None = None) -> str:
    """Return the page of one run, or of several: records as `gather` gives them, or as they were stored."""
    svgs = {name: plots.svg(plot, name) for name, plot in figures_of(records, column).items()}
    data = {"sites": records[0]["sites"]} if len(records) == 1 else {}
    return _page(f"{_name(records)}.html", data, figures=svgs, **values(records, column))


def markdown(records: Sequence[Record]) -> str:
    """Return the same in Markdown, without pictures: for a README, an issue or a terminal."""
    return in_markdown(f"{_name(records)}.md", **values(records))


def _name(records: Sequence[Record]) -> str:
    return "report" if len(records) == 1 else "compare"


def values(records: Sequence[Record], column: str | None = None) -> dict[str, Any]:
    """Return what the templates show."""
    evaluations = [record["evaluation"] for record in records]
    if len(records) > 1:
        return {
            "records": records,
            "column": column or common_column(records),
            "headlines": compared(evaluations),
            "scores": [task_of(evaluation).columns(evaluation) for evaluation in evaluations],
            "recipes": differences(records),
        }
    record, evaluation = {"unit": "images", "hardware": None, **records[0]}, evaluations[0]
    task = None if evaluation is None else task_of(evaluation)
    summary = task and task.summary(evaluation, record["network"].get("published_top1"))
    headline = task and task.headline(evaluation)
    return {"record": record, "e": evaluation, "summary": summary, "headline": headline}


def figures_of(records: Sequence[Record], column: str | None = None) -> dict[str, Figure]:
    """Return the plots by name: of a run its ledger, its front and the trials of its search; of several, all runs."""
    evaluations = [record["evaluation"] for record in records]
    if len(records) > 1:
        column = column or common_column(records)
        ratios = [evaluation["energy"][column] for evaluation in evaluations]
        return {"runs": plots.runs(compared(evaluations), ratios, column)}
    record, drawn = records[0], {}
    if evaluations[0] is not None:
        priced = {name: ratio for name, ratio in evaluations[0]["energy"].items() if ratio is not None}
        drawn["ledger"] = plots.ledger(priced, record["energy"])
    fronts = {name: record[name] for name in ("front", "search") if record[name] is not None}
    keys = ("points", "chosen", "metric", "energy", "maximize")
    return drawn | {name: plots.front(*(front[key] for key in keys)) for name, front in fronts.items()}


def common_column(records: Sequence[Record]) -> str:
    """Return the energy column of all runs if they share one, or else the paper's."""
    columns = {record["energy"] for record in records}
    return str(columns.pop()) if len(columns) == 1 else PAPER


def differences(records: Sequence[Record]) -> dict[str, list[str]]:
    """Return the recipe fields in which the runs differ → each run's value."""
    fields = dict.fromkeys(name for record in records for name in record["recipe"])
    table = {name: [str(record["recipe"].get(name, "–")) for record in records] for name in fields}
    return {name: values for name, values in table.items() if len(set(values)) > 1}


def blocks(sites: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the picture: sites of one block together, with shades of energy and error from 0 to 1."""
    energy = max((row.get("energy_share") or 0.0 for row in sites), default=0.0) or 1.0
    noises = {i: 10 ** (-row["snr_db"] / 10) for i, row in enumerate(sites) if "snr_db" in row}
    rows: dict[str, list[dict[str, Any]]] = {}
    for index, row in enumerate(sites):
        shades = {
            "energy_shade": row["energy_share"] / energy if row.get("drives") else None,
            "error_shade": noises[index] / max(noises.values()) if index in noises else None,
        }
        short = row["site"].removeprefix(row["block"]).lstrip(".:") or row["site"]
        rows.setdefault(row["block"], []).append({**row, "index": index, "short": short, **shades})
    return rows


def parted(trail: Sequence[Sequence[Any]]) -> dict[str, Any] | None:
    """Return where two networks part: the first site under 10 dB, or the lowest; and the path as SVG coordinates.

    >>> parted([["a", 30.0], ["b", 8.0], ["c", 12.0]])["site"]
    'b'
    """
    if not trail:
        return None
    apart = [step for step in trail if step[1] < APART_DB]
    site, db = apart[0] if apart else min(trail, key=lambda step: step[1])
    width = max(len(trail) - 1, 1)
    points = [f"{100 * i / width:.1f},{40 - max(0.0, min(db, 40.0)):.1f}" for i, (_, db) in enumerate(trail)]
    return {"site": site, "db": db, "apart": bool(apart), "points": " ".join(points)}


def live(session: Session, samples: int) -> str:
    """Return the live page of a run, with `samples` inputs to try."""
    loaded, column = session.pair.loaded, session.pair.recipe.energy
    facts = {"scale": session.scale, "samples": samples, "text": loaded.task.unit != "images"}
    return _page(
        "live.html", facts, script="live.js", connect="'self'", run=str(session.run), network=loaded,
        column=column, meaning=meanings()[column], profile=session.prices, **facts,
    )  # fmt: skip


def _page(
    template: str, data: Record, *, script: str = "page.js", connect: str = "'none'", **values: Any
) -> str:
    program, style = ((TEMPLATES / name).read_text(encoding="utf-8") for name in (script, "page.css"))
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    # Both texts are inside <script>: the JSON cannot close it, and only our script has this hash.
    safe = json.dumps(data).replace("<", "\\u003c")
    page = {"script": program, "style": style, "data": safe, "digest": digest, "connect": connect}
    return ENVIRONMENT.get_template(template).render(**page, **values)


def in_markdown(template: str, **values: Any) -> str:
    """Return a text from its template; between paragraphs there is one empty line."""
    text = re.sub(r" +\n", "\n", ENVIRONMENT.get_template(template).render(**values))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def cell(text: Any) -> str:
    r"""Return a text that cannot break a table of Markdown, nor be HTML.

    >>> print(cell("<a> | b"))
    &lt;a&gt; \| b
    """
    marks = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|"})
    return " ".join(str(text).split()).translate(marks)


FILTERS: dict[str, Callable[..., Any]] = {
    "number": figure,
    "percent": lambda x, digits=1: figure(None if x is None else 100 * x, digits),
    "cell": cell,
    "sentence": lambda text: f"{text[0].upper()}{text[1:]}." if text else "",
    "title": lambda metric: f"{metric[0].upper()}{metric[1:]}".rsplit(",", 1)[0],
    "breakable": lambda text: Markup("<wbr>").join(map(escape, re.split(r"(?<=[.:_])", str(text)))),
    # A line breaks between the words of a command, not at hyphens.
    "words": lambda command: Markup(" ").join(
        Markup('<span class="word">{}</span>').format(word) for word in str(command).split(" ")
    ),
}
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=select_autoescape(["html"]), undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
FUNCTIONS = (beside, blocks, dearer, fairness, meanings, of_what_spikes, parted, sheet_tables)
ENVIRONMENT.globals |= {function.__name__: function for function in FUNCTIONS} | {"definition": DEFINITION}
ENVIRONMENT.filters |= FILTERS
