"""Accuracy against energy on real images: the literal method and the passes, in one table and one plot.

    python benchmarks/front.py --network vit-tiny --out results [--assets ../shared/assets]
    python benchmarks/front.py --network bundled-vit --out results --only passes

Calibration and tuning see calibration images only. Each row is written as soon as it is measured; given again, only
the missing rows are. What does not depend on the budget (the original network's outputs, sensitivities, samples) is
computed once. Energy is counted on the first `--metered` images, accuracy and KL on all. `--tuned` adds rows with the
pass `tune`, each of which takes up to half an hour on a ViT-Tiny; choose with `--only "tuned counts 0.247"`.
`--repeat N` measures every row after N calibrations on images drawn by `--seed`; the table then has means, and their spread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import cifar_resnet
import fetched
import records
import torch
from records import Column, Figure

from onespike import calibrate, convert, metered, preset, runs
from onespike.adapters import LoadedModel, load_model
from onespike.deploy.post_training import GRANULARITIES, Quantized, observe
from onespike.energy import COLUMNS, profile
from onespike.passes import PassContext, PassState, chain
from onespike.passes.base import Memory
from onespike.runs.pipeline import spread
from onespike.runtime.atomic import write_atomically
from onespike.runtime.batches import take_first
from onespike.runtime.forward import evaluating
from onespike.tasks import Accuracy, batches, limit

UNTUNED = ("nearest", "layout", "positions", "center", "allocate")
KINDS = {
    "passes": UNTUNED,
    "corrected": (*UNTUNED, "correct"),
    "refitted": (*UNTUNED, "correct", "refit"),
    "fast": (*UNTUNED, "weigh", "correct", "refit"),
    "tuned": (*UNTUNED, "weigh", "correct", "refit", "tune"),
}
LITERAL = (0.25, 0.15, 0.4, 0.32, 0.2, 0.1)
BUDGETS = {
    "imagenet": {"counts": (0.247, 0.12, 0.35, 0.18, 0.5, 0.15, 0.2), "binary": (0.197, 0.12, 0.16, 0.1, 0.14, 0.24)},
    "attention": {"counts": (0.25, 0.1, 0.15, 0.2, 0.35, 0.5), "binary": (0.14, 0.08, 0.1, 0.12, 0.17, 0.2)},
    "depthwise": {"counts": (0.25, 0.35, 0.18), "binary": (0.2, 0.15, 0.12)},
    "convolution": {"counts": (0.1, 0.04, 0.07, 0.14, 0.18, 0.26), "binary": (0.07, 0.03, 0.04, 0.055, 0.09, 0.12)},
}  # fmt: skip
"""By kind of network, since convolutions after ReLUs spend far fewer spikes; the order is that of measuring."""


@dataclass(frozen=True)
class Subject:
    """A network and its images, as functions of the assets' folder, and which budgets suit it."""

    load: Callable[[Path], LoadedModel]
    calibration: Callable[[Path], str] = lambda assets: "bundled:cifar10-calibration"
    test: Callable[[Path], str] = lambda assets: "bundled:cifar10-test"
    kind: str = "convolution"


def cifar(layers: int) -> Subject:
    return Subject(lambda assets: cifar_resnet.load(layers, assets / f"cifar10_resnet{layers}.safetensors"))


TINY = "vit_tiny_patch16_224"
NETWORKS = {
    "vit-tiny": Subject(
        lambda assets: load_model(f"timm:{TINY}", weights=assets / f"{TINY}.safetensors"),
        lambda assets: str(assets / "imagenet" / "calibration"),
        lambda assets: str(assets / "imagenet" / "val"),
        "imagenet",
    ),
    "mobilenet-v2": Subject(
        lambda assets: load_model("torchvision:mobilenet_v2", weights=fetched.mobilenet_v2()),
        lambda assets: str(assets / "imagenet" / "calibration"),
        lambda assets: str(assets / "imagenet" / "val"),
        "depthwise",
    ),
    "efficientnet-lite0": Subject(
        lambda assets: load_model("timm:tf_efficientnet_lite0", weights=fetched.efficientnet_lite0()),
        lambda assets: str(assets / "imagenet" / "calibration"),
        lambda assets: str(assets / "imagenet" / "val"),
        "depthwise",
    ),
    "bundled-vit": Subject(lambda assets: load_model("bundled:cifar10-vit"), kind="attention"),
    "bundled-resnet18": Subject(lambda assets: load_model("bundled:cifar10-resnet18")),
    "resnet20": cifar(20),
    "resnet56": cifar(56),
}


