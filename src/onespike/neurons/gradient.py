"""Gradients of a neuron: firing has none, so they pass straight through wherever the neuron does not clip."""

from __future__ import annotations

import torch
from torch import Tensor


def wants_gradient(x: Tensor) -> bool:
    """Return whether a backward pass may ask for the gradient of x; an exported program needs none."""
    if not torch.is_grad_enabled() or not x.requires_grad or torch.compiler.is_exporting():
        return False
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is None


def in_range(x: Tensor, positive: Tensor, negative: Tensor, largest: int) -> Tensor:
    """Return where x rounds to a count from −largest to largest, in steps of its side; an off side has only count 0."""
    reach = largest + 0.5
    high = torch.where(positive > 0, reach * positive, negative / 2)
    low = torch.where(negative > 0, reach * negative, positive / 2)
    return (x > -low) & (x < high)


def straight_through(value: Tensor, x: Tensor, inside: Tensor | None = None) -> Tensor:
    """Return the value, bit for bit, with the gradient of x where it is inside, and none elsewhere."""
    through = x if inside is None else torch.where(inside, x, 0.0)
    return value.detach() + (through - through.detach())
