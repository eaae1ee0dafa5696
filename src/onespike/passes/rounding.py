"""Passes `nearest` and `thrifty`: which level fires between two of them."""

from __future__ import annotations

from onespike.energy.columns import reading_of
from onespike.passes.base import PassContext, PassState, calibration_pass


@calibration_pass("nearest")
def nearest(state: PassState, context: PassContext) -> PassState:
    """Fire level y_i from step·(y_{i−1} + y_i)/2 on instead of step·(y_i − ½): the nearest level, not the floor."""
    return state.with_sites({site: {"rounding": "nearest"} for site in state.spiking})


@calibration_pass("thrifty")
def thrifty(state: PassState, context: PassContext) -> PassState:
    """Fire the level of least (|x|/step − y)² + ½·digits(y) where digits are charged, and else the nearest.

    The nearest level spends digits where they hardly lower the error: on values just above half a step, or on 3 = 4 − 1
    where 4 is about as near. Finer steps with a dead zone have about a quarter less squared error for the same digits. Where
    spikes are charged by their size, every level would fire too late, and large values shrink: the nearest is better.
    """
    rounding = "thrifty" if reading_of(context.energy).by_digits else "nearest"
    return state.with_sites({site: {"rounding": rounding} for site in state.spiking})