def wanted(subject: Subject, tuned: bool) -> list[dict]:
    """The literal method at six λ, the passes at six budgets of each column, tuning if it is asked for, and W8A8 and W4A4."""
    budgets = BUDGETS[subject.kind]
    rows = [{"name": f"literal {scale:g}", "scale": scale, "passes": ()} for scale in LITERAL]
    for kind, passes in KINDS.items():
        for column, ratios in budgets.items():
            for ratio in ratios if tuned or kind != "tuned" else ():
                title = f"{kind} {column} {ratio:g}"
                rows.append({"name": title, "energy": column, "budget": ratio, "passes": passes})
    return rows + [
        {
            "name": f"integer {name}, per {granularity}",
            "column": name,
            "granularity": granularity,
            "passes": (),
        }
        for name, entry in COLUMNS.items()
        if not entry.reading
        for granularity in GRANULARITIES
    ]


class Bench:
    """The network, its images and the original outputs, shared by all rows."""

    def __init__(self, subject: Subject, options: argparse.Namespace) -> None:
        assets = Path(options.assets)
        self.loaded, self.options = subject.load(assets), options
        self.ann = self.loaded.model.eval()
        every = runs.choose(subject.calibration(assets), None)
        self.draws = [limit(every, min(options.calibration, len(every)))]
        if options.repeat is not None:
            number = min(options.calibration, len(every) // 2)
            self.draws = runs.draws(every, number, options.repeat, options.seed)
        self.items = runs.choose(subject.test(assets), options.images)
        self.original = self._original(Path(options.out) / f"original-{label(options)}.pt")
        self.calibrate(0)

    def calibrate(self, number: int) -> None:
        """Calibrate on another draw of images, and forget what passes have measured on the last."""
        self.inputs = runs.Inputs(self.draws[number], self.loaded)
        self.memory, self.observed = Memory(), None
        self.base = calibrate(self.ann, take_first(self.inputs, 64), preset("sformer"))

    def _original(self, file: Path) -> torch.Tensor:
        if file.is_file():
            return torch.load(file, weights_only=True)
        with evaluating(self.ann):
            logits = torch.cat([self.ann(x) for x, _ in self._batches()]).clone()
        torch.save(logits, file)
        return logits

    def _batches(self):
        return batches(self.items, self.loaded.reading.transform, self.options.batch_size)

    def convert(self, row: dict) -> tuple[PassState, float]:
        started = time.perf_counter()
        recipe = preset("sformer", **({"scale": row["scale"]} if "scale" in row else {}))
        state = PassState(self.base, recipe)
        if row["passes"]:
            given = PassContext(self.ann, self.inputs, row["budget"], row["energy"], memory=self.memory)
            state = chain(state, given, row["passes"])
        return state, time.perf_counter() - started

    def integer(self, row: dict) -> dict:
        """The original network as integers; its ratio is the same in both plots."""
        started = time.perf_counter()
        if self.observed is None:
            self.observed = observe(self.ann, take_first(self.inputs, 64))
        bits = COLUMNS[row["column"]].bits
        network, task, seen = (
            Quantized(self.ann, self.observed, bits, row["granularity"]),
            Accuracy(),
            0,
        )
        prices = profile()
        ratio = prices.price(f"int{bits} multiply-add") / prices.price("float32 multiply-add")
        with evaluating(network):
            for x, labels in self._batches():
                task.update(self.original[seen : seen + len(x)], network(x), labels)
                seen += len(x)
        return {**row, **task.compute(), "energy_ratios": {"counts": ratio, "binary": ratio}, "metered_images": 0,
                "conversion_seconds": time.perf_counter() - started}  # fmt: skip

    def measure(self, row: dict) -> dict:
        if "granularity" in row:
            return self.integer(row)
        state, seconds = self.convert(row)
        snn = convert(self.ann, state.thresholds, state.recipe, share_weights=True)
        task, seen, ledger = Accuracy(), 0, None
        with evaluating(snn):
            for x, labels in self._batches():
                if seen < self.options.metered:
                    with metered(snn, ledger) as ledger:
                        output = snn(x)
                else:
                    output = snn(x)
                task.update(self.original[seen : seen + len(x)], output, labels)
                seen += len(x)
        return {**row, **task.compute(), "energy_ratios": ledger.ratios(),
                "metered_images": min(self.options.metered, seen), "conversion_seconds": seconds}  # fmt: skip


def label(options: argparse.Namespace) -> str:
    return f"{options.network}-{options.images}" + ("" if options.repeat is None else f"-seed-{options.seed}")


SPREAD = "{mean:.1f} ± {sd:.1f} ({lowest:.1f} to {highest:.1f})"


def joined(rows: list[dict]) -> list[dict]:
    """One row per name: means over its calibrations, and the spread of the accuracy."""
    by_name: dict[str, list[dict]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    return [
        {
            **same[0], "snn": {"top1": fmean(row["snn"]["top1"] for row in same)},
            **{name: fmean(row[name] for row in same) for name in ("difference", "standard_error", "kl")},
            "energy_ratios": {c: fmean(row["energy_ratios"][c] for row in same) for c in ("counts", "binary")},
            "spread": SPREAD.format(**spread([row["snn"]["top1"] for row in same])) if len(same) > 1 else "",
        }
        for same in by_name.values()
    ]  # fmt: skip


def described(row: dict) -> str:
    """One row of the table, in Markdown."""
    energy, top1 = row["energy_ratios"], f"{row['snn']['top1']:.1f} %"
    return (
        f"| {row['name']} | {row.get('spread') or top1} | {row['difference']:+.1f} ± {row['standard_error']:.1f} "
        f"| {row['kl']:.3f} | {energy['counts']:.3f} | {energy['binary']:.3f} |"
    )


def order(row: dict) -> tuple:
    """Literal rows, then each choice of passes by column and energy."""
    column = row.get("energy", "counts")
    return len(row["passes"]), row["name"].split()[0], column != "counts", row["energy_ratios"][column]


def table(rows: list[dict]) -> str:
    head = f"| what | top-1 (original {rows[0]['ann']['top1']:.1f} %) | difference | KL | counts | binary |"
    return "\n".join([head, "|---|---|---|---|---|---|", *map(described, sorted(rows, key=order))]) + "\n"


LABELS = {
    "literal": "the paper, λ =",
    "corrected": "passes and correct,",
    "tuned": "all passes and tune,",
    "fast": "`fast`,",
}
CELLS = {
    "what": Column("what"), "top1": Column("top-1", "%", ".1f"), "difference": Column("difference", "", "+.1f"),
    "kl": Column("KL", "", ".3f"), "counts": Column("counts", "", ".3f"), "binary": Column("binary", "", ".3f"),
}  # fmt: skip


def recorded(rows: list[dict]) -> list[dict]:
    """The rows as their record has them; the plots of the documentation know them by how their labels begin."""
    cells = [{"what": "the original", "top1": rows[0]["ann"]["top1"]}]
    for row in sorted(rows, key=order):
        kind, _, rest = row["name"].partition(" ")
        budget = f"{row['energy']} budget {row['budget']:g}" if "budget" in row else rest
        cells.append({
            "what": f"{LABELS.get(kind, kind + ',')} {budget}", "top1": row["snn"]["top1"],
            "difference": Figure(row["difference"], error=row["standard_error"]), "kl": row["kl"],
            "counts": row["energy_ratios"]["counts"], "binary": row["energy_ratios"]["binary"],
        })  # fmt: skip
    return cells


def draw(rows: list[dict], file: Path) -> None:
    """Top-1 against each energy; rows whose budget is in that column are joined, the others stand alone."""
    from onespike.reports import plots

    figure, both = plots.figure(10, 4.2, columns=2)
    kinds = (
        ("literal", plots.ORANGE, "s", "the paper's method, six λ"),
        ("passes", plots.BLUE, "o", "passes"),
        ("corrected", plots.GREEN, "^", "passes and correct"),
        ("refitted", "#CC79A7", "v", "passes, correct and refit"),
        ("fast", plots.INK, "o", "the preset fast"),
        ("tuned", plots.INK, "D", "all passes and tune"),
        ("integer w8a8", plots.GRAY, "P", "W8A8, measured"),
        ("integer w4a4", plots.GRAY, "X", "W4A4, measured"),
    )
    for axes, column in zip(both, ("counts", "binary"), strict=True):
        for kind, color, marker, text in kinds:
            of_kind = sorted(
                (r for r in rows if r["name"].startswith(kind)), key=lambda r: r["energy_ratios"][column]
            )
            for own in (True, False):
                chosen = [r for r in of_kind if (r.get("energy", column) == column) is own]
                if chosen:
                    axes.errorbar(
                        [r["energy_ratios"][column] for r in chosen], [r["snn"]["top1"] for r in chosen],
                        [r["standard_error"] for r in chosen], marker=marker, color=color, capsize=2,
                        linestyle="-" if own and not kind.startswith("integer") else "", markerfacecolor=color if own else "white",
                        label=text if own else f"{text}, budget in the other column",
                    )  # fmt: skip
        axes.axhline(rows[0]["ann"]["top1"], color=plots.GRAY, linestyle="--", label="original network")
        axes.set_xlabel(f"energy ratio ({column})")
        axes.set_ylabel("top-1, %")
        axes.set_xlim(left=0)
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    write_atomically(file, plots.saved(figure))


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", required=True, choices=NETWORKS)
    parser.add_argument("--out", required=True)
    parser.add_argument("--assets", default=str(beside), help="weights and images that are not bundled")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument(
        "--calibration", type=int, default=512, help="images for tuning; the other passes use 128"
    )
    parser.add_argument("--repeat", type=int, help="calibrations of each row, on images drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn by")
    parser.add_argument("--metered", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument(
        "--only", default="", help="only rows whose name contains this, or one of several with commas"
    )
    records.option(parser)
    options = parser.parse_args()
    out, subject = Path(options.out), NETWORKS[options.network]
    out.mkdir(parents=True, exist_ok=True)
    record = out / f"front-{label(options)}.json"
    rows = json.loads(record.read_text()) if record.is_file() else []
    done, bench = {(row["name"], row.get("draw", 0)) for row in rows}, None
    for number in range(options.repeat or 1):
        missing = [
            {**row, "draw": number}
            for row in wanted(subject, options.tuned)
            if (row["name"], number) not in done
            and any(only in row["name"] for only in options.only.strip(",").split(","))
        ]
        if missing:
            bench = bench or Bench(subject, options)
            if number:
                bench.calibrate(number)
        for row in missing:
            rows.append(bench.measure(row))
            write_atomically(record, json.dumps(rows, indent=1) + "\n")
            print(described(rows[-1]), f"{rows[-1]['conversion_seconds']:.0f} s", flush=True)
    rows = joined(rows)
    write_atomically(record.with_suffix(".md"), table(rows))
    draw(rows, record.with_suffix(".png"))
    if options.record:
        about = f"{options.network}, {options.images} test images, {options.calibration} unlabeled images for tuning, at most; energy is counted on the first {options.metered}."
        records.write(
            options.record, recorded(rows), about=about, columns=CELLS, code=["src/onespike/passes"]
        )


if __name__ == "__main__":
    main()
