"""What commands print: networks and their sites, measured figures, findings, files."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from onespike.cli import WARNING, say
from onespike.cli.output import line, rows
from onespike.cli.report import FOLDER, reported
from onespike.conversion.firing import is_spiking, named_neurons
from onespike.conversion.network import table
from onespike.deploy.exports import Exported
from onespike.deploy.exports.base import beside
from onespike.deploy.exports.sheet import Sheet
from onespike.diagnosis import Checkup, Finding
from onespike.energy import columns
from onespike.energy.profiles import DEFAULT, profile
from onespike.evaluation.generation import Spent
from onespike.evaluation.side_by_side import Evaluation
from onespike.neurons import Neuron
from onespike.recipe import Recipe
from onespike.reports.tables import comparison, dearer, fairness, figure, minus, sheet_tables
from onespike.runs import NetworkPair
from onespike.runs.forms import Row
from onespike.runs.searching import FOLDER as SEARCHES
from onespike.scale_search import Search
from onespike.studies import ablate
from onespike.tasks import compared as headlines
from onespike.tasks import task_of
from onespike.tasks.intervals import spelled

BITS = 8  # the bits of a spike that chips with graded spikes have


def network(pair: NetworkPair) -> None:
    """Print one paragraph on what was loaded."""
    loaded = pair.loaded
    line(f"network        {loaded.spec} ({loaded.weights} weights)")
    line(f"preprocessing  {loaded.reading.preprocessing}")
    if loaded.attention:
        line(f"attention      {loaded.attention}")


def sites(snn: nn.Module) -> list[dict[str, Any]]:
    """Print how many sites spike, and what does not, by kind and with the reason; return the table of sites."""
    listed, others = table(snn), dict[str, list[str]](analog=[])
    for row in listed:
        if not row["spikes"]:
            kind, _, reason = row["neuron"].partition(": ")
            others.setdefault(kind, []).append(f"{row['site']} ({reason})")
    named = "; ".join(f"{kind}: {', '.join(sites) or 'none'}" for kind, sites in others.items())
    line(f"sites          {sum(row['spikes'] for row in listed)} of {len(listed)} spike; {named}")
    return listed


def spent(pair: NetworkPair) -> None:
    """Print the network's energy on calibration images, in every column, and its loss if measured."""
    provenance, unit = pair.thresholds.provenance, getattr(pair.loaded.task, "unit", "images")
    loss, energy = provenance.get("loss"), provenance.get("energy")
    if loss:
        agreement = "" if loss["agreement"] is None else f", agreement {100 * loss['agreement']:.1f} %"
        kl = "" if loss["kl"] is None else f", KL {loss['kl']:.4f}"
        line(
            f"loss           {100 * loss['drop']:.2f} ± {100 * loss['error']:.2f} points of {loss['measure']} on "
            f"{loss['inputs']} {unit}{agreement}{kl}; at most {100 * loss['max_drop']:g} asked for, {len(loss['tried'])} budgets tried"
        )
    if energy and (ratios := energy["ratios"]):
        column, budget = pair.recipe.energy, pair.recipe.budget
        asked = f"; budget {column} {budget:g}" if budget is not None and not loss else ""
        line(
            f"energy ratios  {columns.OF_ALL_MACS}, on the last {energy['inputs']} calibration {unit}, "
            f"± {100 * energy['relative_error']:.1f} %{asked}",
            "               " + "  ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()),
        )
        if column in ratios:
            line(f"{'':15}{column} is {columns.beside(column, ratios[column], energy['analog_share'])}")


