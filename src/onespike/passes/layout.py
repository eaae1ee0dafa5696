"""Pass `layout`: the integers a site may fire, chosen for what a spike costs."""

from __future__ import annotations

import torch

from onespike.neurons import mixed_levels
from onespike.passes.base import Given, State, calibration_pass
from onespike.tally import naf_weight

UNIFORM, TAIL = 64, 11
DIGITS, LARGEST = 2, 2048


def digit_levels(digits: int, largest: int) -> tuple[int, ...]:
    """All integers up to `largest` with at most that many non-zero signed binary digits.

    >>> digit_levels(2, 20)
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 17, 18, 20)
    """
    every = torch.arange(1, largest + 1)
    return tuple(every[naf_weight(every) <= digits].tolist())


@calibration_pass("layout")
def layout(state: State, given: Given) -> State:
    """Uniform up to 64 and a tail to 2111; where binary digits are paid for, all integers of at most two digits.

    Steps stay as they are, those of softmax sites too: more levels cost nothing where spikes are counted, and the
    step decides what is lost.
    """
    levels = digit_levels(DIGITS, LARGEST) if given.energy == "binary" else mixed_levels(UNIFORM, TAIL)
    return state.with_sites({site: {"levels": levels} for site in state.spiking})
