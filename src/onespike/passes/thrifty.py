"""Pass `thrifty`: a level fires where what it saves in squared error is worth its additions."""

from __future__ import annotations

from onespike.energy.columns import reading_of
from onespike.passes.base import PassContext, PassState, calibration_pass


@calibration_pass("thrifty", needs=("nearest",))
def thrifty(state: PassState, given: PassContext) -> PassState:
    """Fire the level of least (|x|/step − y)² + ½·additions(y), by the column of the budget, instead of the nearest.

    The nearest level spends additions where they hardly lower the error: on values just above half a step, or on
    3 = 4 − 1 where 4 is about as near. Finer steps with a dead zone have about a quarter less squared error at the same
    energy. Softmax sites keep the nearest level: what their rows lose adds up.
    """
    rounding = f"thrifty-{reading_of(given.energy).name}"
    sites = (site for site, t in state.spiking.items() if t.role != "softmax")
    return state.with_sites({site: {"rounding": rounding} for site in sites})
