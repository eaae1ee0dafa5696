"""`onespike doctor`: why a run loses accuracy, and what to do about it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command
from onespike.cli.options import Word, words
from onespike.cli.progress import progress
from onespike.errors import UsageError

if TYPE_CHECKING:
    from onespike.diagnosis import Checkup, Finding
    from onespike.studies.ablate import Row

PARTICIPATION = 8
"""How many inputs show whether every neuron takes part."""


@command(
    "onespike doctor run --data imagenet/val --limit 500",
    "onespike doctor run --data photos --limit 200 \\\n    --passes nearest,center,allocate --budget 0.25",
    interrupted="finished rows of --passes are kept. Run the same command again.",
    images=Word("N", "How many of them to measure in many variants."),
)
def doctor(
    run: Path,
    *,
    data: str,
    annotations: Path | None = None,
    limit: int | None = None,
    images: int | None = None,
    sites: bool = False,
    passes: str | None = None,
    budget: float | None = None,
    energy: str | None = None,
    batch_size: int = 16,
    device: str = "cpu",
    json_file: Path | None = None,
) -> Next:
    """Find what costs accuracy, and suggest remedies.

    Checks that every neuron takes part, measures noise at every site, leaves one kind of site analog at a time, tries
    other λ, thresholds and normalizations, and ends with at most five findings, worst first. The exit code is 1 if a
    neuron does not take part. With --passes all rows have the same energy, and finished rows are kept in the run.
    """
    from onespike import runs
    from onespike.diagnosis import checkup, diagnose
    from onespike.diagnosis.measurement import PROBE_IMAGES
    from onespike.evaluation.participation import verify
    from onespike.runs.inputs import batches_of
    from onespike.runs.recipe_text import recipe_text

    if passes is not None:
        return _ablated(run, data, annotations, passes, budget, energy, limit, batch_size, device, json_file)
    if budget is not None or energy is not None:
        raise UsageError("--budget and --energy are of the rows of --passes. Give it, too.")
    images = PROBE_IMAGES if images is None else images
    if images < 2:
        raise UsageError(f"the doctor needs at least 2 images, not {images}. Try --images {PROBE_IMAGES}.")
    pair = runs.load(run, device=device)
    items = runs.choose_labeled(pair.loaded, data, annotations, limit)
    if len(items) < 2:
        raise UsageError(f"{data}: the doctor needs at least 2 images. Give more.")
    taking_part = verify(pair.snn, next(batches_of(items, pair.loaded, PARTICIPATION)))
    measured = checkup(pair, items, run, images=images, batch_size=batch_size, progress=progress)
    findings = diagnose(measured)
    output.figures(json_file, {"findings": [f.to_dict() for f in findings], **measured.to_dict()})
    output.network(pair)
    output.line(str(taking_part))
    output.line()
    _figures(measured)
    if sites:
        _sites(measured)
    _refused(measured)
    _findings(findings)
    output.line()
    output.line("recipe of this run, as a file for `onespike convert --recipe FILE`:")
    output.line(recipe_text(pair.recipe).rstrip())
    if not taking_part.ok:
        raise typer.Exit(1)
    if findings:
        return tuple(shlex.split(findings[0].command)[1:])
    return "report", run, *words(data=data, annotations=annotations, limit=limit)


def _ablated(
    run: Path,
    data: str,
    annotations: Path | None,
    passes: str,
    budget: float | None,
    energy: str | None,
    limit: int | None,
    batch_size: int,
    device: str,
    json_file: Path | None,
) -> Next:
    """Measure each pass of a run alone, left out, and all together, on the calibration images of the run."""
    from onespike.energy.columns import OF_ALL_MACS, holdable
    from onespike.energy.profiles import DEFAULT
    from onespike.passes import parse_passes
    from onespike.studies.ablate import FOLDER, ablate_run

    rows = []
    for row in ablate_run(
        run,
        data,
        annotations=annotations,
        passes=None if passes == "run" else parse_passes(passes),
        budget=budget,
        energy=energy,
        limit=limit,
        batch_size=batch_size,
        device=device,
        progress=progress,
    ):
        output.note(f"{row.what}: " + ", ".join(_cells(row, [])[1:]))
        rows.append(row)
    output.figures(json_file, [row.to_dict() for row in rows])
    columns, first, figures = holdable(), rows[0].headline, rows[0].figures
    divergence = ("KL, nats",) if "kl" in figures else ()
    output.rows(
        ("passes", first.title, "difference", *divergence, *columns), [_cells(row, columns) for row in rows]
    )
    if first.original is not None:
        paired = "" if first.error is None else "; the difference has its paired standard error"
        output.line(f"original: {first.title} {first.original:.2f}{paired}")
    output.line(
        f"energy {OF_ALL_MACS}, {100 * (1 - figures['analog_share']):.1f} % of which spike, "
        f"at the prices of {figures.get('profile', DEFAULT)}"
    )
    output.line(f"kept in {run / FOLDER}")
    return "report", run, *words(data=data, annotations=annotations, limit=limit)


def _cells(row: Row, columns: list[str]) -> tuple[str, ...]:
    from onespike.reports.tables import figure

    figures, headline = row.figures, row.headline
    error = "" if headline.error is None else f" ± {headline.error:.2f}"
    return (
        row.what,
        figure(headline.spiking),
        "–" if headline.difference is None else f"{headline.difference:+.2f}{error}".replace("-", "−"),
        *([f"{figures['kl']:.4f}"] if "kl" in figures else []),
        *(figure(figures["energy"].get(column), 3) for column in columns),
    )


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


def _findings(findings: list[Finding]) -> None:
    if not findings:
        output.line("nothing worth doing: no remedy that was measured takes away a tenth of the loss")
    for number, finding in enumerate(findings, 1):
        share = "" if finding.share is None else f" (about {100 * finding.share:.0f} % of the loss)"
        mark = "mistake" if finding.alarming else "gain"
        output.line(f"{number}. {mark}: {finding.title}{share}")
        output.line(f"   {finding.evidence}")
        output.line(f"   try: {finding.command}")
