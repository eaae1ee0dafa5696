"""What people read of an evaluation: figures, tables, a summary, and the one figure by which runs are compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from onespike.tasks.intervals import Bounds

BEST = 3  # answers that an example shows per network


class Figure(NamedTuple):
    """A figure of a table of runs: its value, the digits to print, and its 95 % interval in words."""

    value: float | None
    digits: int
    interval: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows of figures: text, numbers with `digits` decimals, None where there is no figure."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    digits: int = 2

    def texts(self) -> list[tuple[str, ...]]:
        """Return the rows as text.

        >>> Table(("a", "b"), (("x", 0.126), ("y", None))).texts()
        [('x', '0.13'), ('y', '–')]
        """

        def text(cell: str | float | None) -> str:
            return "–" if cell is None else cell if isinstance(cell, str) else f"{cell:.{self.digits}f}"

        return [tuple(map(text, row)) for row in self.rows]


def likeliest(ann: Tensor, snn: Tensor, name: Callable[[int], str]) -> dict[str, list[list[Any]]]:
    """Return the best answers of both networks' softmax, each with its name and its probability."""
    best = {}
    for network, scores in (("ann", ann), ("snn", snn)):
        values, places = scores.softmax(-1).topk(min(BEST, len(scores)))
        best[network] = [[name(int(i)), float(p)] for i, p in zip(places, values, strict=True)]
    return best


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of an evaluation by their places there.

    >>> flat({"snn": {"top1": 80.0}, "kl": 0.1})
    {'snn.top1': 80.0, 'kl': 0.1}
    """
    figures: dict[str, Any] = {}
    for name, value in record.items():
        inner = flat(value) if isinstance(value, Mapping) else {"": value}
        figures |= {f"{name}.{key}".removesuffix("."): figure for key, figure in inner.items()}
    return figures


@dataclass(frozen=True)
class Summary:
    """An evaluation in words and tables."""

    title: str
    table: Table
    note: str  # the sentence below the table
    networks: tuple[str, ...] = ("ann", "snn")  # of each row of the table
    published: str = ""  # what the publisher of the weights states, in a sentence
    details: Table | None = None
    examples: str = ""  # how to read the examples of a report
    parts: tuple[str, int] | None = None  # of an input, and how many were measured: energy is stated per part


@dataclass(frozen=True)
class Headline:
    """The one figure by which runs are compared: of the original network, if it has one, and the spiking one."""

    title: str
    original: float | None
    spiking: float | None
    error: float | None = None
    bounds: Bounds | None = None  # of the spiking network's figure
    paired: Bounds | None = None  # of their difference on the same inputs

    @property
    def figures(self) -> str:
        """Return both figures, as `83.3 → 79.7`, or the only one."""
        values = (self.spiking,) if self.original is None else (self.original, self.spiking)
        return " → ".join("–" if value is None else f"{value:.4g}" for value in values)

    @property
    def difference(self) -> float | None:
        return None if self.original is None or self.spiking is None else self.spiking - self.original

    @property
    def compared(self) -> Bounds | None:
        """Return where the spiking figure lies against the original's, both on the same inputs, or else by itself."""
        if self.original is None or self.paired is None:
            return self.bounds
        return self.original + self.paired[0], self.original + self.paired[1]
