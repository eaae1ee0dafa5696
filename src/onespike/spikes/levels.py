"""The integers a neuron may fire: chosen once, before conversion, and shared by every site."""

# ruff: noqa: N803, N806 (M is the paper's name)
from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from onespike.errors import CalibrationError, UsageError, unknown
from onespike.spikes.density import density_levels
from onespike.spikes.level_checks import check_largest, check_levels

KINDS = ("mixed", "linear", "exponential", "density", "bits")


def linear_levels(M: int) -> tuple[int, ...]:
    """y_k = k for 1 ≤ k ≤ 2M, the linear fire function of the paper's ablation.

    >>> linear_levels(3)
    (1, 2, 3, 4, 5, 6)
    """
    return LevelSpec("linear", M).levels()


def exponential_levels(M: int) -> tuple[int, ...]:
    """y_k = 2^(k−1) for 1 ≤ k ≤ 2M, the exponential fire function of the paper's ablation.

    >>> exponential_levels(3)
    (1, 2, 4, 8, 16, 32)
    """
    return LevelSpec("exponential", M).levels()


def mixed_levels(M: int, tail: int | None = None) -> tuple[int, ...]:
    """y_k = k for k ≤ M, then M − 1 + 2^(k−M) for M < k ≤ M + tail (eq. 12, where tail = M).

    The paper prints the second range as N+1 ≤ k; it is M+1 ≤ k, since the largest level must be the
    denominator M − 1 + 2^M of eq. 16.

    >>> mixed_levels(8)
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 23, 39, 71, 135, 263)
    >>> mixed_levels(8, tail=3)
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15)
    """
    return LevelSpec("mixed", M, M if tail is None else tail).levels()


@dataclass(frozen=True)
class LevelSpec:
    """A fire function by name, such as `mixed:8`, `density:4` or `1,2,4`.

    Attributes:
        kind: `mixed`, `linear`, `exponential`, `density`, `bits` or `explicit`.
        M: half the number of levels per side, whatever the kind: `linear:8` has 16, as `mixed:8` has. With a tail of its own,
            `mixed` has M levels before it; for `bits`, M is the number of bits.
        tail: for `mixed`, the number of levels in the tail.
        explicit: the integers themselves, for `explicit`.
    """

    kind: str
    M: int = 0
    tail: int = 0
    explicit: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "explicit":
            check_levels(self.explicit)
            return
        if self.kind not in KINDS:
            raise unknown("kind of levels", self.kind, KINDS)
        if self.M < 1 or self.tail < 0:
            raise UsageError(f"levels '{self}' need M ≥ 1 and a tail ≥ 0. The paper uses mixed:8.")
        if self.kind != "mixed" and self.tail:
            raise UsageError(
                f"levels of kind '{self.kind}' have no tail. Write {self.kind}:{self.M}, or use mixed."
            )
        if self.largest is not None:
            check_largest(self.largest, str(self))

    def __str__(self) -> str:
        if self.kind == "explicit":
            return ",".join(str(y) for y in self.explicit) + ("," if len(self.explicit) == 1 else "")
        return f"{self.kind}:{self.M}" + (
            f"+{self.tail}" if self.kind == "mixed" and self.tail != self.M else ""
        )

    @property
    def needs_histogram(self) -> bool:
        """Whether the levels depend on the calibrated distribution."""
        return self.kind == "density"

    @property
    def largest(self) -> int | None:
        """The largest level, or None if the distribution decides it."""
        if self.kind == "explicit":
            return self.explicit[-1]
        if self.kind == "density":
            return None
        # A shift by an absurd M would exhaust memory; past 64 bits the answer is "too large" anyway.
        if self.kind == "mixed":
            return self.M - 1 + (1 << min(self.tail, 64))
        if self.kind == "bits":
            return (1 << min(self.M, 64)) - 1
        return 2 * self.M if self.kind == "linear" else 1 << min(2 * self.M - 1, 64)

    def levels(
        self, histogram: tuple[Tensor, Tensor] | None = None, rounding: str = "paper"
    ) -> tuple[int, ...]:
        """Return the integers, strictly increasing; `density` takes them from `histogram` = (values, counts).

        >>> parse_levels("linear:2").levels()
        (1, 2, 3, 4)
        """
        if self.kind == "explicit":
            return self.explicit
        if self.kind == "bits":
            return tuple(range(1, 2**self.M))
        if self.kind == "linear":
            return tuple(range(1, 2 * self.M + 1))
        if self.kind == "exponential":
            return tuple(2**k for k in range(2 * self.M))
        if self.kind == "mixed":
            return (*range(1, self.M + 1), *(self.M - 1 + 2**k for k in range(1, self.tail + 1)))
        if histogram is None:
            raise CalibrationError(
                f"levels '{self}' are chosen from a histogram, and there is none. "
                f"Calibrate first, or use mixed:{self.M}."
            )
        return density_levels(*histogram, 2 * self.M, rounding)


def parse_levels(spec: str) -> LevelSpec:
    """Parse `mixed:8`, `mixed:64+8`, `linear:8`, `exponential:8`, `density:8`, `bits:8`, `8` (mixed) or `1,2,4,9`.

    >>> parse_levels("8") == parse_levels("mixed:8") == LevelSpec("mixed", 8, 8)
    True
    >>> parse_levels("mixed:64+8").largest
    319
    """
    if not isinstance(spec, str):
        raise UsageError(f"levels must be text such as 'mixed:8' or '1,2,4', not {spec!r}.")
    text = spec.strip()
    if "," in text:
        return LevelSpec(
            "explicit", explicit=tuple(_integer(part, spec) for part in text.rstrip(",").split(","))
        )
    kind, colon, size = text.rpartition(":")
    if not colon:
        # A bare number is mixed:M; a bare word is a kind without its size.
        kind, size = ("mixed", text) if text[:1].isdigit() or text[:1] == "-" else (text, "")
    if kind not in KINDS:
        raise unknown("kind of levels", kind, KINDS)
    first, plus, second = size.partition("+")
    M = _integer(first, spec)
    if plus:
        return LevelSpec(kind, M, _integer(second, spec))
    return LevelSpec(kind, M, M if kind == "mixed" else 0)


def _integer(text: str, spec: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"levels '{spec}': {text!r} is not an integer. Write for example mixed:8, mixed:64+8 or 1,2,4."
        ) from None
