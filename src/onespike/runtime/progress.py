"""Progress of long work: stages say where they are, and whoever wants to see it says how, once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Progress = Callable[[str, int], Callable[[Iterable[Any]], Iterable[Any]]]
"""progress(title, total) returns a wrapper for the batches of a long stage."""

_current: ContextVar[Progress] = ContextVar("_current", default=lambda title, total: iter)


def progress(title: str, total: int) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a wrapper for the batches of a stage: it reports as `reporting` says, by default nothing."""
    return _current.get()(title, total)


@contextmanager
def reporting(progress: Progress) -> Iterator[None]:
    """Report the long stages within this context: progress(title, total) wraps the batches of each.

    >>> def bar(title, total):
    ...     print(f"{title}: {total} batches")
    ...     return iter
    >>> with reporting(bar):
    ...     list(progress("calibrating", 2)("ab"))
    calibrating: 2 batches
    ['a', 'b']
    """
    before = _current.set(progress)
    try:
        yield
    finally:
        _current.reset(before)
