"""The form of a task: it sees both networks' outputs batch by batch, and ends with a table of numbers."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Task(Protocol):
    """Scores the original network (ann) and the spiking one (snn) over the same data, in one pass."""

    def update(self, ann: Tensor, snn: Tensor, labels: Tensor | None) -> None:
        """Take in one batch of outputs."""

    def compute(self) -> dict[str, Any]:
        """The metrics over everything taken in, ready for JSON."""
