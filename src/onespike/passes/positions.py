"""Pass `positions`: steps by position, in powers of two, where the errors of tokens differ in effect."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from onespike.passes.base import PassContext, PassState, calibration_pass
from onespike.passes.statistics import fisher

SILENT = 2.0**30
FINEST, COARSEST = -4, 4
IGNORED = 1e-9


def of_token_numbers(batch: Any) -> bool:
    """Return whether a network's input consists of integers alone.

    >>> of_token_numbers({"input_ids": torch.ones(2, 5, dtype=torch.long)}), of_token_numbers(torch.ones(2, 3, 8, 8))
    (True, False)
    """
    tensors = [x for x in tree_leaves(batch) if isinstance(x, Tensor)]
    return bool(tensors) and not any(x.is_floating_point() for x in tensors)


@calibration_pass("positions", affine=True)
def positions(state: PassState, context: PassContext) -> PassState:
    """Set gain_t = 2^round(log2 (r_t / median r)), r_t = (E|x_t| / g_t)^⅓; a token without any influence is silent.

    A class token is one token in hundreds: a fine step there costs next to nothing, and its errors go straight to
    the output. After the last attention the other tokens do not reach the output at all. Sequences of token numbers may
    have any length, so a position means nothing there: they are left to the pass `tokens`.
    """
    if of_token_numbers(context.inputs[0]):
        return state
    changes = {}
    for site, row in fisher(state, context).items():
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
