"""Sweeps and figures: λ, levels, softmax thresholds; time for space (App. D); activations and their spikes."""

import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor

from onespike.energy.columns import PAPER
from onespike.errors import DataError
from onespike.neurons import Scale, ScaleFire
from onespike.recipe import Recipe, preset
from onespike.runtime.forward import evaluating
from onespike.sites import Operand, Site, Visit, visiting
from onespike.sites.tracer import Tracer
from onespike.studies.reproduce.bench import SPREAD, Bench
from onespike.studies.reproduce.study import Row, curves, study
from onespike.studies.reproduce.tables import literal, row

SWEPT_SCALES = (1.0, 0.7, 0.5, 0.36, 0.252, 0.18, 0.125, 0.09, 0.06)
TIMESTEPS = (1, 2, 4, 8, 16, 32, 64)
TIMED_IMAGES, REPEATS = 16, 3
STAGES = {
    "pre-QKV": ("*qkv:linear0_input", "*query:linear0_input", "*q_proj:linear0_input"),
    "post-GELU": ("*fc2:linear0_input", "*.output.dense:linear0_input", "*mlp.3:linear0_input"),
    "post-softmax": (),
}
"""The three stages of the paper's figure, by the names of their consumers; softmax is found by its role."""
HISTOGRAM_SCALES = (1.0, 0.5, 0.252, 0.1)
BINS, IMAGES = 60, 16


@study(
    "figure-scale",
    "Accuracy and energy over the scaling factor λ",
    "The paper's figure has no table; it states λ = 0.252 as a good compromise for ViT-Base/16.",
    draw=curves("scale", "score", PAPER, log=True),
)
def scale(bench: Bench) -> Iterator[Row]:
    base = literal(bench)
    for scale in SWEPT_SCALES:
        yield row(bench, {"scale": scale}, base.replace(scale=scale), "ann")


@study(
    "sweep-levels",
    "How many levels: M of eq. 12, and N of linear and exponential fire functions",
    "λ is searched for each row, without labels. With one more level per side, a spike costs no more additions unless it "
    "is fired.",
    draw=curves("levels per side", "score", PAPER, by="fire function"),
)
def levels(bench: Bench) -> Iterator[Row]:
    for kind, numbers in {"mixed": (2, 4, 6, 8, 10), "linear": (2, 4, 8), "exponential": (2, 4, 8)}.items():
        for number in numbers:
            recipe = bench.searched(preset("sformer", levels=f"{kind}:{number}"), trials=8)
            case = {"fire function": kind, "M": number, "levels per side": 2 * number, "scale": recipe.scale}
            yield row(bench, case, recipe, "ann")


@study(
    "sweep-softmax-threshold",
    "The softmax threshold: the largest output or a percentile of them, per site, per head or for the model",
    "Eq. 16 divides the largest softmax output seen by the largest level, so one outlier sets the step. A percentile "
    "makes the step finer and clips what is above.",
)
def softmax(bench: Bench) -> Iterator[Row]:
    base = literal(bench)
    if not any(threshold.role == "softmax" for threshold in bench.calibrated(base).values()):
        raise DataError(f"sweep-softmax-threshold: {bench.loaded.spec} has no softmax. Give a transformer.")
    values = {
        "largest, per site": "site", "largest, per head": "head", "largest, the model": "model",
        "percentile 0.01": "percentile:0.01", "percentile 0.1": "percentile:0.1", "percentile 1": "percentile:1",
        "paper, 0.0035": 0.0035,
    }  # fmt: skip
    for title, value in values.items():
        yield row(bench, {"threshold": title}, base.replace(softmax=value), "ann")


def integrate_fire(timesteps: int) -> Recipe:
    return preset("if", steps=timesteps, placement="activation")


def multi_threshold(count: int) -> Recipe:
    return preset("mtn", levels=",".join(map(str, range(1, count + 1))) + ",", placement="activation")


@study(
    "figure-equivalence",
    "Integrate-and-fire over T steps against the multi-threshold neuron with N = T",
    "Neurons stand in place of ReLUs; θ is the largest activation seen in calibration, v(0) = θ/2. The paper's figure "
    "(CIFAR-10, ResNet-18) has no table; it shows both low below T = 25, then rising, the multi-threshold neuron above.",
    draw=curves("T", "score", "firing", by="neuron", log=True),
    network="cifar10-resnet18",
)
def equivalence(bench: Bench) -> Iterator[Row]:
    columns = ("metric", "ann", "score", "error", *SPREAD, "agreement", "kl", "firing", "seconds")
    for count in TIMESTEPS:
        for name, recipe in (("IF", integrate_fire(count)), ("MTN", multi_threshold(count))):
            measured = bench.measure(recipe)
            yield {"neuron": name, "T": count} | {k: measured[k] for k in columns if k in measured}