def measured(record: Mapping[str, Any], steps: int, published: float | None = None) -> None:
    """Print the task's figures, and the energy ledger with the meaning of its columns, of an evaluation."""
    summary = task_of(record).summary(record, published)
    names = {"ann": "original (ANN)", "snn": f"spiking (SNN, T={steps})"}
    networks = zip(summary.networks, summary.table.texts(), strict=True)
    cells = [(names[key], *texts, f"{record['seconds'][key]:.1f}") for key, texts in networks]
    if "merged" in record:  # the same figures of another network
        texts = task_of(record).summary({**record, **record["merged"]}).table.texts()[-1]
        cells.insert(1, ("merged, in floats", *texts, ""))
    rows(("", *summary.table.headers, "seconds"), cells, left=(0,))
    if summary.published:
        line(summary.published)
    line(summary.note + ("" if record["scale"] is None else f", λ = {record['scale']:g}"))
    if summary.details is not None:
        line()
        rows(summary.details.headers, summary.details.texts())
    line()
    alive = 1 - (1 if record["dead_share"] is None else record["dead_share"])
    body = []
    for column, ratio in record["energy"].items():
        without = ratio / alive if ratio is not None and alive else None
        figures = ratio, columns.of_what_spikes(column, ratio, record["analog_share"]), without
        body.append((column, *(figure(value, 3) for value in figures), columns.meanings()[column]))
    rows(("energy", "ratio", "of what spikes", "without dead work", "meaning"), body, left=(0, 4))
    line(columns.DEFINITION, fairness(record))
    if warning := dearer(record):
        line(f"warning: {warning}")
    if summary.parts is not None:
        each, number = summary.parts
        original = record["original_pj"] / number / 1e6
        read = {name: record["energy"].get(name) for name in columns.READINGS}
        ratios = [f"{name} {ratio * original:.4g} µJ" for name, ratio in read.items() if ratio is not None]
        line(f"energy per {each}: original {original:.4g} µJ; {', '.join(ratios)}")


def compared(networks: list[dict[str, Any]], profile: str) -> None:
    """Print spiking and integer networks on the same images, each with the ratio of its column."""
    more = {
        "minus spiking": [minus(one, error=True) for one in headlines([row["beside"] for row in networks])],
        "KL, nats": [figure(row.get("kl"), 4) for row in networks],
        "energy": [figure(row["ratio"], 3) for row in networks],
        "all charged": [figure(row["strict"], 3) for row in networks],
        "column": [row["column"] for row in networks],
    }
    line()
    rows(*comparison("network", [row["network"] for row in networks], headlines(networks), more))
    column = networks[0]["column"]
    if columns.integer_reading(column) is None:
        line(f"no row with 8-bit weights: {columns.column_of(column).meaning}")
    prices = f"energy by {profile}, in the column named; all charged: in its strict column"
    line("differences are of the same inputs; ± is their paired standard error", prices)


def forms(measured: list[Row], batch: int) -> None:
    """Print the forms of a run by score, time and size, and why others do not exist."""
    done = [row for row in measured if not row.refused]
    more = {
        f"ms per batch of {batch}": [f"{row.milliseconds:.1f}" for row in done],
        "MB": [f"{(row.bytes or 0) / 1e6:.2f}" for row in done],
    }
    rows(*comparison("form", [row.form for row in done], [row.headline for row in done], more), left=(0,))
    for row in measured:
        if row.refused:
            line(f"{row.form}: {row.refused}")


def ledger(result: Evaluation) -> None:
    """Print the ledger of each site: MACs, its share of the paper's ratio, and how its neurons fire."""
    cells = []
    for row in result.ledger.table():
        firing = "8 bits" if row["dense"] else "analog"
        if row["spiking"]:
            firing = f"{row['spikes per neuron']:.3f}"
        ratio = f"{row['ratio']:.4f}" if row["drives"] else "–"
        shares = f"{100 * row['active share']:.1f}", f"{100 * row['saturated share']:.2f}"
        cells.append((row["site"], f"{row['macs'] / result.images:.4g}", ratio, firing, *shares))
    headers = ("site", "MACs per image", f"{columns.PAPER} ratio", "spikes/neuron", "active %", "saturated %")
    line()
    rows(headers, cells)


def search(run: Path, data: str, title: str, result: Search, record: dict[str, Any]) -> None:
    """Print the front, the best λ, its cost, and the energy before and after, with a warning if it rises."""
    best, column, spent = result.best, record["energy"], record["spent"]
    analog, before, after, budget = (spent[name] for name in ("analog_share", "before", "after", "budget"))
    cost = ""
    if column is not None:
        cells = []
        for trial in result.front():
            spiking = figure(columns.of_what_spikes(column, trial.energy, analog), 3)
            cells.append((f"{trial.scale:.4f}", f"{trial.value:.4g}", figure(trial.energy, 3), spiking))
        rows(("λ", title, f"energy ({column})", "of what spikes"), cells)
        if best.energy is not None:
            cost = f", energy {columns.beside(column, best.energy, analog)} ({column})"
    line(
        f"best λ    {best.scale:.4f}: {title} {best.value:.4g}{cost}",
        f"cost      {record['forwards']} forward passes in {record['seconds']:.0f} s; evaluating the whole folder once "
        f"takes {record['full_evaluation_forwards']}",
        f"kept in   {run}; trials in {run / SEARCHES}",
    )
    if before is None or after is None:  # neurons whose spikes have no count
        return
    limit = "" if budget is None else f"; the run's budget is {budget:g}"
    line(
        f"energy    {before:.3f} → {columns.beside(spent['column'], after, analog)} ({spent['column']}, {profile().name}{limit})"
    )
    if after > 1.05 * (before if budget is None else min(before, budget)):
        wanted = f"{before if budget is None else budget:.3g}"
        words = ("search", str(run), "--data", data, "--budget", wanted, "--energy", spent["column"])
        line(
            f"warning   the λ that is kept spends {after / before:.2f} times the energy of before. "
            f"To stay within it, as a ratio of all MACs: {shlex.join(['onespike', *words])}"
        )


