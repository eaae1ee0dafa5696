"""Networks by name. Only this package names libraries and architectures."""

from onespike.adapters import bundled, detectron2, timm, torchvision, transformers, user_file
from onespike.adapters.base import ADAPTERS, LoadedModel, Reading, Source, adapter, load_model
from onespike.adapters.checkpoints import load_checkpoint_, read_checkpoint
from onespike.adapters.preprocessing import NORMALIZATIONS, exchanged, normalization, renormalized, resized

__all__ = [
    "ADAPTERS", "NORMALIZATIONS", "LoadedModel", "Reading", "Source", "adapter", "bundled",
    "detectron2", "exchanged", "load_checkpoint_", "load_model", "normalization", "read_checkpoint", "renormalized",
    "resized", "timm", "torchvision", "transformers", "user_file",
]  # fmt: skip
