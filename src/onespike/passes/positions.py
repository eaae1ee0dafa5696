"""Pass `positions`: steps by position, in powers of two, where tokens differ in what their errors do."""

from __future__ import annotations

import torch

from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.passes.statistics import fisher

SILENT = 2.0**30
FINEST, COARSEST = -4, 4
IGNORED = 1e-9


@calibration_pass("positions")
def positions(state: PassState, given: PassContext) -> PassState:
    """gain_t = 2^round(log2 (r_t / median r)), r_t = (E|x_t| / g_t)^⅓; a token without any influence is silent.

    A class token is one token in hundreds: a fine step there costs next to nothing, and its errors go straight to
    the output. After the last attention the others do not reach the output at all.
    """
    changes = {}
    for site, row in fisher(state, given).items():
        axis = state.axes(site).position
        if axis is None or row.magnitude.shape[axis] == 1:
            continue
        information = row.mean((axis,)).flatten()
        size = row.magnitude.movedim(axis, 0).flatten(1).mean(1)
        matters = information > IGNORED * information.max()
        ideal = (size / information.clamp(min=1e-30)).pow(1 / 3).log2()
        exponent = (ideal - ideal[matters].median()).round().clamp(FINEST, COARSEST)
        gain = torch.where(matters, exponent.exp2(), torch.tensor(SILENT, dtype=exponent.dtype))
        if bool((gain != 1).any()):
            changes[site] = {"gain": gain.float().view(-1, *[1] * (-axis - 1))}
    return state.with_sites(changes)