def ablation(measured: list[ablate.Row]) -> None:
    """Print each pass of a run alone, left out, and all together."""
    first, figures = measured[0].headline, measured[0].figures
    more = {"KL, nats": [figure(row.figures["kl"], 4) for row in measured]} if "kl" in figures else {}
    for column in columns.holdable():
        more[column] = [figure(row.figures["energy"].get(column), 3) for row in measured]
    rows(*comparison("passes", [row.what for row in measured], [row.headline for row in measured], more))
    if first.original is not None:
        line(f"original: {first.title} {first.original:.2f}")
    line(
        f"energy {columns.OF_ALL_MACS}, {100 * (1 - figures['analog_share']):.1f} % of which spike, "
        f"at the prices of {figures.get('profile', DEFAULT)}"
    )


def checkup(measured: Checkup, findings: list[Finding]) -> None:
    """Print what the doctor measured, and what follows from it."""
    head = measured.headline
    stated = "" if measured.published is None else f" (published {measured.published:.2f} %)"
    if head.original is None or head.spiking is None:
        line("accuracy       no labels, so the divergence to the original stands for the loss")
    else:
        bounds = "" if head.bounds is None else f" ({spelled(head.bounds)})"
        line(f"{head.title}: original {head.original:.2f}{stated}, spiking {head.spiking:.2f}{bounds}")
    line(f"divergence     {measured.kl:.4f} nats on {measured.probe_images} images", "")
    cells = []
    for kind, kl in sorted(measured.kinds.items(), key=lambda item: item[1]):
        less = round(100 * (1 - kl / (measured.kl or 1.0)))  # what rounds to nothing has no sign
        cells.append((kind, f"{kl:.4f}", str(less).replace("-", "−")))
    rows(("kind of site", "KL while it is analog", "less, %"), cells)
    line()
    if measured.scales:
        cells = [(f"{r['scale']:g}", f"{r['kl']:.4f}", figure(r["energy"], 3)) for r in measured.scales]
        rows(("λ", "KL", f"energy ({measured.energy})"), cells)
        line()
    for name, reason in measured.refused.items():
        line(f"not measured   {name}: {reason}")
    if not findings:
        line("nothing worth doing: no remedy that was measured takes away a tenth of the loss")
    for number, finding in enumerate(findings, 1):
        share = "" if finding.share is None else f" (about {100 * finding.share:.0f} % of the loss)"
        title = f"{number}. {'mistake' if finding.alarming else 'gain'}: {finding.title}{share}"
        line(title, f"   {finding.evidence}", f"   try: {finding.command}")


def summary(folder: Path, recipe: Recipe) -> None:
    """Print the figures of a run's report."""
    record = reported(folder)
    evaluation, column, calibration = record["evaluation"], record["energy"], record["calibration"]
    head, ratio = task_of(evaluation).headline(evaluation), evaluation["energy"][column]
    bounds = "" if head.bounds is None else f" ({spelled(head.bounds, 2)})"
    line(
        "",
        f"done           {record['network']['spec']} by {recipe!r}",
        f"calibrated on  {calibration['images']} {record.get('unit', 'images')} of {calibration['source']}",
        f"measured on    {evaluation['images']} others of {record['data']['source']}",
        f"score          {head.title}: {figure(head.original)} → {figure(head.spiking)}{bounds}",
    )
    if head.difference is not None:
        paired = "" if head.paired is None else f" ({spelled(head.paired, 2, sign=True)})"
        line(f"difference     {minus(head)}{paired}")
    energy = "–" if ratio is None else columns.beside(column, ratio, evaluation["analog_share"])
    line(
        f"energy         {energy} ({column}, {evaluation['profile']})",
        f"report         {folder / FOLDER / 'report.html'}",
        *(f"exported       {file}" for file in sorted((folder / "export").glob("network*"))),
    )


