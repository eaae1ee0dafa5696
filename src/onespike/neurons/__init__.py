"""Neurons: modules that turn an activation into integer spikes."""

from onespike.neurons.base import NEURONS as NEURONS
from onespike.neurons.base import CodedNeuron as CodedNeuron
from onespike.neurons.base import Neuron as Neuron
from onespike.neurons.base import neuron as neuron
from onespike.neurons.baselines import DualIntegrateFire as DualIntegrateFire
from onespike.neurons.baselines import DualMultiThreshold as DualMultiThreshold
from onespike.neurons.baselines import IntegrateFire as IntegrateFire
from onespike.neurons.baselines import MeanFire as MeanFire
from onespike.neurons.baselines import MultiThreshold as MultiThreshold
from onespike.neurons.baselines import Uniform as Uniform
from onespike.neurons.eight_bit import EightBit as EightBit
from onespike.neurons.scale import Scale as Scale
from onespike.neurons.scale import check_scale as check_scale
from onespike.neurons.scale_and_fire import ScaleFire as ScaleFire
