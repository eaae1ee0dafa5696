"""What a site sends: integers, what they are worth, and the one definition of firing."""

from onespike.spikes.code import SpikeCode, row_gain
from onespike.spikes.fire_functions import ROUNDINGS, fire_function
from onespike.spikes.levels import mixed_levels, parse_levels

__all__ = ["ROUNDINGS", "SpikeCode", "fire_function", "mixed_levels", "parse_levels", "row_gain"]
