"""Fields of a record on the command line: words to values and values to words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onespike.errors import UsageError, unknown


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


def words_of(record: Any, values: Mapping[str, Any]) -> list[str]:
    """Return the words that give the fields of a record these values."""
    words = list[str]()
    for name, value in values.items():
        option = options(record)[name]
        for text in map(_text, value if option.repeated else (value,)):
            words += [f"--{name.replace('_', '-')}", text] if option.usual else ["--set", f"{name}={text}"]
    return words


def parse_field(record: Any, name: str, words: Sequence[str]) -> Any:
    """Return the value of a field that is given by these words; each word of a repeated field is one element."""
    option = options(record).get(name)
    if option is None:
        raise unknown("recipe field", name, options(record))
    if option.repeated:
        return tuple(map(option.read, words))
    if len(words) > 1:
        raise UsageError(f"{name} has one value, and {' and '.join(words)} are given. Give one of them.")
    try:
        return option.read(words[0])
    except ValueError:
        raise _no_number(name, option, words[0]) from None


def declared(default: Any, *option: Any, **more: Any) -> Any:
    """Return a dataclass field with its option."""
    return dataclasses.field(default=default, metadata={"option": Option(*option, **more)})


def options(record: Any) -> dict[str, Option]:
    """Return the option of each field of a dataclass or instance."""
    return {f.name: f.metadata["option"] for f in dataclasses.fields(record) if "option" in f.metadata}


def settle(record: Any) -> None:
    """Give the fields of a frozen record their types: words are read as on the command line, lists become tuples.

    Otherwise `exclude="fc1:*"` would be split into letters, and its `*` would exclude everything.
    """
    for name, option in options(record).items():
        value = getattr(record, name)
        settled = tuple(value) if isinstance(value, list) else value
        if isinstance(value, str) and (option.repeated or option.read is not str):
            settled = parse_field(record, name, [value])
        if option.read in (int, float) and (
            type(settled) is bool or not isinstance(settled, (int, option.read))
        ):
            raise _no_number(name, option, value)
        object.__setattr__(record, name, settled)


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


def name_or_number(word: str) -> str | float:
    """Return a number if the word is one, else the word."""
    try:
        return float(word)
    except ValueError:
        return word


def share_or_none(word: str) -> float | None:
    """Return a share, given in percent or as a number.

    >>> share_or_none("1%"), share_or_none("0.02"), share_or_none("none")
    (0.01, 0.02, None)
    """
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
