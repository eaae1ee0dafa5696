"""`onespike doctor`: what costs a run its accuracy, and what to do about it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from onespike import pipeline
from onespike.cli import show
from onespike.cli.commands import command
from onespike.cli.options import BatchSize, Data, Device, Json, Limit, RunFolder
from onespike.cli.progress import progress
from onespike.doctor import Checkup, Finding, checkup, findings
from onespike.doctor.measure import PROBE_IMAGES
from onespike.errors import UsageError
from onespike.files import write_atomically
from onespike.report.text import figure


@command("onespike doctor run --data imagenet/val --limit 500")
def doctor(
    run: RunFolder,
    data: Data,
    limit: Limit = None,
    images: Annotated[
        int, typer.Option(metavar="N", help="How many of them are measured in many variants.")
    ] = PROBE_IMAGES,
    sites: Annotated[bool, typer.Option("--sites", help="Also show the table of sites.")] = False,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    json_file: Json = None,
) -> None:
    """Find what costs accuracy, and say what to do.

    Measures noise at every site, lets one kind of site stay analog at a time, tries other λ, thresholds and
    normalisations, and ends with at most five findings, worst first.
    """
    if images < 2:
        raise UsageError(f"the doctor needs at least 2 images, not {images}. Try --images {PROBE_IMAGES}.")
    pair = pipeline.load_run(run, device=device)
    if pair.loaded.results is not None:
        raise UsageError(
            f"the doctor compares class probabilities, and {pair.loaded.spec} finds boxes. Look at the noise of its "
            f"sites with: onespike report {run} --data {data} --annotations FILE"
        )
    items = pipeline.choose(data, limit)
    if len(items) < 2:
        raise UsageError(f"{data}: the doctor needs at least 2 images. Give more.")
    measured = checkup(pair, items, run, images=images, batch_size=batch_size, progress=progress)
    found = findings(measured)
    if json_file is not None:
        record = {"findings": [f.to_dict() for f in found], **measured.to_dict()}
        write_atomically(json_file, json.dumps(record, indent=1) + "\n")
    show.network(pair)
    _figures(measured)
    if sites:
        _sites(measured)
    _findings(found)


def _figures(measured: Checkup) -> None:
    ann, snn = (measured.evaluation[name]["top1"] for name in ("ann", "snn"))
    published = "" if measured.published is None else f" (published {measured.published:.2f} %)"
    if ann is None:
        show.line("accuracy       no labels, so the divergence to the original stands for the loss")
    else:
        show.line(f"accuracy       original {ann:.2f} %{published}, spiking {snn:.2f} %")
    show.line(f"divergence     {measured.kl:.4f} nats on {measured.probe_images} images")
    show.line()
    order = sorted(measured.kinds, key=lambda k: measured.kinds[k])
    whole = measured.kl or 1.0
    show.rows(
        ("kind of site", "KL while it is analog", "less, %"),
        [(k, f"{measured.kinds[k]:.4f}", f"{100 * (1 - measured.kinds[k] / whole):.0f}") for k in order],
    )
    show.line()
    if measured.scales:
        cells = [(f"{r['scale']:g}", f"{r['kl']:.4f}", figure(r["counts"], 3)) for r in measured.scales]
        show.rows(("λ", "KL", "energy (counts)"), cells)
        show.line()


def _sites(measured: Checkup) -> None:
    headers = (
        "site",
        "SNR dB",
        "fine %",
        "tail %",
        "clipping %",
        "saturated %",
        "dead ch. %",
        "outlier ch. %",
        "above θ %",
    )
    keys = ("fine", "tail", "clipping", "saturated", "dead_channels", "outlier_channels")

    def above(row: dict[str, Any]) -> str:  # the threshold of a softmax site is its step
        return "–" if row["role"] == "softmax" else f"{100 * row['above']:.1f}"

    cells = [
        (name, f"{row['snr_db']:.1f}", *(f"{100 * row[key]:.1f}" for key in keys), above(row))
        for name, row in measured.sites.items()
    ]
    show.rows(headers, cells)
    show.line(
        "error of a site: fine = between consecutive levels, tail = between sparse ones, clipping = beyond the last"
    )
    show.line()


def _findings(found: list[Finding]) -> None:
    if not found:
        show.line("nothing found that would take away a tenth of the loss")
    for number, finding in enumerate(found, 1):
        share = "" if finding.share is None else f" (about {100 * finding.share:.0f} % of the loss)"
        mark = "mistake" if finding.alarming else "gain"
        show.line(f"{number}. {mark}: {finding.title}{share}")
        show.line(f"   {finding.evidence}")
        show.line(f"   try: {finding.command}")
