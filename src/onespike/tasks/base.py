"""The protocol of a task: how inputs are read, what a network's output means, and how both networks are scored.

A task's output is a distribution: classes of a softmax, objects that are there or not. Samples from it give the
Fisher information of every site, and searches and passes minimize its divergence. Stages know nothing else of a task.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_map_only

from onespike.errors import DataError, UsageError, unknown
from onespike.runtime.batches import logits
from onespike.tasks.images import list_images, read_image
from onespike.tasks.inputs import Item, Items
from onespike.tasks.intervals import bounds_of, span
from onespike.tasks.summaries import Figure, Headline, Summary, flat

NETWORKS = {"ann": "original", "snn": "spiking"}  # both networks: their names in records and in words


def exact(output: Any) -> Any:
    return tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, logits(output))


def refuse_nan(scores: Tensor, network: str, inputs: str) -> None:
    """Refuse NaN; −∞, which masks out a class, may stand."""
    if bool(scores.isnan().any()):
        raise DataError(f"the {NETWORKS[network]} network's output is NaN. Check its weights, and {inputs}.")


def relative_entropy(expected: Tensor, actual: Tensor) -> Tensor:
    """Return KL(expected ‖ actual) over the last dimension of logits; classes of probability 0 add nothing."""
    log_p, log_q = expected.log_softmax(-1), actual.log_softmax(-1)
    p = log_p.exp()
    return (p * (log_p - log_q)).masked_fill(p == 0, 0.0).sum(-1)


Drawing = Callable[[Any, Tensor], Tensor]
"""(output of some inputs, their places in the batch) → the summed log-probability of their samples."""


class Meaning(ABC):
    """The meaning of a network's output, for search, passes and doctor: no labels, no data."""

    # whether a position means the same in every input, like a patch of an image
    positional: ClassVar[bool] = True
    # inputs for calibration; passes take a part of them that is the same for every task
    enough: ClassVar[int] = 256

    def drawing(self, size: int, generator: Generator) -> Drawing:
        """Return a sampler from a network's output for a batch of this size; parts of the batch share the samples."""
        seeds = torch.randint(2**62, (size,), generator=generator).tolist()

        def log_probability(output: Any, places: Tensor) -> Tensor:
            sources = [torch.Generator().manual_seed(seeds[place]) for place in places.tolist()]
            return self.drawn(output, sources)

        return log_probability

    def drawn(self, output: Any, sources: Sequence[Generator]) -> Tensor:
        """Return the summed log-probability of samples from an output, one generator per input."""
        raise NotImplementedError

    @abstractmethod
    def divergence(self, expected: Any, actual: Any) -> Tensor:
        """Return KL(original ‖ spiking) in nats, summed over inputs; gradients reach `actual`."""

    @abstractmethod
    def differences(self, expected: Any, actual: Any) -> Tensor:
        """Return how many answers differ, per input."""

    @abstractmethod
    def lost(self, expected: Any, actual: Any) -> Tensor:
        """Return the share of the score that the spiking network is expected to lose, per input, by the original's output."""

    def right(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return per input whether the answer is right, and the label's log-probability; None without such labels."""
        return None


class Metric(Protocol):
    """A score of both networks, fed batch by batch; `merge` adds what one of another process has seen."""

    def update(self, ann: Any, snn: Any, labels: Any) -> None: ...
    def merge(self, other: Any) -> None: ...
    def compute(self) -> dict[str, Any]: ...


@dataclass
class Score:
    """A figure of the spiking network alone, which a search raises or lowers: a mean over inputs."""

    # of (expected, actual, labels): one value per input, or their sum; labels and what is expected exclude each other
    values_of: Callable[[Any, Any, Any], Tensor]
    of_mean: Callable[[float], float] = float  # the score
    total: float = 0.0
    inputs: int = 0

    def update(self, expected: Any, actual: Any, labels: Any, size: int) -> None:
        self.total += float(self.values_of(expected, actual, labels).detach().double().sum())
        self.inputs += size

    def value(self) -> float:
        return self.of_mean(self.total / self.inputs)


@dataclass(frozen=True)
class Objective:
    """One figure that λ can be searched by; `score` makes a new score for inputs with this truth."""

    title: str
    score: Callable[[Items], Score]
    maximize: bool = True
    labeled: bool = False  # compares with labels, and not with the original network's outputs
    partial: bool = True  # some inputs predict its value on all, so that a poor trial can be given up early
    share: bool = False  # a percentage of the inputs, whose number gives its interval


class Task(Meaning):
    """Everything about a task: its name, the meaning of an output, inputs, metric, objectives, and what people read."""

    name: ClassVar[str]
    unit: ClassVar[str] = "images"  # the plural name of its inputs
    # inputs that ship with onespike: for calibration, for figures
    bundled: ClassVar[tuple[str, str]] = ("", "")
    # title and key of the figures by which runs are compared, the first that an evaluation has; and without labels
    scored_by: ClassVar[tuple[tuple[str, str], ...]]
    compared_by: ClassVar[tuple[str, str] | None] = None
    # title, key and digits of the figures in a table of runs; `{}` in a title stands for each network
    listed: ClassVar[tuple[tuple[str, str, int], ...]] = ()
    class_names: tuple[str, ...] | None = None
    verb: ClassVar[str] = ""  # what its networks do, in messages

    @property
    @abstractmethod
    def aims(self) -> Mapping[str, Objective]:
        """Name → an objective for λ beside the divergence; one with the title of a headline says what is better."""

    @property
    def objectives(self) -> Mapping[str, Objective]:
        """Name → every objective for λ; `kl` is the divergence per input."""

        def nats(items: Items) -> Score:
            return Score(lambda expected, actual, _: self.divergence(exact(expected), exact(actual)))

        return {**self.aims, "kl": Objective("KL to the original, nats", nats, maximize=False)}

    @abstractmethod
    def metric(self, items: Items) -> Metric:
        """Return the metric of both networks on these inputs."""

    @abstractmethod
    def example(self, item: Item, ann: Any, snn: Any, items: Items) -> dict[str, Any]:
        """Return what a report shows of one input, with both outputs in batches of one. `text` says it in words."""

    @staticmethod
    @abstractmethod
    def summary(evaluation: Mapping[str, Any], published: float | None = None) -> Summary:
        """Summarize the figures of an evaluation for people."""

    def inputs(self, source: str) -> Items:
        """Return inputs without labels, for calibration."""
        return list_images(source)

    def labeled(self, source: str, annotations: Path | None) -> Items:
        """Return inputs with what they are scored by."""
        if annotations is not None:
            raise UsageError(f"this network {self.verb}, and has no use for boxes. Leave annotations= out.")
        return self.named(self.inputs(source))

    def named(self, items: Items) -> Items:
        """Return the inputs with the network's class numbers as labels, if the classes have names."""
        return items

    def load(self, item: Item) -> Any:
        """Load one input as it is stored, for a network's transform."""
        return read_image(item) if item.content is None else item.content

    def objective(self, items: Items) -> str:
        """Return the default objective of a search on these inputs."""
        return "kl"

    def row(self, inputs: Any, number: int, place: int) -> str | None:
        """Return the name of a place in an input of a batch, such as a word of a text; None if places have no names."""
        return None

    @classmethod
    def columns(cls, evaluation: Mapping[str, Any]) -> dict[str, Figure]:
        """The figures in a table of several runs, by their titles."""
        columns, figures = {}, flat(evaluation)
        for title, key, digits in cls.listed:
            for network in NETWORKS if "{}" in title else ("",):
                if (place := f"{network}.{key}".removeprefix(".")) in figures:
                    text = span(evaluation, place, digits if digits > 2 else 1)
                    columns[title.format(network.upper())] = Figure(figures[place], digits, text)
        return columns

    @classmethod
    def headline(cls, evaluation: Mapping[str, Any], labeled: bool = True) -> Headline:
        """Return the one figure of an evaluation; without labels, or if `labeled` is false, one that needs none."""
        figures = flat(evaluation)
        title, key = next((p for p in cls.scored_by if f"snn.{p[1]}" in figures), cls.scored_by[-1])
        ann, snn = (figures[f"{network}.{key}"] for network in NETWORKS)
        if cls.compared_by is None or (labeled and snn is not None):
            places = (f"snn.{key}", "difference", f"difference.{key.partition('.')[0]}")
            bounds, *paired = (bounds_of(evaluation, place) for place in places)
            return Headline(title, ann, snn, evaluation.get("standard_error"), bounds, paired[0] or paired[1])
        title, key = cls.compared_by
        return Headline(title, None, evaluation[key], bounds=bounds_of(evaluation, key))


TASKS: dict[str, type[Task]] = {}  # so that a stored evaluation can be shown without its network


def task(cls: type[Any]) -> type[Any]:
    if cls.name in TASKS:
        raise UsageError(f"a task named {cls.name!r} is registered already. Choose another name.")
    TASKS[cls.name] = cls
    return cls


def task_of(evaluation: Mapping[str, Any]) -> type[Task]:
    name = evaluation.get("task")
    if name not in TASKS:
        raise unknown("task", str(name), TASKS)
    return TASKS[name]


def compared(evaluations: Sequence[Mapping[str, Any]]) -> list[Headline]:
    """Return the headline of each evaluation, all of one kind."""
    if len({tuple(task_of(e).columns(e)) for e in evaluations}) > 1:
        raise UsageError("compare: these runs have different tasks. Compare runs of one task at a time.")
    headlines = [task_of(e).headline(e) for e in evaluations]
    alike = len({h.title for h in headlines}) == 1
    return headlines if alike else [task_of(e).headline(e, labeled=False) for e in evaluations]
