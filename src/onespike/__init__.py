"""onespike: any pretrained PyTorch network as a single-timestep spiking network."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onespike.public import *  # noqa: F403 - each name is listed once, there

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Import on first use, so that the command line answers Ctrl-C before torch is loaded."""
    if find_spec(f"onespike.{name}") is not None:
        return import_module(f"onespike.{name}")
    public = vars(import_module("onespike.public"))
    if name not in public:
        raise AttributeError(f"module 'onespike' has no attribute {name!r}")
    return globals().setdefault(name, public[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *vars(import_module("onespike.public"))})


import_module("onespike.registration")
