"""What a task says: how its inputs are read, what a network's output means, and how both networks are scored.

A task's output is a distribution: classes of a softmax, objects that are there or not. Its draws give the Fisher
information of every site, and its divergence is what searches and passes minimize. No stage knows more of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Generator, Tensor
from torch.utils._pytree import tree_map_only

from onespike.errors import UsageError, unknown
from onespike.runtime.batches import logits
from onespike.tasks.images import Item, Items

Drawing = Callable[[Any, Tensor], Tensor]
"""(output of some inputs, their places in the batch) → log-probability of what was drawn for them, summed."""


class Meaning(Protocol):
    """What a network's output means, for search, passes and doctor: no labels, no data.

    Attributes:
        positional: whether a position means the same in every input, as a patch of an image does.
    """

    positional: ClassVar[bool]

    def drawing(self, size: int, generator: Generator) -> Drawing:
        """How to draw for a batch of this size from a network's own output; parts of the batch share the draw."""

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """KL(original ‖ spiking) in nats, summed over inputs; gradients reach `actual`."""

    def differences(self, expected: Any, actual: Any) -> Tensor:
        """How many answers differ, for each input."""

    def lost(self, expected: Any, actual: Any) -> Tensor:
        """What share of the score the spiking network is expected to lose, for each input, by the original's own output."""


class Metric(Protocol):
    """Scores both networks: fed with their outputs batch by batch, asked for its figures at the end."""

    def update(self, ann: Any, snn: Any, labels: Any) -> None:
        """Take in one batch of outputs, as the networks gave them."""

    def merge(self, other: Any) -> None:
        """Take in what a metric of the same kind has seen in another process."""

    def compute(self) -> dict[str, Any]:
        """The figures of everything taken in, ready for JSON."""


class Score(Protocol):
    """A figure of the spiking network alone, which a search raises or lowers."""

    def update(self, expected: Any, actual: Any, labels: Any, size: int) -> None:
        """Take in a batch of so many inputs; `expected` is None unless the objective compares with the original network."""

    def value(self) -> float:
        """The figure of everything taken in."""


@dataclass(frozen=True)
class Objective:
    """One figure that λ can be searched by.

    Attributes:
        title: how tables and plots call it.
        score: makes a new score for inputs with this truth.
        maximize: whether larger is better.
        compares: whether it needs the original network's outputs.
        labeled: whether it needs labels.
        partial: whether its value on some inputs tells that on all, so that a poor trial can be given up early.
        share: whether it is a share of the inputs, in percent, of which the number of inputs gives the interval.
    """

    title: str
    score: Callable[[Items, Described], Score]
    maximize: bool = True
    compares: bool = False
    labeled: bool = False
    partial: bool = True
    share: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of figures: text, numbers with `digits` decimals, None where there is no figure."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    digits: int = 2

    def texts(self) -> list[tuple[str, ...]]:
        """The rows in words.

        >>> Table(("a", "b"), (("x", 0.126), ("y", None))).texts()
        [('x', '0.13'), ('y', '–')]
        """
        return [tuple(self._text(cell) for cell in row) for row in self.rows]

    def _text(self, cell: str | float | None) -> str:
        return "–" if cell is None else cell if isinstance(cell, str) else f"{cell:.{self.digits}f}"


@dataclass(frozen=True)
class Summary:
    """An evaluation in words and tables.

    Attributes:
        title: what was measured, such as `Accuracy`.
        networks: for each row of the table, `ann` or `snn`.
        table: both networks' figures.
        note: the sentence below it.
        published: what the publisher of the weights states, in a sentence, or nothing.
        cards: (name, figures, small print) of the page's first line.
        details: a longer table, and what it shows.
        examples: how the examples of a report are to be read.
        parts: what an input consists of, and how many of them were measured: energy is stated for one.
    """

    title: str
    networks: tuple[str, ...]
    table: Table
    note: str
    cards: tuple[tuple[str, str, str], ...]
    published: str = ""
    details: Table | None = None
    about_details: str = ""
    examples: str = ""
    parts: tuple[str, int] | None = None


@dataclass(frozen=True)
class Headline:
    """The one figure by which runs are compared: of the original network, where it has one, and the spiking one."""

    title: str
    original: float | None
    spiking: float | None
    error: float | None = None

    @property
    def difference(self) -> float | None:
        """Spiking minus original."""
        return None if self.original is None or self.spiking is None else self.spiking - self.original


class Described(Protocol):
    """What a task may ask about a network."""

    @property
    def spec(self) -> str: ...
    @property
    def class_names(self) -> tuple[str, ...] | None: ...
    @property
    def class_ids(self) -> tuple[str, ...] | None: ...


