"""What people read of an evaluation: figures, tables, a summary, and the one figure by which runs are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from onespike.tasks.intervals import Bounds


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
        return [tuple(c if isinstance(c, str) else decimal(c, self.digits) for c in row) for row in self.rows]


def decimal(value: float | None, digits: int) -> str:
    """Write a figure; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


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
    cards: tuple[tuple[str, str, str], ...]  # name, figures and small print, for the top of the page
    networks: tuple[str, ...] = ("ann", "snn")  # of each row of the table
    published: str = ""  # what the publisher of the weights states, in a sentence
    details: Table | None = None
    about_details: str = ""
    examples: str = ""  # how to read the examples of a report
    parts: tuple[str, int] | None = None  # of an input, and how many were measured: energy is stated per part


@dataclass(frozen=True)
class Headline:
    """The one figure by which runs are compared: of the original network, where it has one, and the spiking one.

    `bounds` is the 95 % interval of the spiking network's figure, `paired` that of their difference on the same inputs.
    """

    title: str
    original: float | None
    spiking: float | None
    error: float | None = None
    bounds: Bounds | None = None
    paired: Bounds | None = None

    @property
    def difference(self) -> float | None:
        return None if self.original is None or self.spiking is None else self.spiking - self.original

    @property
    def compared(self) -> Bounds | None:
        """Return where the spiking figure lies against the original's, both on the same inputs, or else by itself."""
        if self.original is None or self.paired is None:
            return self.bounds
        return self.original + self.paired[0], self.original + self.paired[1]
