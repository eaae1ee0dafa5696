"""The one exception family: every message names the place and ends with the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OnespikeError(Exception):
    """Something the user can mend; the command line prints it and exits with 2."""


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


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not registered, with the closest ones that are.

    >>> str(unknown("preset", "sforme", ["sformer"]))
    "unknown preset 'sforme'. Did you mean 'sformer'? Known: sformer."
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return UsageError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.")
