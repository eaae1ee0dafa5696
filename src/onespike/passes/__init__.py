"""Calibration passes: more accuracy for the same spikes. Every module of this folder may register some."""

from importlib import import_module
from pkgutil import iter_modules

from onespike.passes.base import PASSES, PassContext, PassState, calibration_pass
from onespike.passes.chaining import chain, check_passes, check_recipe, improve

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "PASSES", "PassContext", "PassState", "calibration_pass", "chain", "check_passes", "check_recipe", "improve",
]  # fmt: skip
