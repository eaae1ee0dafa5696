"""Run a network in evaluation mode, on its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation and inference mode for the block, then restore each module's training flag."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def device_of(model: nn.Module) -> torch.device:
    """Where a network computes: its first weight's place, or the one that hooks move its weights or inputs to."""
    for module in model.modules():
        if "_execution_device" in module.__dict__:
            return torch.device(module.__dict__["_execution_device"])
        hook: Any = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", (hook,)):
            if getattr(part, "execution_device", None) is not None:
                return torch.device(part.execution_device)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if not tensor.is_meta:
                return tensor.device
    return torch.device("cpu")
