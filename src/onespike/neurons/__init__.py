"""Neurons: modules that turn an activation into integer spikes. Every module of this folder may register some."""

from importlib import import_module
from pkgutil import iter_modules

from onespike.neurons.base import NEURONS, Neuron, Scale, check_scale, neuron
from onespike.neurons.scale_and_fire import EightBit, ScaleFire

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["NEURONS", "EightBit", "Neuron", "Scale", "ScaleFire", "check_scale", "neuron"]
