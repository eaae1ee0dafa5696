"""Conversion: thresholds become neurons at their sites, and everything can be undone."""

from onespike.conversion.firing import Analog as Analog
from onespike.conversion.firing import Neurons as Neurons
from onespike.conversion.firing import named_neurons as named_neurons
from onespike.conversion.network import convert as convert
from onespike.conversion.network import convert_ as convert_
from onespike.conversion.network import is_converted as is_converted
from onespike.conversion.network import revert_ as revert_
from onespike.conversion.network import set_scale_ as set_scale_
from onespike.conversion.network import steps_of as steps_of
from onespike.conversion.network import table as table
