"""Hardware profiles: the price of each operation, as a table with its source."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from onespike.errors import UsageError, unknown
from onespike.runtime.validated import read

FOLDER = Path(__file__).parent / "prices"
DEFAULT = "horowitz-45nm"  # the paper's prices

OPERATIONS = {
    "float32 multiply-add": "one multiply-add of 32-bit floats",
    "float32 add": "one addition or comparison of 32-bit floats",
    "int32 add": "one addition of an 8-bit weight to a 32-bit integer, or a comparison",
    "int32 multiply-add": "one multiplication of 32-bit integers, and an addition; as in floats where it is not given",
    "int8 multiply-add": "one multiplication of 8-bit integers, added to 32 bits",
    "int4 multiply-add": "one multiplication of 4-bit integers, added to 32 bits",
    "float32 read": "reading one 32-bit weight",
    "int8 read": "reading one 8-bit weight",
    "int4 read": "reading one 4-bit weight",
    "spike": "sending one spike to its layer",
    "neuron update": "scaling and resetting one neuron; one float32 multiply-add where it is not given",
    "integer neuron": "a neuron that only compares; free, unless the hardware charges each neuron update",
}
"""What a profile may price. Reading and sending are free where a profile omits them; arithmetic is not."""
FREE = ("float32 read", "int8 read", "int4 read", "spike")


@dataclass(frozen=True)
class Profile:
    """Prices in picojoules by operation, and the source of the figures; operations that the hardware lacks are left out."""

    name: str
    source: str
    pj: Mapping[str, float]

    def __post_init__(self) -> None:
        for operation, price in self.pj.items():
            if operation not in OPERATIONS:
                raise unknown("operation", operation, OPERATIONS)
            if not 0 <= price < math.inf:
                raise UsageError(f"the price of {operation!r} must be a number of at least 0, in picojoule.")
        if not self.pj.get("float32 multiply-add"):
            raise UsageError("every ratio is relative to 'float32 multiply-add'. Give its price, above 0.")

    def price(self, operation: str) -> float:
        """Return the picojoules of one operation; NaN if this hardware has no price for it.

        >>> profile().price("float32 add"), profile().price("int8 read")
        (0.9, 0.0)
        """
        if operation in ("neuron update", "int32 multiply-add") and operation not in self.pj:
            operation = "float32 multiply-add"
        if operation == "integer neuron":
            return self.pj.get("neuron update", 0.0)
        return self.pj.get(operation, 0.0 if operation in FREE else math.nan)


def names() -> list[str]:
    """Return the bundled profiles, the default first."""
    return sorted((path.stem for path in FOLDER.glob("*.json")), key=lambda name: (name != DEFAULT, name))


_current: ContextVar[str] = ContextVar("_current", default=DEFAULT)


@contextmanager
def priced(name: str) -> Iterator[None]:
    """Make another profile the default within this context, for every ratio."""
    before = _current.set(name)
    try:
        profile()
        yield
    finally:
        _current.reset(before)


def profile(name: str | None = None) -> Profile:
    """Return a profile by its name or the path of a JSON file; without either the default one, or that of `priced`."""
    return _read(name or _current.get())


@cache
def _read(name: str) -> Profile:
    bundled = FOLDER / f"{name}.json"
    if bundled.is_file():  # this one needs no pydantic
        return Profile(**json.loads(bundled.read_text(encoding="utf-8")))
    if Path(name).suffix != ".json":
        raise unknown("hardware profile", name, names())
    remedy = 'Write {"name": …, "source": …, "pj": {"float32 multiply-add": 4.6, …}}.'
    return read(Profile, Path(name), remedy, UsageError)