def export(done: Exported) -> None:
    """Print what was written, and the result of the comparison."""
    compared, times, indent = done.comparison, done.milliseconds, " " * 14
    origins = f", which go back to {compared.origins}" if compared.differ else ""
    title = "written to" if times else "verified"
    line(
        f"{title:<15}{done.file} ({done.bytes / 1e6:.2f} MB, {done.format}, {done.form} form)",
        f"run by         {done.runtime}, on {compared.inputs} inputs",
        f"spike counts   {compared.counts} compared, {compared.differ} differ{origins}"
        if compared.counts
        else "spike counts   not compared: they have no names in this file",
    )
    for site, (counts, differ, largest) in list(compared.differing.items())[:5]:
        line(f"{indent} {site}: {differ} of {counts}, by at most {largest}")
    if len(compared.differing) > 5:
        line(f"{indent} and at {len(compared.differing) - 5} more sites: see {beside(done.file, 'verified')}")
    line(
        f"answers        {compared.answers_differ} of {compared.inputs} differ; outputs differ by at most "
        f"{compared.output_difference:.2g} of {compared.output_largest:.3g}",
        *(f"note: {note}" for note in done.notes),
    )
    if times:
        line(
            f"milliseconds   {times['file']:.1f} for a batch of {done.batch} there, {times['onespike']:.1f} here"
        )


def costs_per_token(prefill: Spent, decode: Spent, column: str) -> None:
    """Print the cost per token of reading prompts and of writing."""
    cells = []
    for name, spent in (("prefill", prefill), ("decode", decode)):
        if not (tokens := spent.tokens):
            cells.append((name, "0", *"––––––"))
            continue
        each, original = spent.energy_pj / tokens / 1e6, spent.original_pj / tokens / 1e6
        spiking = columns.of_what_spikes(column, each / original, 1 - spent.spiking_pj / spent.original_pj)
        energies = f"{each:.4g}", f"{original:.4g}", f"{each / original:.3f}", figure(spiking, 3)
        spikes, speed = f"{spent.spikes / tokens:,.0f}", f"{tokens / spent.seconds:.1f}"
        cells.append((name, str(tokens), spikes, *energies, speed))
    energies = "µJ/token", "original µJ/token", f"ratio ({column})", "of what spikes"
    rows(("", "tokens", "spikes/token", *energies, "tokens/s"), cells, left=(0,))
    prices = f"ratio {columns.OF_ALL_MACS}; prices of {profile().name}"
    line(f"{prices}; tokens/s with counting, which takes most time")


def hardware(sheet: Sheet) -> None:
    """Print the sheet of a run's integer form."""
    sites, operations = sheet_tables(sheet.to_dict())
    rows(*sites, left=(0, 1))
    line()
    rows(*operations, left=(0, 1, 3))
    floats = ", ".join(f"{row.layer} ({row.number} multiplications)" for row in sheet.floats)
    line("", f"products in floats: {floats or 'none'}")


def chips(pair: NetworkPair) -> None:
    """Warn of spikes that few chips can carry, or that cost more than the products they replace."""
    reasons, remedies = list[str](), ["--preset chip"]
    counts = pair.thresholds.provenance.get("energy", {}).get("ratios", {}).get("counts", 0.0)
    neurons = (place for _, place in named_neurons(pair.snn) if is_spiking(place))
    largest = max((neuron.code().largest for neuron in neurons if isinstance(neuron, Neuron)), default=0)
    if counts > 1:
        reasons.append(f"they add {counts:.2f} times per MAC of the original (counts)")
        remedies += ["--energy counts --budget 0.1"] if pair.recipe.passes else []
    if largest >= 2**BITS:
        reasons.append(f"the largest level, {largest}, has {largest.bit_length()} bits")
        remedies.append(f"--set payload_bits={BITS}")
    if reasons:
        advice = f"these spikes are not for chips: {' and '.join(reasons)}. Take {', or '.join(remedies)}."
        say(f"{pair.loaded.spec}: {advice}", start=WARNING)
