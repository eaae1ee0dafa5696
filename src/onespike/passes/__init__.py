"""Calibration passes: more accuracy for the same spikes. They run in the order of this file."""

# ruff: noqa: I001 (the order in which passes are registered is the order in which they run)
from onespike.passes import layout as layout
from onespike.passes import constants as constants
from onespike.passes import allocate as allocate
from onespike.passes import weigh as weigh
from onespike.passes import correct as correct
from onespike.passes import refit as refit
from onespike.passes import tune as tune
from onespike.passes.base import PASSES as PASSES
from onespike.passes.base import TRAITS as TRAITS
from onespike.passes.base import PassContext as PassContext
from onespike.passes.base import PassState as PassState
from onespike.passes.base import calibration_pass as calibration_pass
from onespike.passes.base import check_passes as check_passes
from onespike.passes.base import no_progress as no_progress
from onespike.passes.base import parse_passes as parse_passes
from onespike.passes.chaining import chain as chain
from onespike.passes.chaining import check_recipe as check_recipe
from onespike.passes.chaining import improve as improve
from onespike.passes.chaining import check_for as check_for
