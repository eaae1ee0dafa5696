"""Finished measurements in a file: an interrupted study measures only what is missing."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onespike.errors import DataError, UsageError
from onespike.runtime.atomic import write_atomically
from onespike.runtime.validated import read_sealed, sealed

REMEDY = "Remove it to measure again."


@dataclass(frozen=True)
class _Record:
    """The schema of the file; each study has its keys."""

    identity: dict[str, Any]
    measured: dict[str, dict[str, Any]]


class Finished(dict[str, dict[str, Any]]):
    """Measurements by key, each written as soon as it is made; all in a file are of one identity."""

    def __init__(self, file: Path, identity: dict[str, Any]) -> None:
        self.file, self.identity = file, identity
        record = read_sealed(_Record, file, REMEDY, DataError)
        if record is not None and record["identity"] != json.loads(json.dumps(identity)):
            raise UsageError(
                f"{file.parent} holds measurements of another network, of other images or at other prices. "
                "Choose another out=."
            )
        super().__init__({} if record is None else record["measured"])

    def once(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a measurement: from the file if it was finished before, else made and kept."""
        if key not in self:
            self[key] = measure()
            write_atomically(self.file, sealed({"identity": self.identity, "measured": self}))
        return dict(self[key])
