"""The one exception family: every message names the place and ends with the remedy."""

import difflib
import errno
import importlib
from collections.abc import Iterable
from typing import Any


class OnespikeError(Exception):
    """An error that the user can mend; the command line prints it and exits with 2."""


class OnespikeWarning(UserWarning):
    """A notice that something differs from the request or will disappoint; the command line prints it."""


class UsageError(OnespikeError):
    """An unknown name or a value out of range."""


class DataError(OnespikeError):
    """Images or labels that cannot be read or used."""


class LoadError(OnespikeError):
    """A network, checkpoint or run that cannot be loaded or saved."""


class CalibrationError(OnespikeError):
    """Activations from which no threshold can be taken."""


class ConversionError(OnespikeError):
    """A product that would be neither spiking nor listed as analog."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a GPU or in Python, torch or the operating system.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # the latter is torch's
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    words = ("can't allocate memory", "not enough memory", "cannot allocate memory", "bad_alloc")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def first_line(error: BaseException) -> str:
    """Return an exception's first line without its full stop, for use inside a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__


def unknown(kind: str, name: str, registered: Iterable[str], listing: str = "") -> UsageError:
    """Return the error for a name that is not registered, with the closest registered names, and all or where to find them."""
    names = sorted(registered)
    close = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return UsageError(f"unknown {kind} {name!r}.{hint} {listing or 'Known: ' + ', '.join(names) + '.'}")


def require(package: str, extra: str, wanted_by: str) -> Any:
    """Import an optional package, or raise an error that names its extra."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        elsewhere = error.name is not None and error.name.partition(".")[0] != package.partition(".")[0]
        reason = f"{package} cannot be imported ({first_line(error)})" if elsewhere else f"it needs {package}"
        raise LoadError(f"{wanted_by}: {reason}. Install it with: pip install 'onespike[{extra}]'") from error
