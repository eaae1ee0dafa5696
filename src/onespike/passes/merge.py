"""Pass `merge`: similar neighboring tokens become one behind each block, so that the same energy buys finer steps."""

from dataclasses import replace

from onespike.calibration.stream import calibrate
from onespike.calibration.thresholds import Merging
from onespike.conversion.merging import blocks_of, merging
from onespike.errors import OnespikeError, UsageError, first_line
from onespike.passes.base import PassContext, PassState, calibration_pass

SHARE = 25
"""Each block merges one pair for so many tokens."""
FIRST = 4
"""The first of so many parts of a network merges nothing: its tokens still differ."""


@calibration_pass("merge", stage="network", whole=True)
def merge(state: PassState, context: PassContext) -> PassState:
    """Let blocks of a transformer merge one pair of neighboring tokens in 25, and calibrate again.

    The first quarter of the blocks and the last one merge nothing. Budgets and energy stay ratios of the network that merges nothing.
    """
    attention = [(site.owner, t.shape[-1]) for site, t in state.thresholds.items() if t.role == "softmax"]
    blocks = blocks_of(owner for owner, _ in attention)
    if not blocks:
        raise UsageError("merge: this network has no blocks with one attention each. Leave the pass out.")
    chosen = blocks[(len(blocks) + 1) // FIRST :]
    pairs = dict.fromkeys(chosen, max(1, round(attention[0][1] / SHARE)))
    try:
        with merging(context.model, pairs):
            merged = calibrate(context.model, context.inputs, state.recipe)
    except (OnespikeError, RuntimeError) as error:
        raise UsageError(
            f"merge: this network does not work on fewer tokens ({first_line(error)}). Leave the pass out."
        ) from error
    saved = state.thresholds.macs - merged.macs
    provenance = {**merged.provenance, **state.thresholds.provenance}
    return replace(state, thresholds=replace(merged, provenance=provenance, merging=Merging(pairs, saved)))
