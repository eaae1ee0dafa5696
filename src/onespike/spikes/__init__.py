"""What a site sends: integers, what they are worth, and the one definition of firing."""

from onespike.spikes.code import SpikeCode as SpikeCode
from onespike.spikes.code import row_gain as row_gain
from onespike.spikes.fire_functions import ROUNDINGS as ROUNDINGS
from onespike.spikes.fire_functions import fire_function as fire_function
from onespike.spikes.levels import mixed_levels as mixed_levels
from onespike.spikes.levels import parse_levels as parse_levels
