"""What an evaluation's figures are called, whichever its task is: accuracy, or precision of boxes and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onespike.errors import UsageError

KINDS = {"bbox": "box", "segm": "mask"}
FIGURES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR100")


def detects(evaluation: Mapping[str, Any]) -> bool:
    """Whether a detector was evaluated."""
    return "classes" in evaluation


def columns(evaluation: Mapping[str, Any]) -> dict[str, tuple[float | None, int]]:
    """Both networks' figures in a table of several runs: title → value and digits.

    >>> list(columns({"classes": {}, "ann": {"bbox": {"AP": 60.0}}, "snn": {"bbox": {"AP": 55.0}}}))
    ['ANN box AP', 'SNN box AP']
    """
    if detects(evaluation):
        return {
            f"{key.upper()} {KINDS[kind]} AP": (evaluation[key][kind]["AP"], 1)
            for kind in evaluation["ann"]
            for key in ("ann", "snn")
        }
    top1 = {f"{key.upper()} top-1 %": (evaluation[key]["top1"], 2) for key in ("ann", "snn")}
    return {**top1, "agreement %": (evaluation["agreement"], 2), "KL nats": (evaluation["kl"], 4)}


def headline(evaluations: Sequence[Mapping[str, Any]]) -> tuple[str, list[tuple[float | None, float]]]:
    """The one figure by which runs are compared: its name, and the original's and the spiking network's values."""
    tasks = {tuple(columns(evaluation)) for evaluation in evaluations}
    if len(tasks) > 1:
        raise UsageError("compare: these runs have different tasks. Compare runs of one task at a time.")
    if detects(evaluations[0]):
        kind = list(evaluations[0]["ann"])[-1]
        values = [(e["ann"][kind]["AP"], e["snn"][kind]["AP"] or 0.0) for e in evaluations]
        return f"{KINDS[kind]} AP, %", values
    if all(e["snn"]["top1"] is not None for e in evaluations):
        return "top-1 accuracy, %", [(e["ann"]["top1"], e["snn"]["top1"]) for e in evaluations]
    return "agreement with the original, %", [(None, e["agreement"]) for e in evaluations]
