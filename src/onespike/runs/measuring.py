"""A pair of networks and inputs → figures: once, and again on other draws of calibration inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

from onespike.calibration.inputs import Inputs, batch_count
from onespike.energy.ledger import Ledger, or_none
from onespike.errors import DataError, UsageError
from onespike.evaluation.side_by_side import Evaluation, evaluate
from onespike.passes import no_progress
from onespike.passes.base import Progress
from onespike.runs.inputs import choose, digest, overlap, without
from onespike.runs.pair import NetworkPair
from onespike.runs.pipeline import spike
from onespike.runtime.processes import ALONE, Processes
from onespike.tasks import Items, Metric


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
        metric or pair.loaded.task.metric(items),
        progress=progress(title, batch_count(items, batch_size, processes)),
        processes=processes,
        ledger=ledger,
    )


def draws(source: Items, count: int, repeat: int, seed: int, apart: Sequence[Items] = ()) -> list[Items]:
    """Return `repeat` random choices of `count` inputs, none of them also in `apart`.

    As long as the inputs suffice, no two choices share one: choices that do would differ too little.
    """
    if repeat < 1:
        raise UsageError(f"repeat must be at least 1, not {repeat}. Leave repeat= out for one calibration.")
    used = {"sha256": [digest(item) for items in apart for item in items]}
    pool = without(source, overlap(used, source))
    if count >= len(pool):
        raise DataError(
            f"{source.source}: to draw {count} inputs there must be more than the {len(pool)} that are left. "
            "Calibrate on fewer, or on a larger folder."
        )
    generator, chosen = torch.Generator().manual_seed(seed), list[Items]()
    while len(chosen) < repeat:
        order = [pool[i] for i in torch.randperm(len(pool), generator=generator).tolist()]
        parts = (order[i * count : (i + 1) * count] for i in range(len(order) // count))
        chosen += [dataclasses.replace(pool, items=tuple(part)) for part in parts]
    return chosen[:repeat]


def spread(figures: Sequence[float | None]) -> dict[str, float] | None:
    """Return the mean of a figure over calibrations, its standard deviation, and the least and the largest; None if unknown.

    >>> spread([1.0, 2.0, 3.0])
    {'mean': 2.0, 'sd': 1.0, 'lowest': 1.0, 'highest': 3.0}
    """
    values = [value for value in figures if value is not None]
    if len(values) < len(figures):
        return None
    deviation = stdev(values) if len(values) > 1 else 0.0
    return {"mean": fmean(values), "sd": deviation, "lowest": min(values), "highest": max(values)}


def spelled(figure: dict[str, float] | None, digits: int) -> str:
    """Write a figure over calibrations.

    >>> spelled(spread([1.0, 2.0, 3.0]), 1)
    '2.0 ± 1.0 (1.0 to 3.0)'
    """
    if figure is None:
        return "–"
    mean, sd, low, high = (f"{figure[name]:.{digits}f}" for name in ("mean", "sd", "lowest", "highest"))
    return f"{mean} ± {sd} ({low} to {high})"


def evaluate_again(
    pair: NetworkPair,
    items: Items,
    repeat: int,
    seed: int,
    *,
    batch_size: int = 16,
    progress: Progress = no_progress,
    finish: Callable[[nn.Module], Any] = lambda snn: None,
) -> dict[str, Any]:
    """Calibrate a run's network anew on as many inputs as it had, and measure each result on the same inputs.

    The inputs to measure on are never drawn. `finish` is what else is done to each spiking network, such as integers of
    its weights.
    """
    if pair.recipe.max_drop is not None:
        raise UsageError(
            "a run with max_drop would look for another energy each time. Convert it with a budget."
        )
    loaded, column = pair.loaded, pair.recipe.energy
    source, count = choose(pair.data["source"], None, loaded.task), len(pair.data["names"])
    scores, ratios, title = list[float | None](), list[float | None](), ""
    for number, drawn in enumerate(draws(source, count, repeat, seed, (items,)), 1):
        snn = spike(
            pair.ann, Inputs(drawn, loaded), pair.recipe, share_weights=True, progress=progress, task=loaded.task
        )  # fmt: skip
        finish(snn)
        result = evaluate_pair(
            dataclasses.replace(pair, snn=snn), items, batch_size=batch_size, progress=progress,
            title=f"calibration {number} of {repeat}",
        )  # fmt: skip
        headline = loaded.task.headline(result.to_dict())
        title = headline.title
        scores.append(headline.spiking)
        ratios.append(or_none(result.ledger.ratio(column)))
    return {
        "repeat": repeat, "seed": seed, "inputs": count, "source": source.source, "title": title, "scores": scores,
        "score": spread(scores), "column": column, "ratio": spread(ratios),
    }  # fmt: skip
