"""The verbs `evaluate` and `verify`: a pair of networks and inputs → figures."""

from __future__ import annotations

from pathlib import Path

from onespike.energy.ledger import Ledger
from onespike.evaluation.participation import Verification, verify
from onespike.evaluation.side_by_side import Evaluation, evaluate
from onespike.passes import no_progress
from onespike.passes.base import Progress
from onespike.runs.inputs import batches_of, choose, steps
from onespike.runs.pair import NetworkPair
from onespike.runs.saving import load_run
from onespike.runtime.processes import ALONE, Processes
from onespike.tasks import Items, Metric


def metric_for(pair: NetworkPair, items: Items) -> Metric:
    """Return the metric of the network's task on these inputs."""
    return pair.loaded.task.metric(items)


def evaluate_pair(
    pair: NetworkPair,
    items: Items,
    *,
    metric: Metric | None = None,
    batch_size: int = 16,
    progress: Progress = no_progress,
    title: str = "evaluating",
    processes: Processes = ALONE,
    ledger: Ledger | None = None,
) -> Evaluation:
    """Evaluate both networks over the images, in one pass."""
    items = pair.loaded.task.named(items)
    return evaluate(
        pair.ann,
        pair.snn,
        pair.loaded.batches(items, batch_size, processes.part),
        metric or metric_for(pair, items),
        progress=progress(title, steps(items, batch_size, processes)),
        processes=processes,
        ledger=ledger,
    )


def verify_run(folder: Path, data: str, count: int = 8) -> Verification:
    """Check on a few images whether every neuron of a saved run takes part."""
    pair = load_run(folder)
    items = choose(data, count, pair.loaded.task)
    return verify(pair.snn, next(batches_of(items, pair.loaded, count)))
