"""Energy: the cost of spikes, in columns that state what they count."""

from onespike.energy.columns import COLUMNS as COLUMNS
from onespike.energy.profiles import profile as profile
