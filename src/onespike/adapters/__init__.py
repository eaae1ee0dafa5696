"""Networks by name. This package is the only place that names libraries and architectures."""

from onespike.adapters import bundled, timm, torchvision, transformers
from onespike.adapters.base import ADAPTERS, Adapter, LoadedModel, Source, adapter, load_model
from onespike.adapters.checkpoints import load_checkpoint_, read_checkpoint

__all__ = [
    "ADAPTERS",
    "Adapter",
    "LoadedModel",
    "Source",
    "adapter",
    "bundled",
    "load_checkpoint_",
    "load_model",
    "read_checkpoint",
    "timm",
    "torchvision",
    "transformers",
]
