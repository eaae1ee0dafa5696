"""The traces of several processes as one: the same as if one process had seen all the batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onespike.trace import SiteFacts, Trace


def merge_traces(parts: Sequence[Trace]) -> Trace:
    """One trace of all batches, where part i of n has seen every n-th batch from the i-th on."""
    if len(parts) == 1:
        return parts[0]
    whole = Trace()
    for facts in _in_order(parts):
        known = whole.sites.get(facts.site)
        whole.sites[facts.site] = facts if known is None else _both(known, facts)
    for part in parts:
        for product, macs in part.uncovered.items():
            whole.uncovered[product] = whole.uncovered.get(product, 0) + macs
        for convolution, batchnorm in part.pairs.items():
            if whole.pairs.setdefault(convolution, batchnorm) != batchnorm:
                whole.unpaired.add(convolution)
        whole.unpaired |= part.unpaired
        whole.consumed |= part.consumed
        whole.heads |= part.heads
        whole.forwards += part.forwards
        whole.output_depends |= part.output_depends
    whole.heads -= whole.consumed
    return whole


def _in_order(parts: Sequence[Trace]) -> list[SiteFacts]:
    """The sites of all parts by the batch that reached them first, and within a batch as they ran."""
    every = [
        (facts.first * len(parts) + number, facts)
        for number, part in enumerate(parts)
        for facts in part.sites.values()
    ]
    return [facts for _, facts in sorted(every, key=lambda pair: pair[0])]


def _both(known: SiteFacts, other: SiteFacts) -> SiteFacts:
    return dataclasses.replace(
        known,
        calls=known.calls + other.calls,
        forwards=known.forwards + other.forwards,
        macs=known.macs + other.macs,
        sources=known.sources | other.sources,
        varies=known.varies or other.varies or known.fingerprint != other.fingerprint,
    )
