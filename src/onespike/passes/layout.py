"""Pass `layout`: the integers a site may fire, chosen for what a spike costs."""

from __future__ import annotations

from dataclasses import replace

import torch

from onespike.energy.columns import reading_of
from onespike.energy.signed_digits import naf_weight
from onespike.neurons import mixed_levels
from onespike.passes.base import PassContext, PassState, calibration_pass

UNIFORM, TAIL = 64, 11
DIGITS, LARGEST = (2, 3, 4), 2048


def digit_levels(digits: int, largest: int) -> tuple[int, ...]:
    """All integers up to `largest` with at most that many non-zero signed binary digits.

    >>> digit_levels(2, 20)
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 17, 18, 20)
    """
    every = torch.arange(1, largest + 1)
    return tuple(every[naf_weight(every) <= digits].tolist())


@calibration_pass("layout")
def layout(state: PassState, given: PassContext) -> PassState:
    """Uniform up to 64 and a tail to 2111; where binary digits are paid for, all integers of at most two digits.

    Steps stay as they are, those of softmax sites too: more levels cost nothing where spikes are counted, and the
    step decides what is lost. Where digits are paid for, `allocate` chooses for each site how many of them a spike
    may have: two are cheap, and large values want more.
    """
    layouts: tuple[tuple[int, ...], ...] = (mixed_levels(UNIFORM, TAIL),)
    if reading_of(given.energy).by_digits:
        layouts = tuple(digit_levels(digits, LARGEST) for digits in DIGITS)
    changed = state.with_sites({site: {"levels": layouts[0]} for site in state.spiking})
    return replace(changed, layouts=layouts)
