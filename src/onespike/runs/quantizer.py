"""onespike among the quantizers of transformers: imported once transformers has them, see `onespike/registration.py`."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from onespike.adapters.base import align_
from onespike.adapters.checkpoints import each_tensor
from onespike.conversion.network import conversion_of
from onespike.errors import LoadError, UsageError
from onespike.runs import storage
from onespike.runs.pair import convert_, fetched
from onespike.runs.pipeline import spike
from onespike.runs.storage import OnespikeConfig
from onespike.runtime.validated import understood

# under the name of what users give, by which transformers compares the two
register_quantization_config(storage.METHOD)(
    type("OnespikeConfig", (OnespikeConfig, QuantizationConfigMixin), {})
)


@register_quantizer(storage.METHOD)
class Quantizer(HfQuantizer):
    """Converts after the weights are loaded; what comes back is the network that `onespike.spike` gives, and no more."""

    is_trainable = True
    run: storage.Run | None = None

    def is_serializable(self) -> bool:
        return True

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Any = None, **others: Any
    ) -> None:
        if self.pre_quantized:
            self.run = _run_of(model, Path((checkpoint_files or [""])[0]))

    def _process_model_after_weight_loading(self, model: Any, **others: Any) -> None:
        align_(model)
        config: Any = self.quantization_config
        if self.run is not None:
            _check_weights(model, self.run.folder / storage.WEIGHTS)
            with understood(self.run.folder, storage.REMEDY):
                convert_(model, self.run.thresholds, self.run.recipe)
        elif config.inputs is None:
            raise UsageError("OnespikeConfig: there is nothing to calibrate on. Give batches: inputs=[…].")
        else:
            conversion = conversion_of(spike(model, config.inputs, config.recipe, share_weights=True))
            convert_(model, conversion.thresholds, conversion.recipe)
        self.remove_quantization_config(model)  # type: ignore[no-untyped-call]


def _run_of(model: Any, weights: Path) -> storage.Run:
    """Return the run that holds this file of weights, whole, and of this class; of a repository, the rest is fetched."""
    folder, name = weights.parent, model.config.name_or_path
    if weights.name != storage.WEIGHTS:
        raise LoadError(
            f"{name}: the weights of a run are in {storage.WEIGHTS}, and not in {weights.name or 'memory'}. "
            "Load the run by its folder."
        )
    if not (folder / storage.RECORD).exists() and not Path(name).is_dir():
        folder = fetched(name, folder.name)  # named after the revision
    run, mine = storage.load(folder), storage.identity(model)
    stated = json.loads((folder / storage.CONFIG).read_text(encoding="utf-8"))
    for key, value in mine.items():
        if stated.get(key) != value:
            raise LoadError(
                f"{folder}: this run has {key} {stated.get(key)}, and {value} is asked for. "
                "Load it with the AutoModel class of that architecture, and without other settings."
            )
    return run


def _check_weights(model: nn.Module, file: Path) -> None:
    """Refuse a network that transformers has loaded from a run if its weights are not the run's."""
    state = model.state_dict()
    equal = {0}  # the address of what lies elsewhere
    for name, tensor in each_tensor(file):
        mine = state.get(name)
        if mine is not None and (mine.is_meta or torch.equal(mine.cpu(), tensor.to(mine.dtype))):
            equal.add(mine.data_ptr())
    if others := [name for name, tensor in state.items() if tensor.data_ptr() not in equal]:
        raise LoadError(
            f"{file}: transformers has loaded {len(others)} tensors otherwise, {others[0]} the first. "
            "Load the run with onespike.from_pretrained."
        )
