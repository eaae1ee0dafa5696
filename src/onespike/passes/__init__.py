"""Calibration passes: more accuracy for the same spikes. They run in the order of this file."""

# ruff: noqa: I001 (the order in which passes are registered is the order in which they run)
from onespike.passes import layout, constants, allocate, correct, refit, tune  # noqa: F401
from onespike.passes.base import PASSES, TRAITS, PassContext, PassState, calibration_pass
from onespike.passes.base import Progress, check_passes, no_progress, parse_passes
from onespike.passes.chaining import chain, check_for, check_recipe, improve

__all__ = [
    "PASSES", "TRAITS", "PassContext", "PassState", "Progress", "calibration_pass", "chain", "check_for", "check_passes",
    "check_recipe", "improve", "no_progress", "parse_passes",
]  # fmt: skip
