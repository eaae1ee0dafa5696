"""The headline: one network on all its images, the paper's method, the passes and integer networks, every pair compared.

    python benchmarks/headline.py --network vit-tiny --out results [--assets ../shared/assets]

Each row is one network, measured on the same images and written as soon as it is known; given again, only missing rows
are measured. A row keeps the answer to every image, so that any two rows can be paired. Spiking networks are measured
twice: as they are, for the float columns, and with 8-bit weights, for the integer ones. λ is searched by KL on 64
calibration images that thresholds have not seen. Energy is counted on the first `--metered` images.
"""

from __future__ import annotations

import argparse
import json
from functools import cached_property
from itertools import islice
from pathlib import Path

import records
import torch
from front import NETWORKS, UNTUNED, Bench, label
from records import Column, Figure
from torch import nn

from onespike import convert, metered, preset
from onespike.deploy.post_training import Observed, observe, with_integer_weights
from onespike.energy import COLUMNS, profile
from onespike.energy.columns import integer_reading
from onespike.reports import plots
from onespike.runs.forms import rivals
from onespike.runs.searching import ScaleObjective
from onespike.runtime.atomic import write_atomically
from onespike.runtime.forward import evaluating
from onespike.scale_search import search
from onespike.tasks import Classification, batches

TRIALS = 12
LITERAL = (0.25, None, 0.4, 0.1)
"""λ of the paper's method; None is searched."""
BUDGETS = {"counts": (0.247, 0.15, 0.35), "binary": (0.197, 0.14, 0.1)}
SEARCHED = "the paper, λ searched"


