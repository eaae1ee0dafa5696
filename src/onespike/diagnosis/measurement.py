"""The doctor's measurements: one evaluation with a survey, variants of the run on a few inputs, the command for each."""

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
from onespike.adapters import NORMALIZATIONS, exchanged, normalization
from onespike.conversion.firing import is_spiking, named_neurons
from onespike.diagnosis.probe import Probe, analog, beyond_chance, outliers
from onespike.energy.survey import Survey
from onespike.errors import UsageError
from onespike.evaluation.pairwise import pairwise
from onespike.passes.chaining import check_recipe
from onespike.presets import FAST
from onespike.recipe import Recipe
from onespike.runs import NetworkPair
from onespike.runs.pipeline import spike
from onespike.runs.recipe_text import convert_command, spike_call
from onespike.runs.storage import WEIGHTS
from onespike.runtime.batches import count, split
from onespike.runtime.progress import progress
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
PASSES = FAST  # passes to measure for a run without passes; tuning would take hours
OUTLIER_PASSES = ("nearest", "layout", "tokens", "allocate")
"""Options that let levels reach the largest values, and give large tokens separate steps."""


@dataclass(frozen=True)
class Checkup:
    """Measured results, ready for JSON; from `kl` (in nats) on, of a few images, the probe."""

    evaluation: dict[str, Any]  # figures, energy and speed of both networks on all images
    published: float | None  # value of the headline
    headline: Headline  # the figure that runs are compared by
    overlap: int  # images that calibration has also seen
    calibration_images: int
    scale: float | None
    sites: dict[str, dict[str, Any]]  # the survey of each spiking site, with its share of saturated elements
    kl: float
    probe_images: int
    kinds: dict[str, float]  # kind of site → kl with that kind analog
    single: dict[str, float]  # likewise for the sites of the worst kinds
    scales: list[dict[str, Any]]  # λ, kl and energy of a sweep, and whether it beats the run beyond chance
    recalibrated: tuple[float, float]  # kl before and after calibrating on half of the probe
    variants: dict[str, tuple[float, float]]  # name → kl before and after, with the passes `used` but `tune`
    passes: tuple[float, float] | None  # kl without and with `PASSES`; None for a run that has passes
    used: tuple[str, ...]
    energy: str
    refused: dict[str, str]  # remedy → why it cannot be measured on this run
    normalizations: dict[str, float]  # name → how often the original is right, in percent
    better_normalization: str | None  # beyond chance
    outliers: dict[str, dict[str, Any]]  # site → values beyond its largest level, and their tokens
    commands: dict[str, str]  # remedy → command


