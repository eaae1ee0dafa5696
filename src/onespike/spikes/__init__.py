"""What a site sends: integers, what they are worth, and the one definition of firing."""

from onespike.spikes.code import SpikeCode as SpikeCode
from onespike.spikes.code import row_gain as row_gain
from onespike.spikes.fire_functions import FireFunction as FireFunction
from onespike.spikes.fire_functions import fire_function as fire_function
