"""A scale-and-fire neuron between two constants: it codes x − center, and its value starts from an offset."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from onespike import kernels
from onespike.errors import UsageError
from onespike.neurons.base import Neuron, neuron
from onespike.neurons.code import Code, row_gain
from onespike.neurons.scale_and_fire import ScaleFire


@neuron("affine-sfn")
class AffineFire(ScaleFire):
    """o = offset + gain·step±·G((x − center)/gain): only G is sent as spikes (eqs. 8–14 for the rest).

    A product with the constant offset is constant, W·(offset + s) = W·offset + W·s, so it is a bias.
    The gain is a power of two per position, so that dividing and multiplying by it are exact shifts. With `typical`
    each row (a token) multiplies it by a power of two that depends on its magnitude (`row_gain`), not its position.

    Args:
        *args: as for `ScaleFire`.
        center: what is subtracted before the neuron fires; it broadcasts against the input.
        offset: what is added to the spikes' value; the center by default.
        gain: powers of two that broadcast against the input; 1 by default.
        typical: the mean |x − center| of a row whose gain is unchanged; None if magnitudes do not matter.
        **kwargs: as for `ScaleFire`.

    >>> cell = AffineFire(0.5, 0.5, levels=(1, 2, 3), center=torch.tensor(2.0), gain=torch.tensor([1.0, 4.0]))
    >>> cell.spikes(torch.tensor([3.0, 3.0])).tolist(), cell(torch.tensor([3.0, 4.0])).tolist()
    ([2, 1], [3.0, 4.0])
    """

    center: Tensor
    offset: Tensor
    gain: Tensor
    typical: Tensor | None
    powers: ClassVar[bool] = True
    """Whether the gain of a row by its magnitude is a power of two."""

    def __init__(
        self,
        *args: Any,
        center: Tensor | None = None,
        offset: Tensor | None = None,
        gain: Tensor | None = None,
        typical: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        center = torch.zeros(()) if center is None else center
        constants = {"center": center, "offset": center if offset is None else offset}
        constants["gain"] = torch.ones(()) if gain is None else gain
        for name, value in constants.items():
            self.register_buffer(name, value.detach().to(torch.float32, copy=True))
        given = None if typical is None else typical.detach().to(torch.float32, copy=True)
        self.register_buffer("typical", given)
        if given is not None and not (given.numel() == 1 and 0 < float(given) < float("inf")):
            raise UsageError(
                f"{self.name}: the magnitude of a typical row must be one finite number above 0."
            )
        if bool((self.gain.frexp().mantissa != 0.5).any()):
            raise UsageError(f"{self.name}: a gain must be a power of two, so that applying it is exact.")
        self._settle_sides()

    def _settle_sides(self) -> None:
        super()._settle_sides()
        known = "center" in self._buffers
        self.shifts = known and bool((self.offset != 0).any())
        """Whether the value has a constant part, which products of two activations pay for."""
        self._centered = known and bool((self.center != 0).any())
        self._gains = known and bool((self.gain != 1).any())

    @property
    def settles(self) -> bool:  # type: ignore[override]
        """Whether the steps of rows depend on their magnitudes."""
        return self.typical is not None

    def _gain(self, x: Tensor) -> Tensor:
        """Return the gains of the rows of this input."""
        if self.typical is None:
            return self.gain
        return self.gain * row_gain(x.float() - self.center, self.typical, self.powers)

    def _scaled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (x − center) / gain and the gain."""
        gain = self._gain(x)
        return (x.float() - self.center) / gain, gain

    def settled(self, x: Tensor) -> Neuron:
        """Return the same neuron with the gains of the rows of this input."""
        if self.typical is None:
            return self
        twin: Any = self._with({"gain": self._gain(x.detach())})
        twin._buffers["typical"] = None
        twin._gains = True
        return twin  # type: ignore[no-any-return]

    def constants(self) -> kernels.Constants:
        """Return the constants of `ScaleFire`, with center, offset and gain where they have an effect."""
        around = self._buffers
        return kernels.Constants(
            *super().constants()[:3],
            around["center"] if self._centered else None,
            around["offset"] if self.shifts else None,
            around["gain"] if self._gains else None,
        )

    def fused(self, x: Tensor, *, decoded: bool) -> Tensor | None:
        """Run the fused kernel with the gains of this input."""
        constants = self.constants()
        if self.typical is not None:
            constants = constants._replace(gain=self._gain(x))
        return kernels.fire(x, constants, self.form, self._plans, decoded=decoded)

    def plain_counts(self, x: Tensor) -> Tensor:
        """±G(|x − center|/(gain·step±) + ½)."""
        return super().plain_counts(self._scaled(x)[0])

    def fired(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the counts, and offset + gain·step±·counts."""
        counts = self.counts(x)
        return counts, self.code()._replace(gain=self._scaled(x)[1], typical=None).decode(counts, x.dtype)

    def plain(self, x: Tensor) -> Tensor:
        """Return the value, computed with torch's operations."""
        scaled, gain = self._scaled(x)
        return self.code()._replace(gain=gain, typical=None).decode(super().plain_counts(scaled), x.dtype)

    def mirrored_counts(self, x: Tensor) -> Tensor:
        """Return the counts mirrored at the center."""
        y = self._scaled(x)[0]
        return super().plain_counts(y) - super().plain_counts(-y)

    def code(self) -> Code:
        """Return offset + gain·step±·spikes; the offset is left out where it is 0."""
        offset = self.offset if self.shifts else None
        return (
            super()
            .code()
            ._replace(
                center=self.center, gain=self.gain, offset=offset, typical=self.typical, shifts=self.powers
            )
        )

    def in_range(self, x: Tensor) -> Tensor:
        """Return where the largest count does not clip x − center."""
        return super().in_range(self._scaled(x)[0])

    def row_steps(self) -> Tensor | None:
        """Return the steps times the gain; None if there are other constants or the gain differs within a row."""
        step = None if self.shifts or self._centered or self.settles else super().row_steps()
        if step is None or self.gain.dim() > 3 or (self.gain.dim() and self.gain.shape[-1] > 1):
            return None
        return step * self.gain
