"""The stored report of a run, read again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onespike.errors import UsageError
from onespike.runtime.validated import parse, read, read_sealed

FOLDER, RECORD = "report", "report.json"
AGAIN = "Make the reports again: onespike report RUN --data DIR"


@dataclass(frozen=True)
class _Network:
    spec: str


@dataclass(frozen=True)
class _Evaluation:
    task: str
    ann: dict[str, Any]
    snn: dict[str, Any]
    energy: dict[str, float | None]
    analog_share: float
    images: int
    profile: str
    seconds: dict[str, float]


@dataclass(frozen=True)
class _Report:
    """The schema of a report, as far as `compare` reads it."""

    version: int
    network: _Network
    recipe: dict[str, Any]
    evaluation: _Evaluation | None


def evaluated(file: Path) -> dict[str, Any]:
    """Return what `onespike evaluate --json` wrote."""
    remedy = "Measure again: onespike evaluate RUN --data DIR --json FILE"
    text = read(dict[str, Any], file, remedy)
    parse(_Evaluation, json.dumps(text), file, remedy)
    return text


def reported(run: Path) -> dict[str, Any]:
    """Return the measured report in a run."""
    from onespike.reports.record import VERSION
    from onespike.runs import storage

    storage.load(run)  # a damaged run is named before its report is trusted
    found = read_sealed(_Report, run / FOLDER / RECORD, AGAIN)
    if found is None or found["evaluation"] is None or found["version"] != VERSION:
        raise UsageError(
            f"{run}: it has no measured report. Give --data DIR, or run: onespike report {run} --data DIR"
        )
    return found
