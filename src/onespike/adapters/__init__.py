"""Networks by name. Only this package names libraries and architectures."""

from onespike.adapters import bundled, detectron2, timm, torchvision, transformers
from onespike.adapters.base import ADAPTERS, Adapter, LoadedModel, Source, adapter, load_model
from onespike.adapters.checkpoints import load_checkpoint_, read_checkpoint
from onespike.adapters.normalize import KNOWN, Normalization, exchanged, normalization, renormalized
from onespike.adapters.resize import resized

__all__ = [
    "ADAPTERS",
    "KNOWN",
    "Adapter",
    "LoadedModel",
    "Normalization",
    "Source",
    "adapter",
    "bundled",
    "detectron2",
    "exchanged",
    "load_checkpoint_",
    "load_model",
    "normalization",
    "read_checkpoint",
    "renormalized",
    "resized",
    "timm",
    "torchvision",
    "transformers",
]
