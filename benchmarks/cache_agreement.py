"""Prefill against decode at batch 1: how often a spiking network parts from itself when it reads from a cache.

python benchmarks/cache_agreement.py run --data text.txt --windows 4 --tokens 64
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import records
import torch
from records import Column
from torch import Tensor

from onespike import runs
from onespike.deploy.integer import optimize_
from onespike.runtime.forward import device_of, evaluating


class Agreement(NamedTuple):
    """A text read at once, compared with the same text read token by token from a cache.

    Shares of positions with the same best next token, and with the same scores apart from rounding (1e-4 of their
    spread); the mean KL of the next token, in nats.
    """

    positions: int
    agreement: float
    kl: float
    identical: float


def cache_agreement(model: Any, texts: Tensor) -> Agreement:
    """Compare prefill with decode at batch 1.

    The two compute the same sums in different orders. In the original network that changes the last bits; in a
    spiking one a value within rounding of a threshold may fire another level, which later layers amplify.
    """
    same = alike = positions = 0
    total = 0.0
    with evaluating(model):
        for ids in texts.to(device_of(model)).split(1):
            whole, cache, parts = model(input_ids=ids, use_cache=False).logits[0], None, []
            for token in ids[0]:
                output = model(input_ids=token.view(1, 1), past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                parts.append(output.logits[0, -1])
            apart = torch.stack(parts)
            log_p, log_q = whole.log_softmax(-1), apart.log_softmax(-1)
            total += float((log_p.exp() * (log_p - log_q)).sum())
            same += int((whole.argmax(-1) == apart.argmax(-1)).sum())
            alike += int(((whole - apart).abs().amax(-1) <= 1e-4 * whole.std(-1)).sum())
            positions += len(whole)
    return Agreement(positions, same / positions, total / positions, alike / positions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    records.option(parser)
    given = parser.parse_args()
    pair = runs.load(given.run)
    items = runs.choose(given.data, given.windows, pair.loaded.task)
    texts = torch.stack([item.content[: given.tokens] for item in items])
    found = {"original": cache_agreement(pair.ann, texts), "spiking": cache_agreement(pair.snn, texts)}
    print(optimize_(pair.snn))
    found["spiking, on integers (`optimize`)"] = cache_agreement(pair.snn, texts)
    for name, of in found.items():
        print(name, of)
    if given.record:
        cells = [
            {"network": name, "same": 100 * of.agreement, "kl": of.kl, "scores": 100 * of.identical}
            for name, of in found.items()
        ]
        columns = {
            "network": Column("network"), "same": Column("best next token the same", "%", ".1f"),
            "kl": Column("KL, nats per token", "", ".3f"), "scores": Column("scores the same", "%", ".1f"),
        }  # fmt: skip
        about = f"A text read at once and token by token from a cache, batch 1; {pair.loaded.spec}, {len(items)} × {given.tokens} tokens of {Path(given.data).name}."
        records.write(given.record, cells, about=about, columns=columns, code=["src/onespike/deploy"])


if __name__ == "__main__":
    main()
