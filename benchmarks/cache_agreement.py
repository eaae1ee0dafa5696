"""Prefill against decode at batch 1: how often a spiking network parts from itself when it reads from a cache.

python benchmarks/cache_agreement.py run --data text.txt --windows 4 --tokens 64
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from onespike import runs
from onespike.deploy.integer import optimize_
from onespike.evaluation.generation import cache_agreement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    pair = runs.load_run(given.run)
    items = runs.choose(given.data, given.windows, pair.loaded.task)
    texts = torch.stack([item.content.ids[: given.tokens] for item in items])
    print("original", cache_agreement(pair.ann, texts), flush=True)
    print("spiking ", cache_agreement(pair.snn, texts), flush=True)
    print(optimize_(pair.snn))
    print("integers", cache_agreement(pair.snn, texts), flush=True)


if __name__ == "__main__":
    main()
