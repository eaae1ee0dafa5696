"""Neurons: modules that turn an activation into integer spikes."""

from onespike.neurons import baselines as baselines
from onespike.neurons.base import NEURONS as NEURONS
from onespike.neurons.base import Neuron as Neuron
from onespike.neurons.base import neuron as neuron
from onespike.neurons.eight_bit import EightBit as EightBit
from onespike.neurons.scale import Scale as Scale
from onespike.neurons.scale import check_scale as check_scale
from onespike.neurons.scale_and_fire import ScaleFire as ScaleFire
