"""Progress of long work: stages say where they are, and whoever wants to see it says how, once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Progress = Callable[[str, int], Callable[[Iterable[Any]], Iterable[Any]]]
"""progress(title, total) returns a wrapper for the batches of a long stage."""
Note = Callable[[str], None]

_current: ContextVar[tuple[Progress, Note]] = ContextVar(
    "_current", default=(lambda title, total: iter, lambda text: None)
)


def progress(title: str, total: int) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a wrapper for the batches of a stage: it reports as `reporting` says, by default nothing."""
    return _current.get()[0](title, total)


def note(text: str) -> None:
    """State in one line what a stage has just found out."""
    _current.get()[1](text)


@contextmanager
def reporting(progress: Progress, note: Note = lambda text: None) -> Iterator[None]:
    """Report the long stages within this context: progress(title, total) wraps the batches of each, note(text) gets lines.

    >>> def bar(title, total):
    ...     print(f"{title}: {total} batches")
    ...     return iter
    >>> with reporting(bar):
    ...     list(progress("calibrating", 2)("ab"))
    calibrating: 2 batches
    ['a', 'b']
    """
    before = _current.set((progress, note))
    try:
        yield
    finally:
        _current.reset(before)
