"""The doctor's measurements: one evaluation with a survey, then variants of the run on a few inputs."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onespike import runs
from onespike.adapters import KNOWN, Normalization, exchanged, normalization
from onespike.conversion.attach import named_neurons
from onespike.diagnosis.outliers import outliers
from onespike.diagnosis.probe import Probe, analog, beyond_chance
from onespike.energy.survey import Survey
from onespike.errors import UsageError
from onespike.evaluation.pairwise import pairwise
from onespike.neurons import Neuron
from onespike.passes.chaining import check_recipe
from onespike.recipe import PRESETS, Recipe
from onespike.runs import NetworkPair, Progress, no_progress
from onespike.runs.as_command import convert_command, spike_call
from onespike.runs.one_call import spike
from onespike.runs.storage import WEIGHTS
from onespike.runtime.batches import count, split
from onespike.sites import Site
from onespike.tasks import Headline, Items, limit

PROBE_IMAGES = 64
PROBED_SCALES = (1.0, 0.6, 0.35, 0.25, 0.18, 0.12, 0.08)
WORST_KINDS = 2
OWN_LIBRARY = "of its own library"
VARIANTS: dict[str, dict[str, Any]] = {
    "thresholds per channel": {"granularity": "channel"},
    "softmax thresholds per head": {"softmax": "head"},
    "nearest rounding": {"rounding": "nearest"},
}
"""Recipes that may do better; each is calibrated on one half of the probe and measured on the other."""
PASSES: tuple[str, ...] = tuple(name for name in PRESETS["best"].settings["passes"] if name != "tune")
"""Passes to measure for a run without passes; tuning would take hours."""

OUTLIER_PASSES = ("nearest", "layout", "tokens", "allocate")
"""Options that let levels reach the largest values, and give large tokens separate steps."""


@dataclass(frozen=True)
class Checkup:
    """Measured results, ready for JSON; `findings` needs nothing else. Divergences (kl) are in nats.

    Attributes:
        evaluation: figures, energy and speed of both networks on all images.
        published: the published value of the headline figure.
        headline: that figure of both networks, on these images.
        overlap: number of images that calibration has also seen.
        calibration_images: number of calibration images.
        percentile: share of values (%) that each threshold should leave above it.
        sites: the survey of each spiking site, by name, with its share of saturated elements.
        kl: divergence of the run on the probe.
        probe_images: number of inputs in the probe.
        kinds: kind of site → kl with that kind analog.
        single: site → kl with that one site analog, for the worst kinds.
        scales: λ, kl and energy of a sweep, and whether it beats the run beyond chance.
        recalibrated: kl before and after calibrating on half of the probe, measured on the other half.
        variants: name → kl before and after, with the run's passes but `tune`.
        passes: kl without passes and with `PASSES` at the same energy; None for a run that has passes.
        used: the passes of the run.
        energy: the energy column of the run.
        budget: the energy that its passes had to meet.
        refused: name of a remedy → why it cannot be measured on this run.
        normalizations: name → how often the original network is right, in percent; `as given` is the run's own.
        better_normalization: the name of one that beats it beyond chance.
        outliers: site → values beyond its largest level, in the original network, and the tokens that carry them.
        commands: the command for each remedy.
    """

    evaluation: dict[str, Any]
    published: float | None
    headline: Headline
    overlap: int
    calibration_images: int
    percentile: float
    scale: float | None
    sites: dict[str, dict[str, Any]]
    kl: float
    probe_images: int
    kinds: dict[str, float]
    single: dict[str, float]
    scales: list[dict[str, Any]]
    recalibrated: tuple[float, float]
    variants: dict[str, tuple[float, float]]
    passes: tuple[float, float] | None
    used: tuple[str, ...]
    energy: str
    budget: float | None
    refused: dict[str, str]
    normalizations: dict[str, float]
    better_normalization: str | None
    outliers: dict[str, dict[str, Any]]
    commands: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def checkup(
    pair: NetworkPair,
    items: Items,
    run: Path | None,
    *,
    images: int = PROBE_IMAGES,
    batch_size: int = 16,
    progress: Progress = no_progress,
) -> Checkup:
    """Measure a run on these images: all of them once, and `images` of them in many variants.

    Without a folder, for networks in Python, remedies are calls of Python.
    """
    items = pair.loaded.task.named(items, pair.loaded)
    survey = Survey(visits=max(1, images // batch_size))
    result = runs.evaluate_pair(pair, items, batch_size=batch_size, progress=progress, ledger=survey)
    few = limit(items, images)
    inputs = [x for x, _ in pair.loaded.batches(few, max(1, min(batch_size, len(few) // 2)))]
    probe = Probe(pair.ann, inputs, pair.loaded.task)
    own = probe.distance(pair.snn)
    kinds = _kinds(pair, probe, progress)
    normalizations, better = _normalizations(pair, few, inputs)
    recalibrated, variants, refused = _variants(pair, probe, progress)
    saturated = {str(site): row.saturated / max(row.elements, 1) for site, row in survey.sites.items()}
    sites = {name: {**row.to_dict(), "saturated": saturated[name]} for name, row in survey.details.items()}
    for name, row in sites.items():
        row["calibrated_largest"] = pair.thresholds[name].largest
        del row["histogram"]
    scales = probe.sweep(pair.snn, PROBED_SCALES, pair.recipe.scale, pair.recipe.energy, progress)
    return Checkup(
        evaluation=result.to_dict(),
        published=pair.loaded.published_top1,
        headline=pair.loaded.task.headline(result.metrics),
        overlap=len(runs.overlap(pair.data, items)),
        calibration_images=int(pair.thresholds.provenance["samples"]),
        percentile=pair.recipe.percentile,
        scale=result.scale,
        sites=sites,
        kl=own.kl,
        probe_images=len(few),
        kinds=kinds,
        single=_single(pair, probe, kinds, progress),
        scales=scales,
        recalibrated=recalibrated,
        variants={name: found for name, found in variants.items() if name in VARIANTS},
        passes=variants.get("passes"),
        used=pair.recipe.passes,
        energy=pair.recipe.energy,
        budget=pair.recipe.budget,
        refused=refused,
        normalizations=normalizations,
        better_normalization=better,
        outliers=outliers(pair.snn, inputs, pair.loaded.task),
        commands=_commands(pair, run, items, scales, kinds, better),
    )


def _spiking(pair: NetworkPair) -> list[Site]:
    return [site for site, neuron in named_neurons(pair.snn) if isinstance(neuron, Neuron)]


def _without(pair: NetworkPair, probe: Probe, chosen: Callable[[Site], bool]) -> float:
    with analog(pair.snn, chosen):
        return probe.distance(pair.snn).kl


def _kinds(pair: NetworkPair, probe: Probe, progress: Progress) -> dict[str, float]:
    every = list(dict.fromkeys(site.kind for site in _spiking(pair)))
    shown = progress("one kind of site analog at a time", len(every))(every)
    return {each: _without(pair, probe, lambda site, each=each: site.kind == each) for each in shown}  # type: ignore[misc]


def _single(pair: NetworkPair, probe: Probe, kinds: dict[str, float], progress: Progress) -> dict[str, float]:
    worst = sorted(kinds, key=lambda k: kinds[k])[:WORST_KINDS]
    every = [site for site in _spiking(pair) if site.kind in worst]
    shown = progress("one site analog at a time", len(every))(every)
    return {str(each): _without(pair, probe, lambda site, each=each: site == each) for each in shown}  # type: ignore[misc]


def _variants(
    pair: NetworkPair, probe: Probe, progress: Progress
) -> tuple[tuple[float, float], dict[str, tuple[float, float]], dict[str, str]]:
    """Calibrate again on one half of the probe, by the same recipe and by others; measure on the other half.

    All of them go through the run's passes; `tune` is left out on both sides, since it takes long.
    """
    half, rest = probe.halves()
    inputs = [
        part for batch in half for part in split(batch, -(-count(batch) // 2))
    ]  # some passes compare batches

    def measured(recipe: Recipe) -> float:
        return rest.distance(spike(pair.ann, inputs, recipe, share_weights=True, task=pair.loaded.task)).kl

    own = pair.recipe.replace(passes=tuple(name for name in pair.recipe.passes if name != "tune"))
    before, again = rest.distance(pair.snn).kl, measured(own)
    tried: dict[str, tuple[float, float]] = {}
    refused: dict[str, str] = {}
    remedies = {"passes": {"passes": PASSES}} if PASSES and not own.passes else {}
    for name, changes in progress("other recipes", 1 + len(VARIANTS))({**remedies, **VARIANTS}.items()):
        try:
            recipe = own.replace(**changes)
            if recipe != own:
                tried[name] = (again, measured(recipe))
        except UsageError as error:
            refused[name] = str(error)
    return (before, again), tried, refused


def _normalizations(
    pair: NetworkPair, items: Items, inputs: Sequence[Any]
) -> tuple[dict[str, float], str | None]:
    """Return how often the original is right under each known normalization, and the one that is clearly better."""
    task = pair.loaded.task
    if not items.labeled or not all(isinstance(x, Tensor) for x in inputs):
        return {}, None
    if items[0].content is not None:  # no file of an image
        return {}, None
    given = normalization(pair.loaded.transform, task.load(items[0]).size)
    if given is None:
        return {}, None
    labels = torch.tensor([item.label for item in items]).split([len(x) for x in inputs])
    right, fit = dict[str, Tensor](), dict[str, float]()
    for name, other in {"as given": given, **_candidates(pair)}.items():
        changed = ((exchanged(x, given, other), label) for x, label in zip(inputs, labels, strict=True))
        judged = [task.right(output, label) for _, label, (output,) in pairwise((pair.ann,), changed)]
        answers = [answer for answer in judged if answer is not None]
        if len(answers) < len(judged):
            return {}, None
        right[name] = torch.cat([hits for hits, _ in answers])
        fit[name] = float(torch.cat([likelihoods for _, likelihoods in answers]).mean())
    best = max(fit, key=lambda name: fit[name])  # likelihood separates similar results with equal accuracy
    if OWN_LIBRARY in right and not beyond_chance(right[best], right[OWN_LIBRARY]):
        best = OWN_LIBRARY
    scores = {name: 100 * float(hits.double().mean()) for name, hits in right.items()}
    return scores, best if beyond_chance(right[best], right["as given"]) else None


def _candidates(pair: NetworkPair) -> dict[str, Normalization]:
    return KNOWN if pair.loaded.replaced is None else {OWN_LIBRARY: pair.loaded.replaced, **KNOWN}


def _commands(
    pair: NetworkPair,
    run: Path | None,
    items: Items,
    scales: list[dict[str, Any]],
    kinds: dict[str, float],
    better: str | None,
) -> dict[str, str]:
    """Return the command for each remedy; a new run gets a name beside the old one."""
    if run is None:
        again: Callable[..., str] = spike_call
        search = 'onespike.search(model, snn, loader, objective="kl", trials=12)'
        commands = {
            "calibration": spike_call(),
            "evaluate": "onespike.evaluate(model, snn, other_batches)",
            "search": search,
            "normalization": "",
            "per site": search,
        }
    else:
        stored = run / WEIGHTS
        again = partial(convert_command, pair, f"{run}-2", weights=stored if stored.exists() else None)
        searched = ("onespike", "search", str(run), "--data", str(pair.data["source"]))
        commands = {
            "calibration": again(images=max(128, len(pair.data["names"]))),
            "evaluate": shlex.join(("onespike", "evaluate", str(run), "--data", "OTHER-IMAGES")),
            "search": shlex.join((*searched, "--objective", "kl", "--trials", "12")),
            "normalization": shlex.join(("onespike", "convert", pair.loaded.spec, "--help")),
            "per site": shlex.join((*searched, "--per-site", "kind")),
        }
    if not scales:  # neurons without λ have nothing to search
        commands["search"] = commands["per site"] = commands["calibration"]
    if better is not None:
        commands["normalization"] = again(normalization=KNOWN.get(better))
    if scales:
        best = min(scales, key=lambda row: float(row["kl"]))
        spends = pair.recipe.budget is not None and best["energy"] is not None
        commands["scale"] = again(
            **({"budget": round(best["energy"], 3)} if spends else {"scale": best["scale"]})
        )
    if kinds:
        worst = min(kinds, key=lambda k: kinds[k])
        commands["kind"] = again(exclude=(*pair.recipe.exclude, worst))
    reaching = tuple(dict.fromkeys((*pair.recipe.passes, *OUTLIER_PASSES)))
    remedies = {"passes": {"passes": PASSES}, "outliers": {"passes": reaching}, **VARIANTS}
    for name, changes in remedies.items():
        with suppress(UsageError):  # several timesteps and some neurons take no passes
            check_recipe(pair.recipe.replace(**changes))
            commands[name] = again(**changes)
    return commands
