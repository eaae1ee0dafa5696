"""A gathered record → one self-contained HTML page: it makes no requests, and no text in it can run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onespike.energy.columns import FOR_WHOM, PAPER, meanings, of_what_spikes
from onespike.errors import LoadError
from onespike.reports import plots
from onespike.reports.markdown import CITATION, dearer, fairness
from onespike.tasks import compared as headlines
from onespike.tasks import task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from onespike.reports.live import Session

TEMPLATES = Path(__file__).parent / "templates"
APART_DB = 10.0
"""Two networks differ where the noise between them is above a tenth of the signal."""


def figures(record: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the plots of a run by name: its ledger, its front, the trials of its search."""
    made, evaluation = {}, record["evaluation"]
    if evaluation is not None:
        known = {name: ratio for name, ratio in evaluation["energy"].items() if ratio is not None}
        made["ledger"] = plots.ledger(known, record["energy"])
    for name in ("front", "search"):
        if (found := record[name]) is not None:
            asked = (found[key] for key in ("points", "chosen", "metric", "energy", "maximize"))
            made[name] = plots.front(*asked)
    return made


def render(record: Mapping[str, Any]) -> str:
    """Return the page of one run.

    Args:
        record: the result of `gather`, or the contents of `report.json`.
    """
    evaluation = record["evaluation"]
    return _page(
        "report.html",
        {"sites": [_for_script(row) for row in record["sites"]]},
        record=record,
        blocks=blocks(record["sites"]),
        examples=[{**example, "parted": parted(example["trail"])} for example in record["examples"]],
        figures={name: plots.svg(plot, name) for name, plot in figures(record).items()},
        fairness="" if evaluation is None else fairness(evaluation),
        dearer="" if evaluation is None else dearer(evaluation),
        of_what_spikes={}
        if evaluation is None
        else {
            column: of_what_spikes(column, ratio, evaluation["analog_share"])
            for column, ratio in evaluation["energy"].items()
        },
        for_whom=FOR_WHOM,
        citation=CITATION,
        summary=None
        if evaluation is None
        else task_of(evaluation).summary(evaluation, record["network"]["published_top1"]),
    )


def compare(records: Sequence[Mapping[str, Any]], column: str | None = None) -> str:
    """Return the page of several runs with their evaluations, drawn in this energy column or the one they share."""
    rows, column = compared(records, column), column or common_column(records)
    scored = [task_of(record["evaluation"]).columns(record["evaluation"]) for record in records]
    figure = plots.svg(plots.runs(rows, rows[0]["metric"], column), "runs")
    return _page(
        "compare.html", {}, rows=rows, recipes=differences(records), records=records, figure=figure,
        figures=scored, column=column, citation=CITATION, warnings=_dear(records),
    )  # fmt: skip


