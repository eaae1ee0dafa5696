"""Every format of five networks, as one table: size, spikes compared and different, answers, milliseconds.

    python benchmarks/exports.py --out results [--assets ../shared/assets] [--networks ViT ResNet-18] [--formats onnx pt2]
    python benchmarks/exports.py --out results --times

Networks are converted into OUT/runs by the paper's method (or `--preset`), files are kept in OUT/files. A row is written as
soon as it is known; given again, only missing rows are measured. ViT-Tiny and stories15M are left out where the folder of
assets is absent. A folder of integers is also replayed in NumPy. `--times` writes nothing new: it runs the files of all rows in
turn and replaces their milliseconds, which only an idle machine can tell.
"""

from __future__ import annotations

import argparse
import json
import runpy
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch

from onespike import preset, runs
from onespike.adapters import load_model
from onespike.deploy.exports import FORMATS
from onespike.deploy.exports.base import best_times
from onespike.deploy.integer import optimize
from onespike.errors import OnespikeError
from onespike.runs.forms import export_pair, real_inputs
from onespike.runtime.atomic import write_atomically
from onespike.runtime.batches import call
from onespike.runtime.forward import evaluating

HERE = Path(__file__).parent
REPLAY = HERE.parent / "examples" / "replay_integers.py"
CALIBRATION = 32


class Network(NamedTuple):
    """A network: its spec, what it is calibrated and compared on, and tokens of a window."""

    spec: str
    calibration: str
    data: str
    weights: str | None = None
    length: int | None = None


CIFAR = ("bundled:cifar10-calibration", "bundled:cifar10-test")
NETWORKS = {
    "ViT": Network("bundled:cifar10-vit", *CIFAR),
    "ResNet-18": Network("bundled:cifar10-resnet18", *CIFAR),
    "detector": Network("bundled:scenes", "bundled:scenes-calibration", "bundled:scenes-test"),
    "ViT-Tiny": Network(
        "timm:vit_tiny_patch16_224",
        "{}/imagenet/calibration",
        "{}/imagenet/val",
        "{}/vit_tiny_patch16_224.safetensors",
    ),
    "stories15M": Network(
        "transformers:{}/language/stories15M",
        "{}/language/tinystories/calibration.txt",
        "{}/language/tinystories/val.txt",
        length=64,
    ),
}
"""{} is the folder of assets."""
HEAD = (
    "network", "format", "form", "runtime", "inputs", "MB", "counts compared", "differ", "go back to", "answers that differ",
    "ms there", "ms here", "NumPy",
)  # fmt: skip


def converted(network: Network, folder: Path, recipe: str) -> None:
    """Write the run of a network, once."""
    if folder.exists():
        return
    pretrained = network.spec.startswith("transformers:")
    loaded = load_model(network.spec, weights=network.weights, pretrained=pretrained)
    loaded = loaded if network.length is None else loaded.with_length(network.length)
    items = runs.choose(network.calibration, CALIBRATION, loaded.task)
    runs.save(folder, runs.convert_network(loaded, items, preset(recipe)))


def form(integer: bool) -> str:
    return "integer" if integer else "float"


def stored(run: Path, name: str, integer: bool) -> Path:
    """Return the file of a format."""
    return run.parents[1] / "files" / run.name / f"{name}-{form(integer)}{FORMATS[name].suffix}"


def row(run: Path, data: str, name: str, integer: bool, options: argparse.Namespace) -> dict[str, Any]:
    """One file: written, compared, and of integers replayed; or why it cannot be written."""
    out = stored(run, name, integer)
    for old in out.parent.glob(f"{out.name}*"):  # of a row that was never finished
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    try:
        done = export_pair(
            runs.load(run),
            name,
            out,
            data=data,
            limit=options.limit,
            integer=integer,
            batch_size=options.batch_size,
        )
    except OnespikeError as error:
        return {"refused": str(error)}
    replayed = runpy.run_path(str(REPLAY))["replay"](out)[:2] if name == "integers" else None
    return {**done.to_dict(), "replayed": replayed, "facts": None}


def times(
    run: Path, data: str, files: list[tuple[str, bool]], options: argparse.Namespace
) -> list[dict[str, float]]:
    """Return the milliseconds of stored files and of the network here, all in turn."""
    pair = runs.load(run)
    batch = real_inputs(pair, data, options.limit, options.batch_size)[0]
    networks = {False: pair.snn, True: optimize(pair.snn, integer_units=True)}
    ways: dict[Any, Any] = {(name, i): FORMATS[name].read(stored(run, name, i)) for name, i in files}
    ways |= {i: lambda b, network=network: call(network, b) for i, network in networks.items()}
    with evaluating(networks[False]), evaluating(networks[True]), torch.no_grad():
        best = best_times(ways, batch, rounds=5)
    return [{"file": best[name, i], "onespike": best[i]} for name, i in files]


def line(network: str, name: str, integer: bool, found: dict[str, Any]) -> str:
    start = [network, name, form(integer)]
    if "refused" in found:
        return f"| {' | '.join(start)} | refused: {found['refused']} |" + " |" * (len(HEAD) - 4)
    spikes, best, replayed = found["comparison"], found["milliseconds"], found["replayed"]
    rest = [
        found["runtime"], f"{spikes['inputs']}", f"{found['bytes'] / 1e6:.2f}", f"{spikes['counts']:,}", f"{spikes['differ']:,}",
        f"{spikes['origins']:,}", f"{spikes['answers_differ']}", f"{best['file']:.0f}", f"{best['onespike']:.0f}",
        "" if replayed is None else f"{replayed[1]} of {replayed[0]:,} differ",
    ]  # fmt: skip
    return f"| {' | '.join([*start, *rest])} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder for runs, rows and the table")
    parser.add_argument("--assets", type=Path, default=HERE.parents[1] / "shared" / "assets")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--preset", default="sformer")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--times", action="store_true", help="measure the milliseconds of stored files again")
    options = parser.parse_args()
    file = options.out / f"{options.preset}.json"
    rows: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    print(*lines, sep="\n", flush=True)
    for title in options.networks:
        network = Network(*(p.format(options.assets) if isinstance(p, str) else p for p in NETWORKS[title]))
        if "{}" in NETWORKS[title].data and not options.assets.is_dir():
            print(f"{title}: left out, since {options.assets} is absent")
            continue
        run = options.out / "runs" / f"{title}-{options.preset}"
        made = {f"{title} {n} {form(i)}": (n, i) for n in options.formats for i in FORMATS[n].forms}
        if options.times:
            made = {key: at for key, at in made.items() if key in rows}
            there = {key: at for key, at in made.items() if "refused" not in rows[key]}
            for key, best in zip(there, times(run, network.data, list(there.values()), options), strict=True):
                rows[key]["milliseconds"] = best
        for key, (name, integer) in made.items():
            if key not in rows:
                converted(network, run, options.preset)
                rows[key] = row(run, network.data, name, integer, options)
            write_atomically(file, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
            lines.append(line(title, name, integer, rows[key]))
            print(lines[-1], flush=True)
    write_atomically(options.out / f"{options.preset}.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
