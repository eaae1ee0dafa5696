"""Gradients of a neuron: firing has none, so they pass straight through wherever the neuron does not clip."""

from __future__ import annotations

import torch
from torch import Tensor


def wants_gradient(x: Tensor) -> bool:
    """Return whether a backward pass may ask for the gradient of x; an exported program needs none."""
    if not torch.is_grad_enabled() or not x.requires_grad or torch.compiler.is_exporting():
        return False
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is None


def straight_through(value: Tensor, x: Tensor, inside: Tensor | None = None) -> Tensor:
    """Return the value, bit for bit, with the gradient of x where it is inside, and none elsewhere."""
    through = x if inside is None else torch.where(inside, x, 0.0)
    return value.detach() + (through - through.detach())
