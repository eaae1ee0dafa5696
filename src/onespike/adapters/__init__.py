"""Networks by name. Only this package names libraries and architectures."""

from onespike.adapters.base import LoadedModel, Reading, Source, load_model
from onespike.adapters.checkpoints import load_checkpoint_, read_checkpoint
from onespike.adapters.preprocessing import NORMALIZATIONS, exchanged, normalization, renormalized, resized

__all__ = [
    "NORMALIZATIONS", "LoadedModel", "Reading", "Source", "exchanged", "load_checkpoint_", "load_model",
    "normalization", "read_checkpoint", "renormalized", "resized",
]  # fmt: skip