class Task(Meaning, Protocol):
    """Everything about a task.

    Attributes:
        name: under which evaluations and reports refer to it.
        unit: what its inputs are called, in the plural.
        objectives: name → what λ can be searched by; `kl` is its divergence.
        bundled: inputs for calibration and for figures that ship with onespike.
        cannot: what a command asks for and this task does not have → why, with the remedy.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    bundled: ClassVar[tuple[str, str]]
    cannot: ClassVar[Mapping[str, str]]

    @property
    def objectives(self) -> Mapping[str, Objective]: ...

    def inputs(self, source: str) -> Items:
        """Inputs without labels, for calibration."""

    def labeled(self, source: str, annotations: Path | None, network: Described) -> Items:
        """Inputs with what they are scored by."""

    def named(self, items: Items, network: Described) -> Items:
        """The inputs with the network's own numbers as labels, where they have names of their own."""

    def objective(self, items: Items) -> str:
        """The objective of a search on these inputs that names none."""

    def front(self, items: Items) -> str:
        """The objective that is the headline of an evaluation, which a report shows against energy."""

    def load(self, item: Item) -> Any:
        """One input as it is stored: what a network's transform takes."""

    def metric(self, items: Items, network: Described) -> Metric:
        """How both networks are scored on these inputs."""

    def row(self, inputs: Any, number: int, place: int) -> str | None:
        """What stands at a place of an input of a batch, as a word of a text; None where places have no names."""

    def right(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """For each input whether the answer is right and the label's log-probability; None without such labels."""

    def example(self, item: Item, ann: Any, snn: Any, items: Items, network: Described) -> dict[str, Any]:
        """What a report shows of one input: both outputs are of a batch of one. `text` says it in words."""

    def picture(self, items: Items, metric: Metric) -> bytes:
        """What both networks answer on the first inputs, as PNG."""

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        """The figures of an evaluation for people."""

    @staticmethod
    def columns(evaluation: Mapping[str, Any]) -> dict[str, tuple[float | None, int]]:
        """The figures in a table of several runs: title → value and digits."""

    @staticmethod
    def headline(evaluation: Mapping[str, Any], labeled: bool = True) -> Headline:
        """The one figure of an evaluation; one that needs no labels where it has none, or is asked so."""


TASKS: dict[str, type[Task]] = {}
"""Name → task, so that a stored evaluation can be shown without its network."""


def task(cls: type[Any]) -> type[Any]:
    """Register a task under its name."""
    if cls.name in TASKS:
        raise UsageError(f"a task named {cls.name!r} is registered already. Choose another name.")
    TASKS[cls.name] = cls
    return cls


def task_of(evaluation: Mapping[str, Any]) -> type[Task]:
    """The task of a stored evaluation."""
    name = evaluation.get("task")
    if name not in TASKS:
        raise unknown("task", str(name), TASKS)
    return TASKS[name]


def compared(evaluations: Sequence[Mapping[str, Any]]) -> list[Headline]:
    """The headline of each evaluation, all of one kind."""
    if len({tuple(task_of(e).columns(e)) for e in evaluations}) > 1:
        raise UsageError("compare: these runs have different tasks. Compare runs of one task at a time.")
    found = [task_of(e).headline(e) for e in evaluations]
    if len({h.title for h in found}) == 1:
        return found
    return [task_of(e).headline(e, labeled=False) for e in evaluations]


def check(task: Task, wanted: str) -> None:
    """Refuse what a task does not have, with its own words."""
    if wanted in task.cannot:
        raise UsageError(task.cannot[wanted])


def exact(output: Any) -> Any:
    """An output in double precision."""
    scores = logits(output)
    return tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, scores)


@dataclass
class Mean:
    """A score that is a mean over inputs of what a function finds for each batch of them."""

    total_of: Callable[[Any, Any, Any], Tensor]
    total: float = 0.0
    inputs: int = 0

    def update(self, expected: Any, actual: Any, labels: Any, size: int) -> None:
        self.total += float(self.total_of(expected, actual, labels).detach())
        self.inputs += size

    def value(self) -> float:
        return self.total / self.inputs


def divergence(meaning: Meaning) -> Objective:
    """The objective `kl` of any task: its own divergence per input."""

    def total(expected: Any, actual: Any, labels: Any) -> Tensor:
        return meaning.divergence(exact(expected), exact(actual))

    return Objective(
        "KL to the original, nats", lambda items, network: Mean(total), maximize=False, compares=True
    )
