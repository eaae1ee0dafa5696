"""The base of every neuron: thresholds in float32, spikes as integers, one name in the registry; and λ, which they share."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from onespike import kernels
from onespike.errors import CalibrationError, UsageError
from onespike.sites.site import Site
from onespike.spikes import SpikeCode, fire_function
from onespike.spikes.code import by_side
from onespike.spikes.fire_functions import recognize
from onespike.spikes.levels import check_levels


def wants_gradient(x: Tensor) -> bool:
    """Return whether a backward pass may ask for the gradient of x; an exported program needs none."""
    if not torch.is_grad_enabled() or not x.requires_grad or torch.compiler.is_exporting():
        return False
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is None


def straight_through(value: Tensor, x: Tensor, inside: Tensor | None = None) -> Tensor:
    """Return the value, bit for bit, with the gradient of x where it is inside, and none elsewhere: firing has none."""
    through = x if inside is None else torch.where(inside, x, 0.0)
    return value.detach() + (through - through.detach())


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
        least = f" and not below {SMALLEST:.1e}, the least float32 holds in full" if 0 < value < 1 else ""
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


class Neuron(Float32):
    """Turn activations into integer spikes in one call, and spikes into values: o = step±·spikes.

    A subclass defines how many spikes a magnitude fires (`fire`) and the value of a spike (`steps`), or it is `coded` and
    defines its code (`code`) instead of both.

    Args:
        positive: θ⁺, a number or a tensor that broadcasts against the input; 0 switches the side off.
        negative: θ⁻ likewise, as a magnitude.
        levels: the integers it may fire; neurons without separate levels take their number, as N or T.
        rounding: a name of `ROUNDINGS`; only neurons with levels use it.
        scale: λ; only the scale-and-fire neuron uses it. None means 1.
    """

    name: ClassVar[str] = "neuron"
    two_sided: ClassVar[bool] = True
    scaled: ClassVar[bool] = False
    coded: ClassVar[bool] = False  # its code defines what it fires, so that kernels and formats can do it
    dense: ClassVar[bool] = False  # its counts are numbers to multiply by, not spikes: an edge in 8 bits
    affine: ClassVar[bool] = False  # it takes center, offset, gain and typical magnitude
    site: Site | None = None  # where it stands in a converted network
    role: str = ""  # of that site
    calls: float = 1  # per forward
    positive: Tensor
    negative: Tensor

    def __init__(
        self,
        positive: Tensor | float,
        negative: Tensor | float = 0.0,
        *,
        levels: tuple[int, ...],
        rounding: str = "paper",
        scale: Scale | None = None,
    ) -> None:
        super().__init__()
        self.levels = check_levels(levels)
        self.rounding = rounding
        self.scale = scale
        for side, value in (("positive", positive), ("negative", negative)):
            # Cloned, since a threshold shared with its observer would change with it.
            self.register_buffer(side, torch.as_tensor(value).detach().to(torch.float32, copy=True))
        self._plans: dict[Any, Any] = {}
        self._settle_sides()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}  # they point to this neuron's tensors

    def _settle_sides(self) -> None:
        """Fix which sides are on, as Python booleans, so that traced code does not depend on data."""
        for side, value in (("positive", self.positive), ("negative", self.negative)):
            if not bool(value.isfinite().all()) or bool((value < 0).any()):
                raise CalibrationError(
                    f"{self.name}: the {side} threshold must be finite and not negative, "
                    f"not {_brief(value)}. Calibrate again, on data without NaN or infinity."
                )
        self._on = (bool((self.positive > 0).any()), bool((self.negative > 0).any()))
        if not any(self._on):
            raise UsageError(
                f"{self.name}: both sides are off, so it would never fire. "
                "Give a positive or a negative threshold above 0, or leave the site analog."
            )
        if self._on[1] and not self.two_sided:
            raise UsageError(
                f"{self.name}: this neuron has a positive side only, and negative={_brief(self.negative)}. "
                f"Use 'dual-{self.name}' for signed inputs."
            )
        separate = self.largest == self.levels[-1]  # other neurons fire 1 … largest
        levels = self.levels if separate else tuple(range(1, self.largest + 1))
        self._function = fire_function(levels, self.rounding)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._settle_sides()

    @property
    def largest(self) -> int:
        return self.levels[-1]

    def steps(self) -> tuple[Tensor, Tensor]:
        """The value of one spike, one per side."""
        return self.positive, self.negative

    def code(self) -> SpikeCode:
        """Return what its spikes are worth, and for a coded neuron what fires them: the one record that others read."""
        return SpikeCode(*self.active(self.steps()), self._function)

    def active(self, sides: tuple[Tensor, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        return sides[0] if self._on[0] else None, sides[1] if self._on[1] else None

    def fire(self, size: Tensor, threshold: Tensor) -> Tensor:
        """Return how many spikes a magnitude fires: float32, integer-valued, NaN for NaN."""
        raise NotImplementedError

    def counts(self, x: Tensor) -> Tensor:
        """Return signed spike counts as float32, in which every count is exact; NaN stays NaN."""
        if not self.coded:
            return by_side(x.float(), *self.active((self.positive, self.negative)), self.fire)
        fused = self.fused(x, decoded=False)
        return self.code().fire(x) if fused is None else fused

    def spikes(self, x: Tensor) -> Tensor:
        """Return signed spike counts as int32; NaN, which has no integer, becomes 0."""
        return self.counts(x).nan_to_num(nan=0.0).to(torch.int32)

    def decode(self, spikes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the values of the spikes: step⁺ or step⁻ times the count, rounded to `dtype` once."""
        return self.code().decode(spikes, dtype)

    def fired(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signed counts, and their value in the type of x."""
        counts = self.counts(x)
        return counts, self.code().settled(x).decode(counts, x.dtype)

    def fused(self, x: Tensor, *, decoded: bool) -> Tensor | None:
        """Return `forward(x)` if decoded, else `counts(x)`, bit for bit in one pass; None if no kernel fits."""
        return kernels.fire(x, self.code(), self._plans, decoded=decoded) if self.coded else None

    def step(self, current: Tensor, potential: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Run one step of many: the counts that v + x(t) fires, their value, and what remains; v(0) = 0 is None.

        The half step of eq. 11 is in the decision and never in v. After the first step a current can be negative
        where the mean is not, so a side that is off then fires with the threshold of the other side.
        """
        latent = current if potential is None else potential + current
        code = self.code()
        if potential is None or all(self._on) or not self.two_sided:
            fired = self.counts(latent)
        elif self.coded:  # mirrored at the center
            y = code.coordinate(latent)
            fired = code.fire_coordinate(y) - code.fire_coordinate(-y)
        else:
            fired = self.counts(latent) - self.counts(-latent)
        value = code.settled(latent).decode(fired)
        return fired, value, latent - value

    def cut(self, part: Callable[[Tensor], Tensor]) -> Self:
        """Return the same neuron for a part of its input; `part` takes that part of a tensor that broadcasts."""
        return self._with({name: part(value) for name, value in self._buffers.items() if value is not None})

    def _with(self, buffers: Mapping[str, Tensor | None]) -> Self:
        twin = copy.copy(self)
        twin._buffers = {**self._buffers, **buffers}
        return twin

    def straight(self, value: Tensor, x: Tensor) -> Tensor:
        """Return a fired value with the gradient of x, if wanted, where nothing was clipped; steps are constants."""
        if not wants_gradient(x):
            return value
        code = self.code()
        return straight_through(value, x, code.in_range(code.coordinate(x.detach())))

    def forward(self, x: Tensor) -> Tensor:
        """Return `decode(spikes(x))` in the type of x, and NaN where x is NaN; gradients pass straight through."""
        if wants_gradient(x):
            return self.straight(self.forward(x.detach()), x)
        values = self.fused(x, decoded=True)
        return self.fired(x)[1] if values is None else values

    def extra_repr(self) -> str:
        sides = zip("+-", self.active((self.positive, self.negative)), strict=True)
        thresholds = [f"θ{sign}={_brief(theta)}" for sign, theta in sides if theta is not None]
        return ", ".join([self.name, *thresholds, self._describe()])

    def _describe(self) -> str:
        if pattern := recognize(self.levels):
            text = f"1..{pattern[0]}" + (f"+{pattern[1]} tail up to {self.largest}" if pattern[1] else "")
        else:
            text = ",".join(str(y) for y in self.levels[:4])
            text += f"… {len(self.levels)} up to {self.largest}" if len(self.levels) > 4 else ""
        return f"levels={text}" + ("" if self.rounding == "paper" else f", rounding={self.rounding}")


def _brief(threshold: Tensor) -> str:
    if threshold.numel() == 1:
        return f"{threshold.item():.4g}"
    return f"{threshold.min().item():.4g}..{threshold.max().item():.4g} {tuple(threshold.shape)}"


NEURONS: dict[str, type[Neuron]] = {}

Registered = TypeVar("Registered", bound=type[Neuron])


def neuron(name: str) -> Callable[[Registered], Registered]:
    """Register a neuron class under a name for recipes and the command line."""

    def register(cls: Registered) -> Registered:
        if name in NEURONS:
            taken = NEURONS[name].__name__
            raise UsageError(f"the neuron '{name}' is registered already, as {taken}. Choose another name.")
        cls.name = name
        NEURONS[name] = cls
        return cls

    return register
