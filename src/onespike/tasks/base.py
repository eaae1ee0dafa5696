"""The protocol of a task: how inputs are read, what a network's output means, and how both networks are scored.

A task's output is a distribution: classes of a softmax, objects that are there or not. Samples from it give the
Fisher information of every site, and searches and passes minimize its divergence. Stages know nothing else of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Generator, Tensor
from torch.utils._pytree import tree_map_only

from onespike.errors import UsageError, unknown
from onespike.runtime.batches import logits
from onespike.tasks.images import Item, Items
from onespike.tasks.intervals import Bounds, interval, share_interval

Drawing = Callable[[Any, Tensor], Tensor]
"""(output of some inputs, their places in the batch) → the summed log-probability of their samples."""


class Meaning(Protocol):
    """The meaning of a network's output, for search, passes and doctor: no labels, no data.

    Attributes:
        positional: whether a position means the same in every input, like a patch of an image.
        enough: how many inputs are enough for calibration; passes take a part of them that is the same for every task.
    """

    positional: ClassVar[bool]
    enough: ClassVar[int]

    def drawing(self, size: int, generator: Generator) -> Drawing:
        """Return a sampler from a network's output for a batch of this size; parts of the batch share the samples."""

    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """Return KL(original ‖ spiking) in nats, summed over inputs; gradients reach `actual`."""

    def differences(self, expected: Any, actual: Any) -> Tensor:
        """Return how many answers differ, per input."""

    def lost(self, expected: Any, actual: Any) -> Tensor:
        """Return the share of the score that the spiking network is expected to lose, per input, by the original's output."""


class Metric(Protocol):
    """A score of both networks: it takes their outputs batch by batch, and computes its figures at the end."""

    def update(self, ann: Any, snn: Any, labels: Any) -> None:
        """Add one batch of outputs, as the networks gave them."""

    def merge(self, other: Any) -> None:
        """Add what a metric of the same kind has seen in another process."""

    def compute(self) -> dict[str, Any]:
        """Return the figures of everything added, ready for JSON."""


class Score(Protocol):
    """A figure of the spiking network alone, which a search raises or lowers."""

    def update(self, expected: Any, actual: Any, labels: Any, size: int) -> None:
        """Add a batch of `size` inputs; `expected` is None unless the objective compares with the original network."""

    def value(self) -> float:
        """Return the figure of everything added."""

    def interval(self) -> Bounds | None:
        """Its 95 % interval, where that is known."""


@dataclass(frozen=True)
class Objective:
    """One figure that λ can be searched by.

    Attributes:
        title: its name in tables and plots.
        score: makes a new score for inputs with this truth.
        maximize: whether larger is better.
        compares: whether it needs the original network's outputs.
        labeled: whether it needs labels.
        partial: whether its value on some inputs predicts that on all, so that a poor trial can be given up early.
        share: whether it is a percentage of the inputs, so that the number of inputs gives its interval.
    """

    title: str
    score: Callable[[Items, Described], Score]
    maximize: bool = True
    compares: bool = False
    labeled: bool = False
    partial: bool = True
    share: bool = False


class Figure(NamedTuple):
    """A figure of a table of runs: its value, the digits that are shown, and its 95 % interval in words."""

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
        return [tuple(self._text(cell) for cell in row) for row in self.rows]

    def _text(self, cell: str | float | None) -> str:
        return "–" if cell is None else cell if isinstance(cell, str) else f"{cell:.{self.digits}f}"


@dataclass(frozen=True)
class Summary:
    """An evaluation in words and tables.

    Attributes:
        title: the measured quantity, such as `Accuracy`.
        networks: `ann` or `snn` for each row of the table.
        table: both networks' figures.
        note: the sentence below it.
        published: what the publisher of the weights states, in a sentence, or nothing.
        cards: (name, figures, small print) for the top of the page.
        details: a longer table and its title.
        examples: how to read the examples of a report.
        parts: the parts of an input and how many were measured: energy is stated per part.
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
    """The one figure by which runs are compared: of the original network, where it has one, and the spiking one.

    Attributes:
        title: what it is.
        original: network's figure.
        spiking: network's figure.
        error: the standard error of their difference, on the same inputs.
        bounds: the 95 % interval of the spiking network's figure.
        paired: the 95 % interval of their difference.
    """

    title: str
    original: float | None
    spiking: float | None
    error: float | None = None
    bounds: Bounds | None = None
    paired: Bounds | None = None

    @property
    def difference(self) -> float | None:
        """Return spiking minus original."""
        return None if self.original is None or self.spiking is None else self.spiking - self.original

    @property
    def compared(self) -> Bounds | None:
        """Return where the spiking figure lies against the original's, both on the same inputs, or else by itself."""
        if self.original is None or self.paired is None:
            return self.bounds
        return self.original + self.paired[0], self.original + self.paired[1]


class Described(Protocol):
    """The facts about a network that a task may use."""

    @property
    def spec(self) -> str: ...
    @property
    def class_names(self) -> tuple[str, ...] | None: ...
    @property
    def class_ids(self) -> tuple[str, ...] | None: ...