def checkup(
    pair: NetworkPair, items: Items, run: Path | None, *, images: int = PROBE_IMAGES, batch_size: int = 16
) -> Checkup:
    """Measure a run, or networks in Python, on all these images once, and on `images` of them in many variants."""
    task, recipe = pair.loaded.task, pair.recipe
    items = task.named(items)
    survey = Survey(visits=max(1, images // batch_size))
    result = runs.evaluate_pair(pair, items, batch_size=batch_size, ledger=survey)
    few = limit(items, images)
    inputs = [x for x, _ in pair.loaded.batches(few, max(1, min(batch_size, len(few) // 2)))]
    probe = Probe(pair.ann, inputs, task)
    before = probe.distance(pair.snn)
    kinds, single = _sensitivity(pair, probe)
    normalizations, better = _normalizations(pair, few, inputs)
    recalibrated, variants, refused = _variants(pair, probe)
    tried = () if result.scale is None else progress("λ", len(PROBED_SCALES))(PROBED_SCALES)
    scales = [probe.at(pair.snn, scale, recipe.energy, before) for scale in tried]
    return Checkup(
        evaluation=result.to_dict(),
        published=pair.loaded.published_top1,
        headline=task.headline(result.metrics),
        overlap=len(runs.overlap(pair.data, items)),
        calibration_images=int(pair.thresholds.provenance["samples"]),
        scale=result.scale,
        sites=_sites(pair, survey),
        kl=before.kl,
        probe_images=len(few),
        kinds=kinds,
        single=single,
        scales=scales,
        recalibrated=recalibrated,
        passes=variants.pop("passes", None),
        variants=variants,
        used=recipe.passes,
        energy=recipe.energy,
        refused=refused,
        normalizations=normalizations,
        better_normalization=better,
        outliers=outliers(pair.snn, inputs, task),
        commands=commands(pair, run, scales, kinds, better),
    )


def _sites(pair: NetworkPair, survey: Survey) -> dict[str, dict[str, Any]]:
    saturated = {row["site"]: row["saturated share"] for row in survey.table()}
    sites = {name: row.to_dict() for name, row in survey.details.items()}
    for name, row in sites.items():
        del row["histogram"]
        row |= {"saturated": saturated[name], "calibrated_largest": pair.thresholds[name].largest}
    return sites


def _sensitivity(pair: NetworkPair, probe: Probe) -> tuple[dict[str, float], dict[str, float]]:
    """Return the divergence while a kind of site stays analog, and while one site of the worst kinds does."""

    def without(what: str, names: Sequence[str], name_of: Callable[[Site], str]) -> dict[str, float]:
        divergences = {}
        for name in progress(f"one {what} analog at a time", len(names))(names):
            with analog(pair.snn, lambda site, name=name: name_of(site) == name):  # type: ignore[misc]
                divergences[name] = probe.distance(pair.snn).kl
        return divergences

    sites = [site for site, neuron in named_neurons(pair.snn) if is_spiking(neuron)]
    names = list(dict.fromkeys(site.kind for site in sites))
    kinds = without("kind of site", names, lambda site: site.kind)
    worst = sorted(names, key=lambda name: kinds[name])[:WORST_KINDS]
    return kinds, without("site", [str(site) for site in sites if site.kind in worst], str)


def _variants(
    pair: NetworkPair, probe: Probe
) -> tuple[tuple[float, float], dict[str, tuple[float, float]], dict[str, str]]:
    """Calibrate again on one half of the probe, by the same recipe and by others; measure on the other half.

    The run's passes are part of all of them, but for `tune`, which takes long.
    """
    half, rest = probe.parts[::2], Probe(pair.ann, probe.parts[1::2] or probe.parts, probe.task)
    # Some passes compare batches, so that there must be several.
    inputs = [part for batch in half for part in split(batch, -(-count(batch) // 2))]

    def measured(recipe: Recipe) -> float:
        return rest.distance(spike(pair.ann, inputs, recipe, share_weights=True, task=pair.loaded.task)).kl

    same = pair.recipe.replace(passes=tuple(name for name in pair.recipe.passes if name != "tune"))
    before, again = rest.distance(pair.snn).kl, measured(same)
    tried: dict[str, tuple[float, float]] = {}
    refused: dict[str, str] = {}
    passes = {"passes": {"passes": PASSES}} if PASSES and not same.passes else {}
    for name, changes in progress("other recipes", 1 + len(VARIANTS))({**passes, **VARIANTS}.items()):
        try:
            recipe = same.replace(**changes)
            if recipe != same:
                tried[name] = (again, measured(recipe))
        except UsageError as error:
            refused[name] = str(error)
    return (before, again), tried, refused


def _normalizations(
    pair: NetworkPair, items: Items, inputs: Sequence[Any]
) -> tuple[dict[str, float], str | None]:
    """Return how often the original is right under each known normalization, and the one that is clearly better."""
    task = pair.loaded.task
    files = items.labeled and all(isinstance(x, Tensor) for x in inputs) and items[0].content is None
    current = normalization(pair.loaded.reading.transform, task.load(items[0]).size) if files else None
    if current is None:
        return {}, None
    original = {} if pair.loaded.reading.replaced is None else {OWN_LIBRARY: pair.loaded.reading.replaced}
    labels = torch.tensor([item.label for item in items]).split([len(x) for x in inputs])
    right, fit = dict[str, Tensor](), dict[str, float]()
    for name, other in {"as given": current, **original, **NORMALIZATIONS}.items():
        changed = ((exchanged(x, current, other), label) for x, label in zip(inputs, labels, strict=True))
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


def commands(
    pair: NetworkPair, run: Path | None, scales: list[Any], kinds: dict[str, float], better: str | None
) -> dict[str, str]:
    """Return the command for each remedy: a new run gets a name beside the old one; without a folder, calls of Python."""
    if run is None:
        again: Callable[..., str] = spike_call
        words = {
            "calibration": spike_call(),
            "evaluate": "onespike.evaluate(model, snn, other_batches)",
            "search": 'onespike.search(model, snn, loader, objective="kl", trials=12)',
            "normalization": "",
        }
    else:
        stored = run / WEIGHTS
        again = partial(convert_command, pair, f"{run}-2", weights=stored if stored.exists() else None)
        searching = ("onespike", "search", str(run), "--data", str(pair.data["source"]))
        words = {
            "calibration": again(images=max(128, len(pair.data["names"]))),
            "evaluate": shlex.join(("onespike", "evaluate", str(run), "--data", "OTHER-IMAGES")),
            "search": shlex.join((*searching, "--objective", "kl", "--trials", "12")),
            "normalization": shlex.join(("onespike", "convert", pair.loaded.spec, "--help")),
        }
    if better is not None:
        words["normalization"] = again(normalization=NORMALIZATIONS.get(better))
    if scales:
        best = min(scales, key=lambda row: float(row["kl"]))
        spends = pair.recipe.budget is not None and best["energy"] is not None
        change = {"budget": round(best["energy"], 3)} if spends else {"scale": best["scale"]}
        words["scale"] = again(**change)
    else:  # neurons without λ have nothing to search
        words["search"] = words["calibration"]
    if kinds:
        words["kind"] = again(exclude=(*pair.recipe.exclude, min(kinds, key=lambda kind: kinds[kind])))
    reaching = tuple(dict.fromkeys((*pair.recipe.passes, *OUTLIER_PASSES)))
    per_site = tuple(dict.fromkeys((*pair.recipe.passes, "allocate")))
    words["per site"] = words["search"]
    passes = {"passes": PASSES, "outliers": reaching, "per site": per_site}
    for name, changes in {**{name: {"passes": names} for name, names in passes.items()}, **VARIANTS}.items():
        with suppress(UsageError):  # several timesteps and some neurons take no passes
            check_recipe(pair.recipe.replace(**changes))
            words[name] = again(**changes)
    return words