def timed(bench: Bench, recipe: Recipe, x: Tensor) -> dict[str, float]:
    """Return the milliseconds per input in neurons and in everything else, the best of several forwards."""
    snn, times = bench.converted(recipe), []
    for _ in range(REPEATS):
        in_neurons: list[float] = []

        def clock(operand: Operand, x: Tensor, seconds: list[float] = in_neurons) -> Tensor:
            started = time.perf_counter()
            value = operand.value(x)
            seconds.append(time.perf_counter() - started)
            return value

        with evaluating(snn), visiting(snn, Visit(clock)):
            started = time.perf_counter()
            snn(x)
            times.append((time.perf_counter() - started, sum(in_neurons)))
    whole, neurons = min(times)
    return {"neuron": 1e3 * neurons / len(x), "rest": 1e3 * (whole - neurons) / len(x)}


@study(
    "table-complexity",
    "Time of the neuron update and of the rest, and the firing rate: IF over T steps against one-step MTN",
    "The paper states orders: O(T) for both parts of integrate-and-fire, O(N) and O(1) for the multi-threshold neuron, and comparable "
    "firing rates. Here its closed form makes the neuron update O(1) too. Firing is spikes for each neuron and input.",
    network="cifar10-resnet18",
)
def complexity(bench: Bench) -> Iterator[Row]:
    x = bench.batch(bench.test, TIMED_IMAGES)
    for name, recipe in (
        *((f"IF, T = {t}", integrate_fire(t)) for t in (1, 8, 32)),
        *((f"MTN, N = {n}", multi_threshold(n)) for n in (1, 8, 32)),
    ):
        clocked = bench.once(f"time {name}", partial(timed, bench, recipe, x))
        neuron, rest = clocked["neuron"], clocked["rest"]
        times = {"neuron ms": neuron, "rest ms": rest, "ms per image": neuron + rest}
        yield {"neuron": name, **times, "firing": bench.measure(recipe)["firing"]}


def _chosen(bench: Bench) -> dict[str, Site]:
    """Return a site from the middle of the network for each stage."""
    thresholds = bench.calibrated(preset("sformer"))
    softmax = [site for site, threshold in thresholds.items() if threshold.role == "softmax"]
    chosen = {}
    for stage, globs in STAGES.items():
        named = [site for site in thresholds if any(fnmatchcase(str(site), glob) for glob in globs)]
        sites = named if globs else softmax
        if not sites:
            raise DataError(
                f"figure-distributions: {bench.loaded.spec} has no {stage} site. Give a vision transformer."
            )
        chosen[stage] = sites[len(sites) // 2]
    return chosen


@study(
    "figure-distributions",
    "Distributions of activations, and of their spikes at several λ",
    "One site for each stage, from the middle of the network. The shares of the spikes are those of the pre-QKV "
    "activations coded at each λ; zero is the silent neuron.",
    draw=curves("value", "share", by="scale", each="stage"),
)
def distributions(bench: Bench) -> list[Row]:
    def gather() -> dict[str, Any]:
        chosen = _chosen(bench)
        values: dict[Site, Tensor] = {}

        def observe(site: Site, x: Tensor) -> None:
            if site in chosen.values():
                values[site] = x.detach().flatten().float().cpu()

        x = bench.batch(bench.test, IMAGES)
        with evaluating(bench.ann):
            Tracer(bench.ann, observe).run(x)
        rows: list[Row] = []
        for stage, site in chosen.items():
            counts, edges = torch.histogram(values[site], BINS)
            middles, shares = (edges[1:] + edges[:-1]) / 2, counts / len(values[site])
            for value, share in zip(middles.tolist(), shares.tolist(), strict=True):
                case: Row = {"stage": stage, "site": str(site), "scale": None}
                rows.append({**case, "value": value, "share": share})
        site = chosen["pre-QKV"]
        x, threshold = values[site], bench.calibrated(preset("sformer"))[site]
        for scale in HISTOGRAM_SCALES:
            sides = (threshold.positive, threshold.negative)
            fired = ScaleFire(*sides, levels=threshold.levels, scale=Scale(scale))(x)
            for value, number in zip(*map(Tensor.tolist, fired.unique(return_counts=True)), strict=True):
                case = {"stage": "spikes", "site": str(site), "scale": scale}
                rows.append({**case, "value": value, "share": number / len(x)})
        return {"rows": rows}

    return list(bench.once("distributions", gather)["rows"])
