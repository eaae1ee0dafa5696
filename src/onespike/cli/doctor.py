"""`onespike doctor`: why a run loses accuracy, and what to do about it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Annotations, BatchSize, Data, Device, Json, Limit, RunFolder, given
from onespike.cli.progress import progress
from onespike.errors import UsageError

if TYPE_CHECKING:
    from onespike.diagnosis import Checkup, Finding


@command("onespike doctor run --data imagenet/val --limit 500")
def doctor(
    run: RunFolder,
    data: Data,
    annotations: Annotations = None,
    limit: Limit = None,
    images: Annotated[
        int | None, typer.Option(metavar="N", help="How many of them to measure in many variants.")
    ] = None,
    sites: Annotated[bool, typer.Option("--sites", help="Also show the table of sites.")] = False,
    batch_size: BatchSize = 16,
    device: Device = "cpu",
    json_file: Json = None,
) -> Next:
    """Find what costs accuracy, and suggest remedies.

    Measures noise at every site, leaves one kind of site analog at a time, tries other λ, thresholds and
    normalizations, and ends with at most five findings, worst first.
    """
    from onespike import runs
    from onespike.diagnosis import checkup, diagnose
    from onespike.diagnosis.measurement import PROBE_IMAGES
    from onespike.runs.recipe_file import recipe_text

    images = PROBE_IMAGES if images is None else images
    if images < 2:
        raise UsageError(f"the doctor needs at least 2 images, not {images}. Try --images {PROBE_IMAGES}.")
    pair = runs.load_run(run, device=device)
    items = runs.choose_labeled(pair.loaded, data, annotations, limit)
    if len(items) < 2:
        raise UsageError(f"{data}: the doctor needs at least 2 images. Give more.")
    measured = checkup(pair, items, run, images=images, batch_size=batch_size, progress=progress)
    found = diagnose(measured)
    output.figures(json_file, {"findings": [f.to_dict() for f in found], **measured.to_dict()})
    output.network(pair)
    _figures(measured)
    if sites:
        _sites(measured)
    _refused(measured)
    _findings(found)
    output.line()
    output.line("recipe of this run, as a file for `onespike convert --recipe FILE`:")
    output.line(recipe_text(pair.recipe).rstrip())
    if found:
        return tuple(shlex.split(found[0].command)[1:])
    return "report", run, *given(data=data, annotations=annotations, limit=limit)


def _figures(measured: Checkup) -> None:
    from onespike.reports.tables import figure
    from onespike.tasks.intervals import spelled

    ann, snn = measured.headline.original, measured.headline.spiking
    published = "" if measured.published is None else f" (published {measured.published:.2f} %)"
    if ann is None or snn is None:
        output.line("accuracy       no labels, so the divergence to the original stands for the loss")
    else:
        bounds = measured.headline.bounds
        sure = "" if bounds is None else f" ({spelled(bounds)})"
        output.line(f"{measured.headline.title}: original {ann:.2f}{published}, spiking {snn:.2f}{sure}")
    output.line(f"divergence     {measured.kl:.4f} nats on {measured.probe_images} images")
    output.line()
    order = sorted(measured.kinds, key=lambda k: measured.kinds[k])
    whole = measured.kl or 1.0
    output.rows(
        ("kind of site", "KL while it is analog", "less, %"),
        [(k, f"{measured.kinds[k]:.4f}", _whole(100 * (1 - measured.kinds[k] / whole))) for k in order],
    )
    output.line()
    if measured.scales:
        cells = [(f"{r['scale']:g}", f"{r['kl']:.4f}", figure(r["energy"], 3)) for r in measured.scales]
        output.rows(("λ", "KL", f"energy ({measured.energy})"), cells)
        output.line()


def _whole(percent: float) -> str:
    """Write a figure without decimals; what rounds to nothing has no sign."""
    return str(round(percent)).replace("-", "−")


def _refused(measured: Checkup) -> None:
    for name, reason in measured.refused.items():
        output.line(f"not measured   {name}: {reason}")


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
    output.rows(headers, cells)
    output.line(
        "error of a site: fine = between consecutive levels, tail = between sparse ones, clipping = beyond the last"
    )
    output.line()


def _findings(found: list[Finding]) -> None:
    if not found:
        output.line("nothing worth doing: no remedy that was measured takes away a tenth of the loss")
    for number, finding in enumerate(found, 1):
        share = "" if finding.share is None else f" (about {100 * finding.share:.0f} % of the loss)"
        mark = "mistake" if finding.alarming else "gain"
        output.line(f"{number}. {mark}: {finding.title}{share}")
        output.line(f"   {finding.evidence}")
        output.line(f"   try: {finding.command}")
