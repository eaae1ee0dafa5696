"""What the integer form of a run loses beside its float form: the task's own metric, paired input by input.

    onespike convert timm:vit_tiny_patch16_224 --weights vit_tiny.safetensors --calibrate DIR --limit 128 --out run
    python benchmarks/integer_accuracy.py run --data imagenet/val [--limit 1000] [--out integer-accuracy.json]

Every input passes the original, the converted network and its integer form once. Each pair of them is scored as
`onespike evaluate` scores the original and the converted one, so differences have the task's paired standard error.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import records
from records import Column, Figure

from onespike.deploy.integer import optimize
from onespike.runs import choose_labeled, load
from onespike.runtime.atomic import write_atomically
from onespike.runtime.batches import call
from onespike.runtime.forward import evaluating

PAIRS = (("original", "float"), ("original", "integer"), ("float", "integer"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, help="a folder that `onespike convert` wrote")
    parser.add_argument("--data", required=True, help="labeled inputs that calibration has not seen")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("integer-accuracy.json"))
    records.option(parser)
    options = parser.parse_args()
    pair = load(options.run)
    items = choose_labeled(pair.loaded, options.data, None, options.limit)
    networks = {"original": pair.ann, "float": pair.snn, "integer": optimize(pair.snn).eval()}
    metrics = {of: pair.loaded.task.metric(items) for of in PAIRS}
    seconds = dict.fromkeys(networks, 0.0)
    for x, labels in pair.loaded.batches(items, options.batch_size):
        answers = {}
        for name, network in networks.items():
            with evaluating(network):
                started = time.process_time()
                answers[name] = call(network, x)
                seconds[name] += time.process_time() - started
        for (before, after), metric in metrics.items():
            metric.update(answers[before], answers[after], labels)
    found = {f"{before} → {after}": metrics[before, after].compute() for before, after in PAIRS}
    write_atomically(options.out, json.dumps({"pairs": found, "processor seconds": seconds}, indent=1) + "\n")
    for name, scores in found.items():
        print(name, json.dumps(scores))
    if options.record:
        # a task says by itself what it scores: the figures that both networks have
        cells = [
            {"pair": name, "score": key, "before": scores["ann"][key], "after": scores["snn"][key]}
            | (
                {"difference": Figure(scores["difference"], error=scores["standard_error"])}
                if "difference" in scores
                else {}
            )
            | ({"kl": scores["kl"]} if "kl" in scores else {})
            for name, scores in found.items()
            for key in list(scores["ann"])[:1]
        ]
        columns = {
            "pair": Column("networks"), "score": Column("score"), "before": Column("first", "", ".1f"),
            "after": Column("second", "", ".1f"), "difference": Column("difference", "", "+.1f"), "kl": Column("KL", "", ".4f"),
        }  # fmt: skip
        about = f"{options.run.name}, {len(items)} inputs, every pair scored on the same ones."
        records.write(options.record, cells, about=about, columns=columns, code=["src/onespike/deploy"])
    print("processor seconds", {name: round(spent, 1) for name, spent in seconds.items()})


if __name__ == "__main__":
    main()
