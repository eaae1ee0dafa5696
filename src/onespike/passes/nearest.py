"""Pass `nearest`: thresholds at the midpoints of levels, also in the sparse tail."""

from __future__ import annotations

from onespike.passes.base import PassContext, PassState, calibration_pass


@calibration_pass("nearest")
def nearest(state: PassState, context: PassContext) -> PassState:
    """Fire level y_i from step·(y_{i−1} + y_i)/2 on instead of step·(y_i − ½): the nearest level, not the floor."""
    return state.with_sites({site: {"rounding": "nearest"} for site in state.spiking})
