"""How a network is converted: one frozen, versioned record, saved beside every result.

Each field is declared once: its default, its command-line option and the help of that option. torch is imported when a
recipe is made, not before, so that help pages do not need it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from onespike.errors import LoadError, OnespikeError, UsageError, unknown
from onespike.presets import PRESETS
from onespike.runtime.validated import parse

if TYPE_CHECKING:
    from onespike.sites import Site

VERSION = 1
SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
RANGE = f"from {SMALLEST:.1e} to {LARGEST:.1e}, as float32 holds it"
MOST_BITS = 24  # float32 holds all integers up to 2^24
MOST_STEPS = 4096  # each is a forward pass
GOALS = {"budget", "max_drop"}  # fields that say what the passes aim at


@dataclass(frozen=True)
class Option:
    """How a field is written on the command line: its meaning and placeholder in the help, and how a word becomes its value.

    Where it may be repeated, the field is a tuple, and each word gives one element; other tuples are one word with
    commas. A `usual` field has an option of its own; the others are given by `--set FIELD=VALUE`.
    """

    help: str
    metavar: str = ""
    read: Callable[[str], Any] = str
    repeated: bool = False
    choices: tuple[str, ...] = ()
    usual: bool = False


def declared(default: Any, *option: Any, **more: Any) -> Any:
    """Return a dataclass field with its option."""
    return dataclasses.field(default=default, metadata={"option": Option(*option, **more)})


def name_or_number(word: str) -> str | float:
    """Return a number if the word is one, else the word."""
    try:
        return float(word)
    except ValueError:
        return word


def share_or_none(word: str) -> float | None:
    """Return a share, given in percent or as a number."""
    try:
        number = None if word == "none" else float(word.removesuffix("%"))
    except ValueError:
        raise UsageError(f"{word!r} is not a number. Give one, or none.") from None
    return number / 100 if number is not None and word.endswith("%") else number


def yes_or_no(word: str) -> bool:
    answers = {"yes": True, "no": False, "True": True, "False": False}
    if word not in answers:
        raise unknown("answer", word, ("yes", "no"))
    return answers[word]


def names(word: str) -> tuple[str, ...]:
    """Return the comma-separated names in a word; none in an empty one."""
    return tuple(name.strip() for name in word.split(",") if name.strip())


def glob_with_numbers(count: int) -> Callable[[str], tuple[Any, ...]]:
    """Return a reader of `GLOB=NUMBER,NUMBER`; the glob may contain =."""

    def read(word: str) -> tuple[Any, ...]:
        glob, _, text = word.rpartition("=")
        numbers = tuple(map(name_or_number, text.split(",")))
        if not glob or len(numbers) != count or any(isinstance(number, str) for number in numbers):
            example = f"*.fc1:*={','.join(['0.5'] * count)}"
            raise UsageError(f"{word!r} is not a glob with its numbers. Write for example '{example}'.")
        return glob, *numbers

    return read


@dataclass(frozen=True)
class Recipe:
    """Every setting that decides what a converted network computes; weights and data are separate.

    `help(onespike.Recipe)` lists the fields; `onespike list fields` says what each of them means.
    """

    preset: str = declared("sformer", "The starting point: see `onespike list presets`.", "NAME", usual=True)
    neuron: str = declared("sfn", "See `onespike list neurons`.", "NAME")
    levels: str = declared(
        "mixed:8", "M of eq. 12, or linear:8, exponential:8: 2M levels; bits:8, mixed:64+8, 1,2,4.", "M"
    )
    rounding: str = declared(
        "paper",
        "paper: thresholds at y−½ (eq. 11); nearest: midpoints; thrifty: where a level is worth its binary digits.",
    )
    scale: float = declared(0.25, "The scale of eq. 8, in (0, 1]; softmax has none.", "λ", float, usual=True)
    percentile: float = declared(1.0, "Thresholds are at the top p % of the activations.", "P", float)
    domain: str = declared("all", "Which activations the percentile is taken over.", choices=("all", "sided"))
    softmax: str | float = declared(
        "site", "site (eq. 16), model, head, percentile:P, or the threshold itself.", "KIND", name_or_number
    )
    granularity: str = declared("site", "What has a threshold of its own.", choices=("site", "channel"))
    step_digits: int = declared(
        0, "Reciprocals of steps are sums of N powers of two: neurons shift and add; 0: any step.", "N", int
    )
    payload_bits: int = declared(0, "The bits of a spike beside its sign; 0: any level.", "N", int)
    centers: str = declared(
        "all",
        "biases: centers and offsets only where they add one number to each output; no centers of one-sided values.",
        choices=("all", "biases"),
    )
    io: str = declared(
        "analog", "The network's input and its output layer's input.", choices=("analog", "int8", "spiking")
    )
    include: tuple[str, ...] = declared(
        ("*",), "Only sites that match this glob spike; backbone: a detector's.", "GLOB", repeated=True
    )
    exclude: tuple[str, ...] = declared((), "Sites that match this glob stay analog.", "GLOB", repeated=True)
    fold_batchnorm: bool = declared(True, "Merge BatchNorm into the convolution before.", "yes|no", yes_or_no)
    factors: tuple[tuple[str, float], ...] = declared(
        (), "λ is F times as large at these sites.", "GLOB=F", glob_with_numbers(1), repeated=True
    )
    steps: int = declared(1, "Timesteps; above 1, passes over running means, with membranes.", "T", int)
    placement: str = declared(
        "synapse", "Neurons where products read, or in place of ReLUs.", choices=("synapse", "activation")
    )
    fixed: tuple[tuple[str, float, float], ...] = declared(
        (), "Thresholds above and below 0 of these sites.", "GLOB=U,D", glob_with_numbers(2), repeated=True
    )
    passes: tuple[str, ...] = declared((), "See `onespike list passes`.", "A,B,…", names, usual=True)
    budget: float | None = declared(
        None, "The energy ratio to meet, of all MACs of the original.", "RATIO", share_or_none, usual=True
    )
    energy: str = declared("counts", "Of the budget: see `onespike list columns`.", "COLUMN", usual=True)
    max_drop: float | None = declared(
        None, "Instead, the least energy that loses at most this: 1%.", "SHARE", share_or_none, usual=True
    )

    def __post_init__(self) -> None:
        from onespike.neurons import NEURONS, check_scale
        from onespike.spikes import ROUNDINGS

        self._settle()
        check_scale(self.scale)
        registered: dict[str, Iterable[str]] = {"preset": PRESETS, "neuron": NEURONS, "rounding": ROUNDINGS}
        registered |= {name: option.choices for name, option in FIELDS.items() if option.choices}
        if isinstance(self.softmax, str) and self.softmax_percentile is None:
            registered["softmax"] = ("site", "model", "head")  # beside percentile:P and numbers
        for kind, choices in registered.items():
            if (name := getattr(self, kind)) not in choices:
                raise unknown(kind, name, choices)
        if mistake := next(self._mistakes(), None):
            raise UsageError(mistake)

    def _settle(self) -> None:
        """Give the fields their types: words are read as on the command line, lists become tuples.

        Otherwise `exclude="fc1:*"` would be split into letters, and its `*` would exclude everything.
        """
        for name, option in FIELDS.items():
            value = getattr(self, name)
            settled = tuple(value) if isinstance(value, list) else value
            if isinstance(value, str) and (option.repeated or option.read is not str):
                settled = parse_field(name, [value])
            if option.read in (int, float) and (
                type(settled) is bool or not isinstance(settled, (int, option.read))
            ):
                raise _no_number(name, option, value)
            object.__setattr__(self, name, settled)

    def _mistakes(self) -> Iterator[str]:
        """Yield what is out of range or does not go together, each with the remedy."""
        from onespike.spikes import parse_levels

        if not 0 <= self.percentile < 50:
            yield f"percentile must be in [0, 50), not {self.percentile:g}. The paper uses 1."
        if not isinstance(self.softmax, str) and not SMALLEST <= self.softmax <= LARGEST:
            yield f"a fixed softmax threshold must be {RANGE}, not {self.softmax:g}. The paper uses 0.0035."
        spec, bits, steps = parse_levels(self.levels), self.payload_bits, self.steps
        if not 0 <= bits <= MOST_BITS:
            yield f"payload_bits must be from 1 to {MOST_BITS}, or 0 for any level, not {bits}. Chips have 1 to 8."
        if not self.payload(spec.integers):
            yield f"levels '{self.levels}' have none of {bits} bits. Give more payload_bits, or levels='bits:{bits}'."
        if not 1 <= steps <= MOST_STEPS:
            yield f"steps must be from 1 to {MOST_STEPS}, not {steps}. The paper uses 1 and 2."
        if steps > 1 and self.neuron.endswith("if") and spec.name != "1,":
            several = f"levels '{self.levels}' are steps of their own. With steps above 1 use levels='1,'."
            yield f"neuron '{self.neuron}' fires one spike per step, and {several}"
        if steps > 1 and self.neuron == "uniform":
            yield "neuron 'uniform' is plain quantization and has one step. Use steps=1."
        if steps > 1 and self.io == "int8":
            yield "edges in 8 bits are for one timestep. Use io='analog', or steps=1."
        passes = "passes='nearest,allocate'"
        if self.budget is not None and not self.passes:
            yield f"the budget {self.budget:g} is met by passes, and there are none. Name some: {passes}."
        if self.max_drop is not None and not (self.passes and 0 < self.max_drop < 1):
            rest = "" if self.passes else f", and there are no passes: name some with {passes}"
            yield f"max_drop is a share from 0 to 1 that passes hold, such as 1%, not {self.max_drop:g}{rest}. Give another."
        if self.passes and (steps > 1 or self.placement != "synapse"):
            yield "passes are for one timestep and neurons at synapses. Take preset='sformer', which has none, or leave the others out."
        for glob, factor in self.factors:
            if not SMALLEST <= factor <= LARGEST:
                yield f"the factor of {glob!r} must be {RANGE}, not {factor:g}. Leave it out for 1."
        for glob, *both in self.fixed:
            for threshold in both:
                if threshold != 0 and not SMALLEST <= threshold <= LARGEST:
                    yield f"the fixed threshold of {glob!r} must be 0 or {RANGE}, not {threshold:g}. Leave it out to calibrate it."

    @property
    def softmax_percentile(self) -> float | None:
        """Return P of `softmax="percentile:P"`."""
        kind, _, word = str(self.softmax).partition(":")
        if kind != "percentile":
            return None
        percentile = name_or_number(word)
        if isinstance(percentile, str) or not 0 <= percentile < 50:
            raise UsageError(f"softmax {self.softmax!r}: P must be in [0, 50), as in percentile:0.1.")
        return percentile

    def payload(self, levels: tuple[int, ...]) -> tuple[int, ...]:
        """Return the levels that fit into the bits of a spike."""
        return tuple(y for y in levels if not self.payload_bits or y < 2**self.payload_bits)

    def chooses(self, site: Site | str) -> bool:
        """Return whether an include glob names this site and no exclude glob does."""
        return any(fnmatchcase(str(site), glob) for glob in self.include) and not self.excludes(site)

    def excludes(self, site: Site | str) -> bool:
        return any(fnmatchcase(str(site), glob) for glob in self.exclude)

    def factor(self, site: Site | str) -> float:
        """Return the factor by which this site's step exceeds λθ."""
        return next((factor for glob, factor in self.factors if fnmatchcase(str(site), glob)), 1.0)

    def __repr__(self) -> str:
        """Return the preset and the fields that differ from it."""
        changes = [f", {name}={value!r}" for name, value in self.changes().items()]
        return f"preset({self.preset!r}{''.join(changes)})"

    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from the preset's."""
        start = {f.name: f.default for f in dataclasses.fields(self)} | PRESETS[self.preset].settings
        changed = {name for name, value in start.items() if name != "preset" and getattr(self, name) != value}
        if changed & GOALS:  # one alone would unset the preset's other
            changed |= {name for name in GOALS if start[name] is not None}
        return {name: getattr(self, name) for name in start if name in changed}

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        if not self.passes:  # without passes, their goals say nothing
            fields = {k: v for k, v in fields.items() if k not in ("passes", "budget", "energy", "max_drop")}
        return {"version": VERSION, **fields}

    @classmethod
    def from_dict(
        cls, record: dict[str, Any], place: Path, remedy: str, error: type[OnespikeError] = LoadError
    ) -> Self:
        """Return the recipe of a record in a file; `error` names the file and the remedy."""
        fields = dict(record)
        if (version := fields.pop("version", VERSION)) != VERSION:
            raise error(f"{place}: this recipe has version {version!r}, not {VERSION}. {remedy}")
        for name in fields:
            if name not in FIELDS:
                raise error(f"{place}: {unknown('recipe field', str(name), FIELDS)}")
        return parse(cls, json.dumps(fields, default=str), place, remedy, error)


