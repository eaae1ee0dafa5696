"""The integers a neuron may fire: chosen once, before conversion, and shared by every site."""

# ruff: noqa: N803, N806 (M is the paper's name)
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from onespike.errors import UsageError, unknown

KINDS: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "mixed": lambda M, tail: (M, tail),
    "linear": lambda M, tail: (2 * M, 0),
    "exponential": lambda M, tail: (1, 2 * M - 1),
    "bits": lambda M, tail: ((1 << min(max(M, 0), 64)) - 1, 0),
}
LARGEST = 2**24  # float32 represents every integer up to here; beyond, spike counts would be rounded


def check_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels as a tuple, or raise the reason why a neuron cannot fire them."""
    text = ",".join(str(y) for y in levels[:8]) + ("…" if len(levels) > 8 else "")
    if not levels or any(not isinstance(y, int) or y < 1 for y in levels):
        raise UsageError(f"levels must be positive integers, not '{text}'. Write 1,2,4 or mixed:8, say.")
    if any(b <= a for a, b in pairwise(levels)):
        raise UsageError(f"levels must increase, and '{text}' do not. Write each once, the smallest first.")
    _check_largest(levels[-1], text)
    return tuple(levels)


def _check_largest(largest: int, text: str) -> None:
    if largest > LARGEST:
        raise UsageError(
            f"levels '{text}' reach {largest}, and above 2**24 counts are not exact in float32. "
            "Use fewer levels, or a shorter tail such as mixed:64+8."
        )


def mixed_levels(M: int, tail: int | None = None, name: str = "") -> tuple[int, ...]:
    """y_k = k for k ≤ M, then M − 1 + 2^(k−M) for M < k ≤ M + tail (eq. 12, where tail = M).

    The paper prints the second range as N+1 ≤ k; it is M+1 ≤ k, since the largest level must be the
    denominator M − 1 + 2^M of eq. 16. Linear levels have no tail, exponential ones have M = 1. A mistake is reported
    under the name.

    >>> mixed_levels(8, tail=3)
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15)
    """
    name, tail = name or f"mixed:{M}", M if tail is None else tail
    if M < 1 or tail < 0:
        raise UsageError(f"levels '{name}' need M ≥ 1 and a tail ≥ 0. The paper uses mixed:8.")
    # A shift by an absurd tail would exhaust memory; past 64 bits the answer is "too large" anyway.
    _check_largest(M - 1 + (1 << min(tail, 64)), name)
    return (*range(1, M + 1), *(M - 1 + 2**k for k in range(1, tail + 1)))


class LevelSpec(NamedTuple):
    """A fire function by name, such as `mixed:8`, and its integers."""

    name: str
    integers: tuple[int, ...]


def parse_levels(text: str) -> LevelSpec:
    """Parse `mixed:8`, `mixed:64+8`, `linear:8`, `exponential:8`, `bits:8`, `8` (mixed) or `1,2,4,9`."""
    if not isinstance(text, str):
        raise UsageError(f"levels must be text such as 'mixed:8' or '1,2,4', not {text!r}.")

    def integer(digits: str) -> int:
        try:
            return int(digits)
        except ValueError:
            raise UsageError(
                f"levels '{text}': {digits!r} is not an integer. Write for example mixed:8, mixed:64+8 or 1,2,4."
            ) from None

    name = text.strip()
    if "," in name:
        levels = check_levels(tuple(map(integer, name.rstrip(",").split(","))))
        return LevelSpec(",".join(map(str, levels)) + ("," if len(levels) == 1 else ""), levels)
    kind, colon, size = name.rpartition(":")
    if not colon:
        # A bare number is mixed:M; a bare word is a kind without its size.
        kind, size = ("mixed", name) if name[:1].isdigit() or name[:1] == "-" else (name, "")
    if kind not in KINDS:
        raise unknown("kind of levels", kind, KINDS)
    first, plus, second = size.partition("+")
    M = integer(first)
    tail = integer(second) if plus else M
    if plus and kind != "mixed":
        raise UsageError(f"levels of kind '{kind}' have no tail. Write {kind}:{M}, or use mixed.")
    name = f"{kind}:{M}" + (f"+{tail}" if tail != M else "")
    return LevelSpec(name, mixed_levels(*KINDS[kind](M, tail), name))
