"""Accuracy against energy of ViT-Tiny on real images: the literal method and the passes, in one table and one plot.

    python benchmarks/front_vit_tiny.py --out results [--assets ../shared/assets] [--images 1000] [--only counts]
    python benchmarks/front_vit_tiny.py --out results --network bundled:cifar10-vit

Calibration and tuning see images of the calibration folder only. Each row is written as soon as it is measured;
given again, only the missing rows are. The original network's outputs are computed once. Energy is counted on
the first `--metered` images, accuracy and KL on all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import torch

from onespike import calibrate, convert, metered, pipeline, preset
from onespike.adapters import load_model
from onespike.calibrate import evaluating
from onespike.files import write_atomically
from onespike.passes import Given, State, chain
from onespike.tasks import Paired, batches, limit

UNTUNED = ("nearest", "layout", "positions", "center", "allocate")
LITERAL = (0.4, 0.32, 0.25, 0.2, 0.15, 0.1)
BUDGETS = {"counts": (0.247, 0.12, 0.17, 0.35, 0.5), "binary": (0.197, 0.1, 0.13, 0.16, 0.24)}
TUNED = {"counts": (0.247, 0.17), "binary": (0.197, 0.13)}


def wanted() -> list[dict]:
    """The rows in the order of their worth: the two goals, the literal method, then the rest of the front."""
    rows = [{"energy": column, "budget": BUDGETS[column][0], "passes": UNTUNED} for column in BUDGETS]
    rows += [{"energy": column, "budget": TUNED[column][0], "passes": (*UNTUNED, "tune")} for column in TUNED]
    rows += [{"scale": scale, "passes": ()} for scale in LITERAL]
    rows += [{"energy": c, "budget": b, "passes": UNTUNED} for c in BUDGETS for b in BUDGETS[c][1:]]
    rows += [{"energy": c, "budget": b, "passes": (*UNTUNED, "tune")} for c in TUNED for b in TUNED[c][1:]]
    return rows


def name(row: dict) -> str:
    if not row["passes"]:
        return f"literal {row['scale']:g}"
    return f"{'tuned' if 'tune' in row['passes'] else 'passes'} {row['energy']} {row['budget']:g}"


def label(options: argparse.Namespace) -> str:
    return f"{options.network.partition(':')[2]}-{options.images}"


class Bench:
    """The network, its images and the original outputs, shared by all rows."""

    def __init__(self, options: argparse.Namespace) -> None:
        assets, size = Path(options.assets), options.batch_size
        bundled = options.network.startswith("bundled:")
        weights = None if bundled else assets / "vit_tiny_patch16_224.safetensors"
        calibration = "bundled:cifar10-calibration" if bundled else str(assets / "imagenet" / "calibration")
        self.loaded = load_model(options.network, weights=weights)
        self.ann, self.options = self.loaded.model.eval(), options
        every = pipeline.choose(calibration, None)
        self.inputs = pipeline.Inputs(limit(every, min(options.calibration, len(every))), self.loaded, size)
        test = "bundled:cifar10-test" if bundled else str(assets / "imagenet" / "val")
        self.items = pipeline.choose(test, options.images)
        self.memory: dict = {}
        self.base = calibrate(self.ann, [self.inputs[i] for i in range(-(-64 // size))], preset("sformer"))
        self.original = self._original(Path(options.out) / f"original-{label(options)}.pt")

    def _original(self, file: Path) -> torch.Tensor:
        if file.is_file():
            return torch.load(file, weights_only=True)
        with evaluating(self.ann):
            logits = torch.cat([self.ann(x) for x, _ in self._batches()]).clone()
        torch.save(logits, file)
        return logits

    def _batches(self):
        return batches(self.items, self.loaded.transform, self.options.batch_size)

    def convert(self, row: dict) -> tuple[State, float]:
        started = time.perf_counter()
        recipe = preset("sformer", **({"scale": row["scale"]} if "scale" in row else {}))
        state = State(self.base, recipe)
        if row["passes"]:
            given = Given(self.ann, self.inputs, row["budget"], row["energy"], memory=self.memory)
            given = dataclasses.replace(
                given, folder=Path(self.options.out) / f"{label(self.options)}-{name(row).replace(' ', '-')}"
            )
            state = chain(state, given, row["passes"])
        return state, time.perf_counter() - started

    def measure(self, row: dict) -> dict:
        state, seconds = self.convert(row)
        snn = convert(self.ann, state.thresholds, state.recipe, share_weights=True)
        task, seen, ledger = Paired(), 0, None
        with evaluating(snn):
            for x, labels in self._batches():
                if seen < self.options.metered:
                    with metered(snn, ledger) as ledger:
                        output = snn(x)
                else:
                    output = snn(x)
                task.update(self.original[seen : seen + len(x)], output, labels)
                seen += len(x)
        return {"name": name(row), **row, **task.compute(), "energy_ratios": ledger.ratios(),
                "metered_images": min(self.options.metered, seen), "conversion_seconds": seconds}  # fmt: skip


def draw(rows: list[dict], file: Path) -> None:
    from onespike.report import plots

    figure, both = plots.figure(10, 4.2, columns=2)
    kinds = (
        ("literal", plots.ORANGE, "the paper's method"),
        ("passes", plots.BLUE, "passes"),
        ("tuned", plots.GREEN, "passes, tuned"),
    )
    for axes, column in zip(both, ("counts", "binary"), strict=True):
        for kind, colour, label in kinds:
            chosen = [r for r in rows if r["name"].startswith(kind) and r.get("energy", column) == column]
            chosen.sort(key=lambda r: r["energy_ratios"][column])
            axes.errorbar(
                [r["energy_ratios"][column] for r in chosen], [r["snn"]["top1"] for r in chosen],
                [r["standard_error"] for r in chosen], marker="o", color=colour, label=label, capsize=2,
            )  # fmt: skip
        if rows:
            axes.axhline(rows[0]["ann"]["top1"], color=plots.GREY, linestyle="--", label="original")
        axes.set_xlabel(f"energy ratio ({column})")
        axes.set_ylabel("top-1, %")
        axes.legend(frameon=False)
    write_atomically(file, plots.png(figure))


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--assets", default=str(beside))
    parser.add_argument("--network", default="timm:vit_tiny_patch16_224", help="or a bundled one")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument(
        "--calibration", type=int, default=512, help="images for tuning; the other passes use 128"
    )
    parser.add_argument("--metered", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    record = out / f"front-{label(options)}.json"
    rows = json.loads(record.read_text()) if record.is_file() else []
    done, bench = {row["name"] for row in rows}, None
    for row in wanted():
        if name(row) in done or options.only not in name(row):
            continue
        bench = bench or Bench(options)
        found = bench.measure(row)
        rows.append(found)
        write_atomically(record, json.dumps(rows, indent=1) + "\n")
        energy = found["energy_ratios"]
        print(
            f"{found['name']:<24} top-1 {found['snn']['top1']:.1f} (original {found['ann']['top1']:.1f}), "
            f"{found['difference']:+.2f} ± {found['standard_error']:.2f}, KL {found['kl']:.3f}, "
            f"counts {energy['counts']:.3f}, binary {energy['binary']:.3f}, {found['conversion_seconds']:.0f} s",
            flush=True,
        )
    draw(rows, out / f"front-{label(options)}.png")


if __name__ == "__main__":
    main()