FIELDS: dict[str, Option] = {f.name: f.metadata["option"] for f in dataclasses.fields(Recipe)}


def words_of(values: Mapping[str, Any]) -> list[str]:
    """Return the words that give the fields these values."""
    words = list[str]()
    for name, value in values.items():
        option = FIELDS[name]
        for text in map(_text, value if option.repeated else (value,)):
            words += [f"--{name.replace('_', '-')}", text] if option.usual else ["--set", f"{name}={text}"]
    return words


def parse_field(name: str, words: Sequence[str]) -> Any:
    """Return the value of a field that is given by these words; each word of a repeated field is one element."""
    option = FIELDS.get(name)
    if option is None:
        raise unknown("recipe field", name, FIELDS)
    if option.repeated:
        return tuple(map(option.read, words))
    if len(words) > 1:
        raise UsageError(f"{name} has one value, and {' and '.join(words)} are given. Give one of them.")
    try:
        return option.read(words[0])
    except ValueError:
        raise _no_number(name, option, words[0]) from None


def _no_number(name: str, option: Option, value: Any) -> UsageError:
    kind = "a whole number" if option.read is int else "a number"
    return UsageError(f"{name} must be {kind}, not {value!r}. Write for example {name}=1.")


def _text(value: Any) -> str:
    """Return a word that `read` turns into exactly this value: numbers have as many digits as needed."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, tuple):
        numbers = any(isinstance(part, float) for part in value)
        return f"{value[0]}={','.join(map(_text, value[1:]))}" if numbers else ",".join(value)
    return "none" if value is None else str(value)


def preset(name: str, **changes: Any) -> Recipe:
    """Return the recipe of a named preset, with the given changes."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    settings = PRESETS[name].settings
    if GOALS & set(changes):  # whoever names one does not mean the preset's other
        settings = {field: value for field, value in settings.items() if field not in GOALS}
    return Recipe(**{"preset": name, **settings, **changes})
