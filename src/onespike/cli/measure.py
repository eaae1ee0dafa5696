"""Commands that run a run: `evaluate`, `generate`, `search` and `doctor`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from onespike.cli import output
from onespike.cli.commands import Next, command, processes_of
from onespike.cli.options import held_out, words
from onespike.errors import UsageError, unknown
from onespike.recipe import names

if TYPE_CHECKING:
    from onespike.runs import NetworkPair

PARTICIPATION = 8  # how many inputs show whether every neuron takes part


@command(shared=True)
def evaluate(
    run: Path,
    *,
    data: str,
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
    profile: str | None = None,
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
    from onespike.runs.searching import measurable, uses
    from onespike.runtime.devices import in_blocks

    if format is not None:
        names = None if format == "all" else format.split(",")
        pair = runs.load(run)
        items = runs.choose_labeled(pair.loaded, data, annotations, limit)
        forms = benchmark_pair(pair, items, forms=names, batch_size=batch_size)
        output.figures(json_file, [form.to_dict() for form in forms])
        show.forms(forms, min(batch_size, len(items)))
        return "export", run, "--format", "onnx", "--out", "network.onnx", "--data", data
    if in_blocks(device_map) and (integer or compare):
        raise UsageError(
            "--integer and --compare make integers of all weights in memory. Leave --device-map blocks out."
        )
    if compare and (integer or processes_of().count > 1):
        raise UsageError("--compare makes integer networks of its own, in one process. Leave --integer out.")
    pair = runs.load(run, device=device, device_map=device_map)
    task = pair.loaded.task
    items = measurable(run, pair, data, annotations, limit, held_out=held_out)
    for purpose, used in uses(run, pair).items():
        if seen := runs.overlap(used, items):
            output.line(f"note: {len(seen)} of these {task.unit} were used for {purpose}, first {seen[0]}")
    runs.note_blocks(pair.ann, runs.Inputs(items, pair.loaded), batch_size)
    if integer:
        output.line(f"integer        {optimize_(pair.snn)}")
    result = runs.evaluate_pair(pair, items, batch_size=batch_size, processes=processes_of())
    compared = compare_pair(pair, items, result, batch_size=batch_size) if compare else []
    try:  # first, since nobody may be there to read the output
        if processes_of().is_main:
            more = {"sites": result.ledger.table()} | ({"compared": compared} if compare else {})
            output.figures(json_file, result.to_dict() | more)
    finally:  # and print it in any case: a disk may be full by now
        show.network(pair)
        show.sites(pair.snn)
        output.line()
        show.measured(result.to_dict(), result.steps, pair.loaded.published_top1)
        if compare:
            show.compared(compared, result.prices.name)
        if sites:
            show.ledger(result)
    return "report", run, *words(data=data, annotations=annotations, limit=limit)


@command()
def generate(
    run: Path,
    prompts: list[str],
    *,
    length: int = 64,
    stream: bool = False,
    temperature: float = 0.0,
    seed: int | None = None,
    cache: str = "dynamic",
    energy: str | None = None,
    profile: str | None = None,
    device: str = "cpu",
    json_file: Path | None = None,
) -> Next:
    """Continue prompts with the spiking network.

    Spikes and energy are stated per token: for reading the prompts (prefill), and for writing, one token at a time
    from a cache (decode). Several prompts are written in one batch, shorter ones padded on the left.
    """
    from onespike import runs
    from onespike.cli import show
    from onespike.energy.profiles import profile as prices_of
    from onespike.evaluation.generation import CACHES, write
    from onespike.tasks import Language

    if length < 1:
        raise UsageError(f"--length must be at least 1, not {length}.")
    if temperature < 0:
        raise UsageError(f"--temperature must not be below 0, and is {temperature:g}.")
    if cache not in CACHES:
        raise unknown("cache", cache, CACHES)
    if stream and len(prompts) > 1:
        raise UsageError("--stream shows one text as it is written. Give one text, or leave it out.")
    pair = runs.load(run, device=device)
    task = pair.loaded.task
    if not isinstance(task, Language):
        raise UsageError(f"generate: this network {task.verb}, and writes no text. Take a language model.")
    tokenizer: Any = task.tokenizer
    batch, column, profile = task.prompts(prompts, length), energy or pair.recipe.energy, prices_of().name
    streamer = None
    if stream:
        from transformers import TextStreamer  # a network that writes was loaded with it

        streamer = TextStreamer(tokenizer.tokenizer, skip_special_tokens=True)
    drawn: Any = {"temperature": temperature, "seed": seed or 0}
    written = write(pair.snn, batch, length, column=column, cache=cache, streamer=streamer, **drawn)
    texts = [tokenizer.decode(ids, bare=True) for ids in written.ids.tolist()]
    record = {
        "prompts": prompts, "texts": texts, "column": column, "profile": profile,
        "prefill": asdict(written.prefill), "decode": asdict(written.decode),
        "forwards": [asdict(spent) for spent in written.forwards],
    }  # fmt: skip
    output.figures(json_file, record)
    for text in () if stream else texts:
        output.line(text, "")
    show.costs_per_token(written.prefill, written.decode, column)
    return "serve", run


@command(interrupted="finished trials are kept. Go on with the same command and --resume.")
def search(
    run: Path,
    *,
    data: str,
    annotations: Path | None = None,
    trials: int = 50,
    objective: str | None = None,
    sampler: str = "gp",
    budget: float | None = None,
    energy: str | None = None,
    storage: str | None = None,
    resume: bool = False,
    fresh: bool = False,
    limit: int | None = None,
    batch_size: int = 16,
    device: str = "cpu",
    profile: str | None = None,
    json_file: Path | None = None,
) -> Next:
    """Find the best λ of a run and keep it there.

    λ = 1 and the preset's value are always tried. Every finished trial is stored at once, so that a search can be
    interrupted, and shared between machines.
    """
    from onespike import runs

    search_and_show(
        run, runs.load(run, device=device), data, json_file=json_file, annotations=annotations, trials=trials,
        objective=objective, sampler=sampler, budget=budget, energy=energy, limit=limit, batch_size=batch_size,
        url=storage, resume=resume, fresh=fresh,
    )  # fmt: skip
    images = held_out(data)
    return ("inspect", run) if images is None else ("evaluate", run, "--data", images)


def search_and_show(
    run: Path, pair: NetworkPair, data: str, *, json_file: Path | None = None, **options: Any
) -> NetworkPair:
    """Search λ of a loaded run, write and print the result, and return the pair with the λ that is kept."""
    from onespike.cli import show
    from onespike.runs.searching import search_run

    result, record, pair = search_run(run, pair, data, **options)
    output.figures(json_file, record)
    show.search(run, data, pair.loaded.task.objectives[record["objective"]].title, result, record)
    return pair


@command(interrupted="finished rows of --passes are kept. Run the same command again.")
def doctor(
    run: Path,
    *,
    data: str,
    annotations: Path | None = None,
    limit: int | None = None,
    images: int | None = None,
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
    from onespike.calibration.inputs import batches_of
    from onespike.cli import show
    from onespike.diagnosis import checkup, diagnose
    from onespike.diagnosis.measurement import PROBE_IMAGES
    from onespike.evaluation.participation import verify
    from onespike.passes import check_passes
    from onespike.reports.tables import figure, minus
    from onespike.runs.recipe_text import recipe_text
    from onespike.studies.ablate import FOLDER, ablate_run

    after = ("report", run, *words(data=data, annotations=annotations, limit=limit))
    if passes is None and (budget is not None or energy is not None):
        raise UsageError("--budget and --energy are of the rows of --passes. Give it, too.")
    images = PROBE_IMAGES if images is None else images
    if images < 2:
        raise UsageError(f"the doctor needs at least 2 images, not {images}. Try --images {PROBE_IMAGES}.")
    pair = runs.load(run, device=device)
    items = runs.choose_labeled(pair.loaded, data, annotations, limit)
    if passes is not None:
        rows = []
        chosen = None if passes == "run" else check_passes(names(passes))
        target: Any = {"budget": budget, "energy": energy}
        for row in ablate_run(run, pair, items, passes=chosen, batch_size=batch_size, **target):
            output.note(f"{row.what}: {figure(row.headline.spiking)}, {minus(row.headline, error=True)}")
            rows.append(row)
        output.figures(json_file, [row.to_dict() for row in rows])
        show.ablation(rows)
        output.line(f"kept in {run / FOLDER}")
        return after
    if len(items) < 2:
        raise UsageError(f"{data}: the doctor needs at least 2 images. Give more.")
    taking_part = verify(pair.snn, next(batches_of(items, pair.loaded, PARTICIPATION)))
    measured = checkup(pair, items, run, images=images, batch_size=batch_size)
    findings = diagnose(measured)
    output.figures(json_file, {"findings": [asdict(finding) for finding in findings], **asdict(measured)})
    show.network(pair)
    output.line(str(taking_part), "")
    show.checkup(measured, findings)
    remark = "recipe of this run, as a file for `onespike convert --recipe FILE`:"
    output.line("", remark, recipe_text(pair.recipe).rstrip())
    if not taking_part.ok:
        raise typer.Exit(1)
    return tuple(shlex.split(findings[0].command)[1:]) if findings else after
