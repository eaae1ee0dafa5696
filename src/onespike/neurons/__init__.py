"""Neurons: modules that turn an activation into integer spikes. Each file of this folder registers its own."""

from importlib import import_module
from pkgutil import iter_modules

from onespike.neurons.base import NEURONS as NEURONS
from onespike.neurons.base import Neuron as Neuron
from onespike.neurons.base import Scale as Scale
from onespike.neurons.base import check_scale as check_scale
from onespike.neurons.base import neuron as neuron
from onespike.neurons.scale_and_fire import EightBit as EightBit
from onespike.neurons.scale_and_fire import ScaleFire as ScaleFire

for _file in iter_modules(__path__, f"{__name__}."):
    import_module(_file.name)
