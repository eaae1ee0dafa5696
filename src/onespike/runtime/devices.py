"""Networks over several devices, or partly on disk: accelerate's device maps.

The map is applied to the original network before calibration. A converted copy keeps accelerate's hooks, and its
neurons are on the devices of their owners.
"""

import atexit
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onespike.errors import LoadError, UsageError, first_line, require
from onespike.runtime.offload import blocks_of, lie_in_blocks_, parse_size, write
from onespike.runtime.validated import read

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")
BLOCKS = "blocks"
"""The map of a network whose weights stay on disk and come one block at a time: `blocks`, or `blocks:8GB`."""


def in_blocks(device_map: str | None) -> bool:
    """Whether a map asks for one block at a time."""
    return device_map is not None and device_map.partition(":")[0] == BLOCKS


def check_device(device: str) -> torch.device:
    """Return the device of this name, after a trial with one small tensor."""
    try:
        torch.zeros(1, device=device).item()  # a tensor on `meta` can be made but has no value
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = first_line(error)
        raise UsageError(f"device {device!r} cannot be used here ({reason}). Try device='cpu'.") from error
    return torch.device(device)


def place_(model: nn.Module, device: str = "cpu", device_map: str | None = None) -> nn.Module:
    """Put a network on one device or, with a device map, on several, or on disk.

    A map is `auto`, `balanced`, `balanced_low_0`, `sequential`, or a JSON file with module → device (a number, a name,
    `cpu` or `disk`); or `blocks` for one block at a time on the device, `blocks:8GB` within so much memory.
    """
    if device_map is None:
        return model.to(check_device(device))
    if in_blocks(device_map):
        size = device_map.partition(":")[2]
        return lie_in_blocks_(model, check_device(device), parse_size(size) if size else None)
    if device != "cpu":
        raise UsageError(f"device={device!r} and a device map exclude each other. Give one of them.")
    accelerate = require("accelerate", "accelerate", "device map")
    chosen = _strategy(model, device_map) if device_map in STRATEGIES else _read(model, device_map)
    folder = None
    if "disk" in chosen.values():
        folder = tempfile.mkdtemp(prefix="onespike-offload-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with warnings.catch_warnings():  # that some names of the map, those of parameters, are no modules
            warnings.filterwarnings("ignore", message="The following device_map keys")
            placed: nn.Module = accelerate.dispatch_model(model, chosen, offload_dir=folder)
    except (ValueError, RuntimeError) as error:  # parts without a device; too little memory
        remedy = "Give every part of the network a device."
        raise UsageError(f"device map {device_map}: {first_line(error)}. {remedy}") from error
    return placed.requires_grad_(False)  # weights that come and go cannot be trained


def _strategy(model: nn.Module, name: str) -> dict[str, Any]:
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    # inputs and outputs of blocks that repeat in a sequence are added, so each stays on one device
    sequences = [m for m in model.modules() if isinstance(m, (nn.Sequential, nn.ModuleList)) and len(m) > 1]
    blocks = [child for sequence in sequences for child in sequence if any(True for _ in child.children())]
    whole = sorted({type(block).__name__ for block in blocks} - {"Sequential", "ModuleList"})
    memory = None
    if name != "sequential":
        memory = get_balanced_memory(model, no_split_module_classes=whole, low_zero=name == "balanced_low_0")
    return dict(infer_auto_device_map(model, memory, no_split_module_classes=whole))


def _read(model: nn.Module, path: str) -> dict[str, Any]:
    if not Path(path).exists():
        raise UsageError(
            f"device map {path!r}: neither a strategy ({', '.join((*STRATEGIES, BLOCKS))}) nor a file. Give one of them."
        )
    places = read(dict[str, int | str], Path(path), 'Write an object such as {"": "cpu"}.', UsageError)
    modules = {name for name, _ in (*model.named_modules(), *model.named_parameters())}
    for name, device in places.items():
        if name not in modules:
            raise UsageError(f"device map {path}: the network has no module {name!r}. Correct its name.")
        if device != "disk":
            check_device(f"cuda:{device}" if isinstance(device, int) else str(device))
    return places


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return all weights by name, including those that accelerate keeps elsewhere; of a network in blocks, where they are."""
    state: dict[str, Any] = model.state_dict()
    if (blocks := blocks_of(model)) is not None:
        return state | {name: blocks.tensors[name] for name, tensor in state.items() if tensor.is_meta}
    if any(tensor.is_meta for tensor in state.values()):
        from accelerate.utils.modeling import get_state_dict_offloaded_model

        state |= get_state_dict_offloaded_model(model)
    if absent := [name for name, tensor in state.items() if tensor.is_meta]:
        raise LoadError(
            f"save: the weights {', '.join(absent[:3])} are not in memory. "
            "Keep them off the disk in the device map, or refer to the file that holds them."
        )
    return state


def save_weights(file: Path, model: nn.Module) -> None:
    """Write all weights into one safetensors file, tied ones once; those that are on disk are copied one by one."""
    state, first, tied = state_of(model), dict[Any, str](), dict[str, str]()
    for name, x in state.items():
        place = (x.data_ptr(), x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else x
        if first.setdefault(place, name) != name:
            tied[name] = first[place]
    write(file, {name: x for name, x in state.items() if name not in tied}, tied)
