"""λ, the number that all neurons of a network share, and buffers that stay float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from onespike.errors import UsageError


class Float32(nn.Module):
    """A module whose buffers stay float32 under `.half()`, `.to(bfloat16)` or `.double()`.

    A threshold rounded to half precision moves every spike, and casting back does not restore it.
    """

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in self._buffers.items():
            original = before[name]
            if buffer is not None and original is not None and buffer.dtype != torch.float32:
                self._buffers[name] = original.to(buffer.device)
        return self


SMALLEST = torch.finfo(torch.float32).tiny
"""The smallest normal float32: smaller numbers lose digits, and are 0 on many devices."""


def check_scale(value: float) -> None:
    """Refuse a λ that is not in (0, 1], or that float32 would round to 0 or to a few digits."""
    if not SMALLEST <= value <= 1:
        least = (
            f" and not below {SMALLEST:.1e}, the least that float32 holds in full" if 0 < value < 1 else ""
        )
        raise UsageError(f"scale must be in (0, 1]{least}, not {value:g}. The paper uses 0.25 to 0.36.")


class Scale(Float32):
    """λ of eq. 8: one number in (0, 1], shared by all neurons that hold this module.

    >>> shared = Scale(0.25)
    >>> shared.set_(0.5)
    >>> shared
    Scale(λ=0.5)
    """

    value: Tensor

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("value", torch.ones((), dtype=torch.float32))
        self.set_(value)

    def set_(self, value: float) -> None:
        """Change λ in place: a compiled network reads the new value and is not compiled again."""
        check_scale(value)
        with torch.no_grad():
            self.value.fill_(value)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save a copy under the name of each neuron that holds it: tensor files refuse memory that names share."""
        destination[f"{prefix}value"] = self.value if keep_vars else self.value.detach().clone()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        if not self.value.is_meta:
            check_scale(float(self.value))

    def extra_repr(self) -> str:
        return f"λ={self.value.item():.4g}"