def _dear(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the warnings of the runs that spend more than the original in some column."""
    found = ((number, dearer(record["evaluation"])) for number, record in enumerate(records, 1))
    return [f"Run {number}: {warning}" for number, warning in found if warning]


def common_column(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the energy column of all runs if they share one, or else the paper's."""
    columns = {record["energy"] for record in records}
    return str(columns.pop()) if len(columns) == 1 else PAPER


def compared(records: Sequence[Mapping[str, Any]], column: str | None = None) -> list[dict[str, Any]]:
    """Return one row per run: the figure that runs of its task are compared by."""
    found = headlines([record["evaluation"] for record in records])
    column = column or common_column(records)
    return [
        {
            "run": record["run"],
            "spec": record["network"]["spec"],
            "original": figure.original,
            "value": figure.spiking or 0.0,
            "metric": figure.title,
            "bounds": figure.compared,
            "interval": figure.bounds,
            "difference": figure.difference,
            "paired": figure.paired,
            "energy": record["evaluation"]["energy"][column],
        }
        for record, figure in zip(records, found, strict=True)
    ]


def differences(records: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the recipe fields in which the runs differ → each run's value.

    >>> differences([{"recipe": {"scale": 0.2, "io": "analog"}}, {"recipe": {"scale": 0.3, "io": "analog"}}])
    {'scale': ['0.2', '0.3']}
    """
    fields = dict.fromkeys(name for record in records for name in record["recipe"])
    table = {name: [str(record["recipe"].get(name, "–")) for record in records] for name in fields}
    return {name: values for name, values in table.items() if len(set(values)) > 1}


def blocks(sites: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the picture: sites of one block together, with shades of energy and error from 0 to 1."""
    energy = max((row.get("energy_share") or 0.0 for row in sites), default=0.0) or 1.0
    noises = [10 ** (-row["snr_db"] / 10) for row in sites if "snr_db" in row]
    rows: dict[str, list[dict[str, Any]]] = {}
    for index, row in enumerate(sites):
        noise = 10 ** (-row["snr_db"] / 10) / max(noises) if "snr_db" in row else None
        rows.setdefault(row["block"], []).append(
            {
                **row,
                "index": index,
                "short": row["site"].removeprefix(row["block"]).lstrip(".:") or row["site"],
                "energy_shade": (row["energy_share"] / energy) if row.get("drives") else None,
                "error_shade": noise,
            }
        )
    return [{"name": name, "cells": cells} for name, cells in rows.items()]


def parted(trail: Sequence[Sequence[Any]]) -> dict[str, Any] | None:
    """Return where two networks part: the first site under 10 dB, or the lowest; and the path as SVG coordinates.

    >>> parted([["a", 30.0], ["b", 8.0], ["c", 12.0]])["site"]
    'b'
    """
    if not trail:
        return None
    lowest = min(trail, key=lambda step: step[1])
    first = next((step for step in trail if step[1] < APART_DB), None)
    width = max(len(trail) - 1, 1)
    points = " ".join(
        f"{100 * i / width:.1f},{40 - max(0.0, min(db, 40.0)):.1f}" for i, (_, db) in enumerate(trail)
    )
    site, db = first or lowest
    return {"site": site, "db": db, "apart": first is not None, "points": points}


def _for_script(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data for drawing a site's distribution."""
    keys = (
        "site",
        "neuron",
        "levels",
        "steps",
        "span",
        "histogram",
        "snr_db",
        "fine",
        "tail",
        "clipping",
        "row_loss",
    )
    return {key: row[key] for key in keys if key in row}


def live(session: Session, samples: int) -> str:
    """Return the live page of a run, with `samples` inputs to try."""
    pair, own = session.pair, session.scale
    unit = getattr(pair.loaded.task, "unit", "images")
    facts = {"scale": own, "samples": samples, "text": unit != "images"}
    return _page(
        "live.html", facts, script="live.js", connect="'self'", run=str(session.run), network=pair.loaded,
        column=pair.recipe.energy, meaning=meanings()[pair.recipe.energy], profile=session.prices, **facts,
    )  # fmt: skip


def _page(
    template: str,
    data: Mapping[str, Any],
    *,
    script: str = "page.js",
    connect: str = "'none'",
    **values: Any,
) -> str:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup, escape
    except ImportError as error:
        raise LoadError("reports need jinja2. Install it with: pip install 'onespike[report]'") from error
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["percent"] = lambda x: "–" if x is None else f"{100 * x:.1f}"
    environment.filters["breakable"] = lambda text: Markup(  # noqa: S704 - every part is escaped
        "<wbr>".join(str(escape(part)) for part in re.split(r"(?<=[.:_])", str(text)))
    )
    environment.filters["words"] = lambda command: Markup(
        " "
    ).join(  # a line breaks between words, not at hyphens
        Markup('<span class="word">{}</span>').format(word) for word in str(command).split(" ")
    )
    environment.filters["title"] = lambda metric: f"{metric[0].upper()}{metric[1:]}".rsplit(",", 1)[0]
    environment.filters["number"] = lambda x, digits=2: "–" if x is None else f"{x:.{digits}f}"
    program, style = ((TEMPLATES / name).read_text(encoding="utf-8") for name in (script, "page.css"))
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    # Both texts are inside <script>: the JSON cannot close it, and only our script has this hash.
    safe = json.dumps(data).replace("<", "\\u003c")
    return environment.get_template(template).render(
        **values, script=program, style=style, data=safe, digest=digest, connect=connect
    )
