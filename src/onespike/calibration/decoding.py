"""The second path of networks that write: token by token from a cache, some run other products than for a whole text."""

import logging
import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from onespike.errors import OnespikeError
from onespike.runtime.batches import take
from onespike.sites import Site
from onespike.sites.padding import token_lengths
from onespike.sites.tracer import Observe, SiteFacts, Trace, Tracer

INPUTS, TOKENS = 4, 4  # inputs that are continued, and by how many tokens
FAILURES = (ArithmeticError, AttributeError, LookupError, OnespikeError, RuntimeError, TypeError, ValueError)


def prompts(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a few inputs, their sequences of token numbers shortened, so that there is room for what is written."""
    longest = max(token_lengths(batch), default=0)

    def shortened(x: Tensor) -> Tensor:
        fits = x.dim() == 2 and x.shape[1] == longest > TOKENS and not x.is_floating_point()
        return x[:, :-TOKENS] if fits else x

    return {**tree_map_only(Tensor, shortened, take(dict(batch), slice(0, INPUTS))), "use_cache": True}


def decoding_sites(model: Any, batch: Any, trace: Trace, observe: Observe) -> dict[Site, SiteFacts]:
    """Continue a few inputs with the `generate` of transformers; return the sites that are not in `trace` yet.

    `observe` sees these alone. Their MACs are 0, since no forward of calibration runs them.
    """
    if not hasattr(model, "prepare_inputs_for_generation") or not isinstance(batch, Mapping):
        return {}
    reached = set[Site]()

    def see(site: Site, x: Tensor) -> None:
        if site not in trace.sites and x.numel():
            reached.add(site)
            observe(site, x)

    length = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS}
    tracer = Tracer(model, see)
    tracer.forward = partial(model.generate, do_sample=False, num_beams=1, **length)
    level = logging.root.manager.disable
    try:
        with warnings.catch_warnings(action="ignore"):  # this text is nobody's: notices only confuse
            logging.disable(logging.WARNING)
            tracer.run(**prompts(batch))
    except FAILURES:  # its `generate` takes other inputs than its forward: then calibration has one path
        return {}
    finally:
        logging.disable(level)
    return {  # what varies while one text is written says nothing of what varies between inputs
        site: replace(facts, macs=0, calls=trace.forwards, first=math.inf, varies=False)
        for site, facts in tracer.trace.sites.items()
        if site in reached
    }
