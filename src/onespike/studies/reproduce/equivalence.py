"""Time for space: integrate-and-fire over T steps against one step with T thresholds, in place of ReLUs (App. D)."""

from __future__ import annotations

import time

from torch import Tensor, nn

from onespike.recipe import Recipe, preset
from onespike.runtime.forward import evaluating
from onespike.sites import Operand, Visitor, visiting
from onespike.studies.reproduce.bench import SPREAD, Bench
from onespike.studies.reproduce.draw import bars, curves
from onespike.studies.reproduce.study import Row, study
from onespike.tasks import limit

TIMESTEPS = (1, 2, 4, 8, 16, 32, 64)
TIMED_IMAGES, REPEATS = 16, 3


def integrate_fire(steps: int) -> Recipe:
    return preset("if", steps=steps, placement="activation")


def multi_threshold(count: int) -> Recipe:
    return preset("mtn", levels=",".join(map(str, range(1, count + 1))) + ",", placement="activation")


@study(
    "figure-equivalence",
    "Integrate-and-fire over T steps against the multi-threshold neuron with N = T",
    curves("T", "score", "firing", by="neuron", log=True),
    "Neurons stand in place of ReLUs; θ is the largest activation seen in calibration, v(0) = θ/2. The paper's figure "
    "(CIFAR-10, ResNet-18) has no table; it shows both low below T = 25, then rising, the multi-threshold neuron above.",
    network="cifar10-resnet18",
)
def equivalence(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for steps in TIMESTEPS:
        for name, recipe in (("IF", integrate_fire(steps)), ("MTN", multi_threshold(steps))):
            found = bench.measure(recipe)
            kept = {
                k: found[k]
                for k in ("metric", "ann", "score", "error", *SPREAD, "agreement", "kl", "firing", "seconds")
                if k in found
            }
            rows.append({"neuron": name, "T": steps, **kept})
    return rows


class _Stopwatch(Visitor):
    """A visitor that adds up the time spent in neurons."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def visit(self, operand: Operand, x: Tensor) -> Tensor:
        started = time.perf_counter()
        value = operand.value(x)
        self.seconds += time.perf_counter() - started
        return value


def timed(snn: nn.Module, x: Tensor) -> tuple[float, float]:
    """Return the seconds in neurons and in everything else for one forward, the best of several."""
    best = (float("inf"), 0.0)
    for _ in range(REPEATS):
        watch = _Stopwatch()
        started = time.perf_counter()
        with evaluating(snn), visiting(snn, watch):
            snn(x)
        best = min(best, (time.perf_counter() - started, watch.seconds))
    return best[1], best[0] - best[1]


@study(
    "table-complexity",
    "Time of the neuron update and of the rest, and the firing rate: IF over T steps against one-step MTN",
    bars("neuron", "ms per image", "firing"),
    "The paper states orders: O(T) for both parts of integrate-and-fire, O(N) and O(1) for the multi-threshold neuron, and comparable "
    "firing rates. Here its closed form makes the neuron update O(1) too. Firing is spikes for each neuron and input.",
    network="cifar10-resnet18",
)
def complexity(bench: Bench) -> list[Row]:
    x, _ = next(bench.labeled(limit(bench.test, TIMED_IMAGES), TIMED_IMAGES))
    rows: list[Row] = []
    for name, recipe in (
        *((f"IF, T = {t}", integrate_fire(t)) for t in (1, 8, 32)),
        *((f"MTN, N = {n}", multi_threshold(n)) for n in (1, 8, 32)),
    ):

        def stop(recipe: Recipe = recipe) -> dict[str, float]:
            neuron, rest = timed(bench.converted(recipe), x)
            return {"neuron": 1e3 * neuron / len(x), "rest": 1e3 * rest / len(x)}

        clocked = bench.once(f"time {name}", stop)
        rows.append(
            {"neuron": name, "neuron ms": clocked["neuron"], "rest ms": clocked["rest"],
             "ms per image": clocked["neuron"] + clocked["rest"], "firing": bench.measure(recipe)["firing"]}
        )  # fmt: skip
    return rows