class Task(Meaning, Protocol):
    """Everything about a task.

    Attributes:
        name: its name in evaluations and reports.
        unit: the plural name of its inputs.
        objectives: name → an objective for λ; `kl` is its divergence.
        bundled: inputs for calibration and for figures that ship with onespike.
        cannot: an option or command that this task does not support → why, with the remedy.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    bundled: ClassVar[tuple[str, str]]
    cannot: ClassVar[Mapping[str, str]]

    @property
    def objectives(self) -> Mapping[str, Objective]: ...

    def inputs(self, source: str) -> Items:
        """Return inputs without labels, for calibration."""

    def labeled(self, source: str, annotations: Path | None, network: Described) -> Items:
        """Return inputs with what they are scored by."""

    def named(self, items: Items, network: Described) -> Items:
        """Return the inputs with the network's class numbers as labels, if the classes have names."""

    def objective(self, items: Items) -> str:
        """Return the default objective of a search on these inputs."""

    def front(self, items: Items) -> str:
        """Return the objective of the evaluation's headline, which a report plots against energy."""

    def load(self, item: Item) -> Any:
        """Load one input as it is stored, for a network's transform."""

    def metric(self, items: Items, network: Described) -> Metric:
        """Return the metric of both networks on these inputs."""

    def row(self, inputs: Any, number: int, place: int) -> str | None:
        """Return the name of a place in an input of a batch, such as a word of a text; None if places have no names."""

    def right(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return per input whether the answer is right, and the label's log-probability; None without such labels."""

    def example(self, item: Item, ann: Any, snn: Any, items: Items, network: Described) -> dict[str, Any]:
        """Return what a report shows of one input, with both outputs in batches of one. `text` says it in words."""

    def picture(self, items: Items, metric: Metric) -> bytes:
        """Return both networks' answers on the first inputs, as PNG."""

    @staticmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        """Summarize the figures of an evaluation for people."""

    @staticmethod
    def columns(evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """The figures in a table of several runs, by their titles."""

    @staticmethod
    def headline(evaluation: Mapping[str, Any], labeled: bool = True) -> Headline:
        """Return the one figure of an evaluation; without labels, or if `labeled` is false, one that needs none."""


TASKS: dict[str, type[Task]] = {}
"""Name → task, so that a stored evaluation can be shown without its network."""


def task(cls: type[Any]) -> type[Any]:
    """Register a task under its name."""
    if cls.name in TASKS:
        raise UsageError(f"a task named {cls.name!r} is registered already. Choose another name.")
    TASKS[cls.name] = cls
    return cls


def task_of(evaluation: Mapping[str, Any]) -> type[Task]:
    """Return the task of a stored evaluation."""
    name = evaluation.get("task")
    if name not in TASKS:
        raise unknown("task", str(name), TASKS)
    return TASKS[name]


def compared(evaluations: Sequence[Mapping[str, Any]]) -> list[Headline]:
    """Return the headline of each evaluation, all of one kind."""
    if len({tuple(task_of(e).columns(e)) for e in evaluations}) > 1:
        raise UsageError("compare: these runs have different tasks. Compare runs of one task at a time.")
    found = [task_of(e).headline(e) for e in evaluations]
    if len({h.title for h in found}) == 1:
        return found
    return [task_of(e).headline(e, labeled=False) for e in evaluations]


def check(task: Task, wanted: str) -> None:
    """Refuse what a task does not support, in the task's words."""
    if wanted in task.cannot:
        raise UsageError(task.cannot[wanted])


def exact(output: Any) -> Any:
    """Return an output in double precision."""
    scores = logits(output)
    return tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, scores)


@dataclass
class Mean:
    """A score that is a mean over inputs of what a function finds for each, or for a whole batch of them.

    Attributes:
        values_of: (expected, actual, labels) → one value per input, or their sum.
        share: whether each value is 0 or 100, so that the mean is a share in percent.
    """

    values_of: Callable[[Any, Any, Any], Tensor]
    share: bool = False
    total: float = 0.0
    squares: float | None = 0.0
    inputs: int = 0

    def update(self, expected: Any, actual: Any, labels: Any, size: int) -> None:
        found = self.values_of(expected, actual, labels).detach().double()
        self.total += float(found.sum())
        known = found.dim() == 1 and self.squares is not None
        self.squares = self.squares + float(found.square().sum()) if known else None  # type: ignore[operator]
        self.inputs += size

    def value(self) -> float:
        return self.total / self.inputs

    def interval(self) -> Bounds | None:
        if self.share:
            return share_interval(self.value(), self.inputs)
        if self.squares is None or self.inputs < 2:
            return None
        variance = max(self.squares / self.inputs - self.value() ** 2, 0.0)
        return interval(self.value(), (variance / (self.inputs - 1)) ** 0.5)


def divergence(meaning: Meaning) -> Objective:
    """Return the objective `kl` of any task: its divergence per input."""

    def total(expected: Any, actual: Any, labels: Any) -> Tensor:
        return meaning.divergence(exact(expected), exact(actual))

    return Objective(
        "KL to the original, nats", lambda items, network: Mean(total), maximize=False, compares=True
    )
