"""What a run holds for `AutoModel….from_pretrained(FOLDER)`, and what transformers is told to convert a network.

`config.json` names onespike as the quantizer, and the run's file as the one that holds the weights: those of the
original, which `quantizer.py` converts again once transformers has loaded them.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from onespike.presets import DEFAULT
from onespike.recipe import Recipe
from onespike.runs import storage

METHOD, CONFIG = "onespike", "config.json"


@dataclass
class OnespikeConfig:
    """Converts while transformers loads: `AutoModel….from_pretrained(ID, quantization_config=OnespikeConfig(…))`.

    Args:
        recipe: a preset's name or a recipe.
        inputs: unlabeled batches, as for `spike`; a folder that holds a converted network needs none.
    """

    recipe: str | Recipe = DEFAULT
    inputs: Iterable[Any] | None = None
    quant_method: str = METHOD
    version: int = storage.VERSION

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": self.quant_method, "version": self.version}

    def __deepcopy__(self, memo: dict[int, Any]) -> OnespikeConfig:
        return self  # transformers copies its configuration, and inputs need not be


def identity(network: Any) -> dict[str, Any]:
    """Return what thresholds belong to: the class of a network, and how it computes attention and experts."""
    forms = ("attn_implementation", "experts_implementation")
    stated = {form: getattr(network.config, f"_{form}", None) for form in forms}
    return {"architectures": [type(network).__name__], **stated}


def files_of(model: nn.Module, others: Callable[[Path], None] | None) -> Callable[[Path], None] | None:
    """Return what writes the files that transformers reads beside the weights; None for a network of another library."""
    library = sys.modules.get("transformers")
    if library is None or not isinstance(model, library.PreTrainedModel):
        return None
    network: Any = model

    def write(folder: Path) -> None:
        if others is not None:
            others(folder)  # the tokenizer or image processor, for pipelines
        config = copy.deepcopy(network.config)
        config.dtype = network.dtype
        entries = config.to_diff_dict() | identity(network)
        entries |= {
            "quantization_config": OnespikeConfig().to_dict(),
            "transformers_weights": storage.WEIGHTS,
        }
        (folder / CONFIG).write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
        if network.can_generate():
            network.generation_config.save_pretrained(folder)

    return write