class Headline(Bench):
    """What all rows share: images, calibration, the original's outputs and the ranges of integers."""

    @property
    def calibration(self) -> list[torch.Tensor]:
        return [self.inputs[i] for i in range(-(-64 // self.options.batch_size))]

    @cached_property
    def ranges(self) -> Observed:
        return observe(self.ann, self.calibration)

    @cached_property
    def searched(self) -> float:
        """The λ with the least KL on images after those that calibrated."""
        snn = convert(self.ann, self.base, preset("sformer"), share_weights=True)
        start = len(self.calibration)
        held = [(self.inputs[start + i], None) for i in range(start)]
        aim = Classification().objectives["kl"]
        measure = ScaleObjective(self.ann, snn, held, aim, None)
        return search(measure, trials=TRIALS, maximize=aim.maximize, fixed=(1.0, 0.25)).best.scale

    @cached_property
    def rivals(self) -> dict:
        return rivals(self.ann, self.ranges)

    def answers(self, network: nn.Module, meter: bool = False) -> dict:
        """The class that a network gives each image, its mean KL from the original and, for spikes, its ledger."""
        given, truth, divergent, seen, ledger = [], [], 0.0, 0, None
        with evaluating(network):
            for x, labels in batches(self.items, self.loaded.reading.transform, self.options.batch_size):
                if meter and seen < self.options.metered:
                    with metered(network, ledger) as ledger:
                        logits = network(x)
                else:
                    logits = network(x)
                log_p = self.original[seen : seen + len(x)].log_softmax(1)
                divergent += float((log_p.exp() * (log_p - logits.log_softmax(1))).sum())
                given, truth = given + logits.argmax(1).tolist(), truth + labels.tolist()
                seen += len(x)
        right = [int(a == b) for a, b in zip(given, truth, strict=True)]
        energy = {} if ledger is None else ledger.ratios()
        return {"right": right, "kl": divergent / seen, "energy": energy}

    def spiking(self, row: dict) -> list[dict]:
        row = {**row, "scale": row["scale"] or self.searched} if "scale" in row else row
        state, _ = self.convert({**row, "energy": row.get("energy_column")})
        snn = convert(self.ann, state.thresholds, state.recipe, share_weights=True)
        integer = with_integer_weights(snn, self.ann, self.ranges)
        return [
            {**row, **self.answers(network, meter=True), "weights": weights}
            for weights, network in (("float", snn), ("int8", integer))
        ]

    def integer(self, name: str) -> list[dict]:
        """W8A8 or W4A4 of the original, by our reference or by torchao; nothing where that is not installed."""
        if name not in self.rivals:
            return []
        network, column = self.rivals[name]
        return [{"name": name, "column": column, **self.answers(network), "weights": "integer"}]


def wanted() -> list[dict]:
    """The most telling rows first."""
    literal = [
        {"name": f"the paper, λ = {scale:g}" if scale else SEARCHED, "scale": scale, "passes": ()}
        for scale in LITERAL
    ]
    passes = [
        {"name": f"passes, {column} {ratio:g}", "energy_column": column, "budget": ratio, "passes": UNTUNED}
        for place in range(3)
        for column, ratios in BUDGETS.items()
        for ratio in islice(ratios, place, place + 1)
    ]
    integers = [
        {"name": f"{name}, {how}"}
        for name, how in (
            ("W8A8", "per channel"), ("W8A8", "per tensor"), ("W4A4", "per channel"), ("W4A4", "per tensor"),
            ("W8A8", "torchao (linear maps, per token)"),
        )
    ]  # fmt: skip
    return literal[:2] + integers + passes[:2] + literal[2:] + passes[2:]


def paired(row: dict, other: list[int]) -> tuple[float, float]:
    """The difference in points, image by image, and its standard error."""
    gaps = torch.tensor(row["right"]).double() - torch.tensor(other).double()
    return 100 * float(gaps.mean()), 100 * float(gaps.std(correction=0)) / len(gaps) ** 0.5


def column_of(row: dict, column: str) -> str:
    """The column that holds for a row: with 8-bit weights, the integer reading."""
    return row.get("column") or (column if row["weights"] == "float" else integer_reading(column))


def energy(row: dict, column: str) -> float:
    name = column_of(row, column)
    if name in row["energy"]:
        return row["energy"][name]
    prices = profile()  # a comparator does the original's MACs with fewer bits
    return prices.price(f"int{COLUMNS[name].bits} multiply-add") / prices.price("float32 multiply-add")


def described(rows: list[dict], original: list[int]) -> str:
    """Two tables per column, within which rows compare: float weights, and integers."""
    lines = [f"original {100 * sum(original) / len(original):.1f} %, {len(original)} images", ""]
    for column in BUDGETS:
        for kinds in (("float",), ("int8", "integer")):
            base = next(r for r in rows if r["name"] == SEARCHED and r["weights"] == kinds[0])
            lines += [
                f"`{column_of(base, column)}`" + (" beside `w8a8` and `w4a4`" if "integer" in kinds else ""), "",
                "| network | top-1 | minus original | minus the paper, λ searched | KL, nats | energy |",
                "|---|---|---|---|---|---|",
            ]  # fmt: skip
            chosen = [r for r in rows if r["weights"] in kinds and r.get("energy_column", column) == column]
            for row in sorted(
                chosen, key=lambda r: (r["weights"] == "integer", len(r["passes"]) if "passes" in r else 0)
            ):
                gap, beside = (
                    "{:+.1f} ± {:.1f}".format(*paired(row, other)) for other in (original, base["right"])
                )
                scale = f" ({row['scale']:.3g})" if row["name"] == SEARCHED else ""
                lines.append(
                    f"| {row['name']}{scale} | {100 * sum(row['right']) / len(row['right']):.1f} % | {gap} "
                    f"| {'' if row is base else beside} | {row['kl']:.3g} | {energy(row, column):.3f} |"
                )
            lines.append("")
    return "\n".join(lines)


CELLS = {
    "network": Column("network"), "top1": Column("top-1", "%", ".1f"), "difference": Column("minus original", "", "+.1f"),
    "searched": Column(f"minus {SEARCHED}", "", "+.1f"), "kl": Column("KL, nats", "", ".3g"),
    "energy": Column("energy", "", ".3f"), "column": Column("column"),
}  # fmt: skip


def recorded(rows: list[dict], original: list[int]) -> list[dict]:
    """The rows as their record has them, once for each column of energy."""
    cells: list[dict] = [{"network": "the original", "top1": 100 * sum(original) / len(original)}]
    for column in BUDGETS:
        for row in (r for r in rows if r.get("energy_column", column) == column):
            base = next(
                r
                for r in rows
                if r["name"] == SEARCHED
                and r["weights"] == ("float" if row["weights"] == "float" else "int8")
            )
            gaps = {
                key: Figure(gap, error=error)
                for key, other in (("difference", original), ("searched", base["right"]))
                if row["right"] is not other
                for gap, error in (paired(row, other),)
            }
            cell = {
                "network": row["name"] + (", 8-bit weights" if row["weights"] == "int8" else ""),
                "top1": 100 * sum(row["right"]) / len(row["right"]), **gaps, "kl": row["kl"],
                "energy": energy(row, column), "column": f"`{column_of(row, column)}`",
            }  # fmt: skip
            cells += [] if cell in cells else [cell]
    return cells


def draw(rows: list[dict], original: list[int], title: str, file: Path) -> None:
    """Top-1 against energy, float columns on the left, integer ones with their comparators on the right."""
    figure, panels = plots.figure(10, 4.4, columns=2)
    kinds = (
        ("the paper", "counts", plots.ORANGE, "s", "-"),
        ("the paper", "binary", plots.ORANGE, "s", ":"),
        ("passes", "counts", plots.BLUE, "o", "-"),
        ("passes", "binary", plots.BLUE, "o", ":"),
        ("W8A8", "counts", plots.GREEN, "P", ""),
        ("W4A4", "counts", plots.INK, "X", ""),
    )
    for axes, weights in zip(panels, (("float",), ("int8", "integer")), strict=True):
        for kind, column, color, marker, line in kinds:
            chosen = [
                r for r in rows
                if r["name"].startswith(kind) and r["weights"] in weights and r.get("energy_column", column) == column
            ]  # fmt: skip
            chosen.sort(key=lambda r: energy(r, column))
            if not chosen:
                continue
            integer = "" if weights == ("float",) else "-int8"
            axes.errorbar(
                [energy(r, column) for r in chosen],
                [100 * sum(r["right"]) / len(r["right"]) for r in chosen],
                [paired(r, original)[1] for r in chosen],
                marker=marker, color=color, linestyle=line, capsize=3, markersize=5,
                label=f"{kind}: {column}{integer}" if line else f"{kind}, measured",
            )  # fmt: skip
        axes.axhline(100 * sum(original) / len(original), color=plots.GRAY, linestyle="--", label="original")
        axes.set_xlabel(
            "energy / original, float columns"
            if weights == ("float",)
            else "energy / original, 8-bit weights"
        )
        axes.set_ylabel("top-1, %")
        axes.set_xlim(left=0)
        axes.legend(fontsize=8, loc="lower right", frameon=False)
    figure.suptitle(title, fontsize=10)
    write_atomically(file, plots.saved(figure))


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", default="vit-tiny", choices=NETWORKS)
    parser.add_argument("--out", required=True)
    parser.add_argument("--assets", default=str(beside))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--calibration", type=int, default=256)
    parser.add_argument("--metered", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument(
        "--draw", action="store_true", help="measure nothing: table and figure of what is there"
    )
    records.option(parser)
    parser.set_defaults(repeat=None)  # rows are compared with one another: one calibration for all
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    record = out / f"headline-{label(options)}.json"
    kept = json.loads(record.read_text()) if record.is_file() else {"original": [], "rows": []}

    def keep(rows: list[dict]) -> None:
        kept["rows"] += rows
        write_atomically(record, json.dumps(kept) + "\n")
        for row in rows:
            print(
                row["name"],
                row["weights"],
                "{:+.1f} ± {:.1f}".format(*paired(row, kept["original"])),
                flush=True,
            )

    if not options.draw:
        bench = Headline(NETWORKS[options.network], options)
        kept["original"] = kept["original"] or bench.answers(bench.ann)["right"]
        done = {row["name"] for row in kept["rows"]}
        for row in wanted():
            if row["name"] not in done and options.only in row["name"]:
                keep(bench.spiking(row) if "passes" in row else bench.integer(row["name"]))
    if not any(row["name"] == SEARCHED for row in kept["rows"]):
        return
    text = described(kept["rows"], kept["original"])
    write_atomically(record.with_suffix(".md"), text)
    title = f"{options.network}, {len(kept['original'])} images; bars: paired standard error of the difference to the original"
    draw(kept["rows"], kept["original"], title, record.with_suffix(".png"))
    if options.record:
        about = f"{options.network}, {len(kept['original'])} images; one calibration on 64 images, λ of least KL of {TRIALS} on 64 others, energy counted on {options.metered} images."
        rows = recorded(kept["rows"], kept["original"])
        code = ["src/onespike/passes", "src/onespike/energy"]
        records.write(options.record, rows, about=about, columns=CELLS, code=code)
    print(text)


if __name__ == "__main__":
    main()
