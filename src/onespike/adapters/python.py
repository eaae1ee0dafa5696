"""`python:FILE.py:FACTORY`: the network that a function in the user's own file returns.

The file is run because the user names it. Loading a run, which records the name, runs nothing that is not named again.
"""

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, NoReturn

from torch import nn

from onespike.adapters.base import LoadedModel, Reading, Source
from onespike.adapters.checkpoints import load_checkpoint_
from onespike.errors import LoadError, OnespikeError, UsageError, first_line, unknown
from onespike.tasks import Classification

OWN = "python:"
NAMED: ContextVar[str | None] = ContextVar("NAMED", default=None)
"""The MODEL that the user has typed, for runs of networks whose code they do not hold."""


@contextmanager
def named(model: str) -> Iterator[None]:
    """Let runs be rebuilt by this MODEL within this context; its file is run at once, for the neurons that it registers."""
    if not model.startswith(OWN):
        raise UsageError(f"model= names code of your own, and {model} needs none. Leave it out.")
    _parts(model.removeprefix(OWN))
    before = NAMED.set(model)
    try:
        yield
    finally:
        NAMED.reset(before)


def has_weights(name: str) -> bool:
    return True


def load(name: str, source: Source) -> LoadedModel:
    """Load what the factory returns: a network, or a `LoadedModel` with everything else that commands can use.

    A network reads images by its attribute `transform`, and names classes by `class_names`.
    """
    file, module, factory = _parts(name)
    if not callable(made := getattr(module, factory, None)):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise unknown(f"function in {file}", factory, functions)
    try:
        loaded = made()
    except OnespikeError:
        raise
    except Exception as error:
        raise _failed(file, error) from error
    if isinstance(loaded, nn.Module):
        transform, classes = (getattr(loaded, each, None) for each in ("transform", "class_names"))
        reading = Reading(transform or partial(_no_transform, name), "of its file" if transform else "")
        task = Classification(None if classes is None else tuple(classes))
        loaded = LoadedModel(loaded, name, reading, task, "own")
    if not isinstance(loaded, LoadedModel):
        raise LoadError(
            f"{OWN}{name}: it returns {type(loaded).__name__}. Return an nn.Module, or an onespike.adapters.LoadedModel."
        )
    if source.file:
        load_checkpoint_(loaded.model, source.file)
    weights = "own" if source.pretrained else source.describe()
    return dataclasses.replace(loaded, spec=OWN + name, weights=weights)


def _parts(name: str) -> tuple[Path, ModuleType, str]:
    """Return the file that a name gives, which is run, and the function."""
    file, colon, factory = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise UsageError(f"{OWN}{name}: no file and function. Write python:FILE.py:FACTORY.")
    if not Path(file).is_file():
        raise LoadError(f"{file}: no such file. Write python:FILE.py:FACTORY, with the path from here.")
    return Path(file), _run(Path(file).resolve()), factory


@cache
def _run(file: Path) -> ModuleType:
    """Run a file once, as Python does: what lies beside it can be imported, and classes are found by their module."""
    name = f"onespike_{file.stem}" if file.stem in sys.modules else file.stem
    origin: Any = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(origin)
    sys.path.insert(0, str(file.parent))
    try:
        origin.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _failed(file, error) from error
    return module


def _failed(file: Path, error: Exception) -> LoadError:
    """Return the error with the last line of the file that it passed."""
    lines = [f for f in extract_tb(error.__traceback__) if Path(f.filename).name == file.name]
    line = f" at line {lines[-1].lineno}" if lines else ""
    return LoadError(f"{file}: it fails{line} ({type(error).__name__}: {first_line(error)}). Correct it.")


def _no_transform(name: str, image: Any) -> NoReturn:
    raise UsageError(
        f"{OWN}{name}: it does not say how it reads an image. Set model.transform, from RGB image to tensor."
    )
