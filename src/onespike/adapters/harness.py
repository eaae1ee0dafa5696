"""lm-evaluation-harness: both networks on its tasks, question by question."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from onespike.adapters.base import LoadedModel, require
from onespike.errors import DataError, UsageError, first_line
from onespike.tasks.intervals import mean_error


@dataclass(frozen=True)
class Compared:
    """One figure of one task, such as `acc`, for both networks on the same questions.

    Attributes:
        error: the standard error of the difference, paired by question; None where questions have no figures.
    """

    task: str
    metric: str
    ann: float
    snn: float
    questions: int
    error: float | None

    @property
    def difference(self) -> float:
        return self.snn - self.ann


def harness(
    loaded: LoadedModel,
    networks: dict[str, nn.Module],
    names: Sequence[str],
    *,
    folder: Path | None = None,
    limit: int | None = None,
    batch_size: int = 1,
) -> list[Compared]:
    """Run both networks (`ann`, `snn`) on tasks of lm-evaluation-harness, or of files in the user's folder.

    `loaded` is their source, which has the tokenizer; `limit` is the number of questions per task.
    """
    library = require("lm_eval", "harness", "tasks=")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    path = None if folder is None else str(folder)
    manager = None if path is None else TaskManager(include_path=path, include_defaults=False)
    if manager is None or not all(name in manager.all_tasks for name in names):
        manager = TaskManager(include_path=path)  # with thousands of tasks, and one file read for each
    missing = [name for name in names if name not in manager.all_tasks]
    if missing:
        raise UsageError(
            f"tasks=: lm-evaluation-harness has no task {missing[0]!r}. "
            "See `lm_eval ls tasks`, or give data=DIR with a file of your own."
        )
    task: Any = loaded.task
    scores: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        try:
            settings = dict(backend="causal", max_length=task.context, batch_size=batch_size)
            for key, model in networks.items():
                wrapped = HFLM(pretrained=model, tokenizer=task.tokenizer.tokenizer, **settings)
                scores[key] = library.simple_evaluate(
                    wrapped, tasks=list(names), task_manager=manager, limit=limit, bootstrap_iters=0
                )
        except Exception as error:  # any exception of the harness, its data or the hub
            raise DataError(
                f"tasks=: lm-evaluation-harness failed ({first_line(error)}). Check that its data can be fetched."
            ) from error
    return [row for name in names for row in _compared(name, scores["ann"], scores["snn"])]


def _compared(name: str, ann: dict[str, Any], snn: dict[str, Any]) -> list[Compared]:
    """Return the numeric figures of a task, with their paired error where each question has a figure."""
    rows = []
    for key, value in ann["results"][name].items():
        metric, _, filter_ = key.partition(",")
        if not filter_ or metric.endswith("_stderr") or not isinstance(value, (int, float)):
            continue
        first, second = (
            {s["doc_id"]: s.get(metric) for s in part["samples"][name] if s.get("filter", filter_) == filter_}
            for part in (ann, snn)
        )
        pairs = [(value, second.get(question)) for question, value in first.items()]
        counted = all(isinstance(v, (int, float)) for pair in pairs for v in pair)
        error = mean_error([float(b - a) for a, b in pairs]) if counted else None
        other = float(snn["results"][name][key])
        rows.append(Compared(name, metric, float(value), other, len(pairs), error))
    return rows
