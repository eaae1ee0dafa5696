"""Every format of five networks, as one table: size, spikes compared and different, answers, milliseconds.

    python benchmarks/exports.py --out results [--assets ../shared/assets] [--networks ViT ResNet-18] [--formats onnx pt2]

Networks are converted into OUT/runs by the paper's method (or `--preset`). A row is written as soon as it is known; given
again, only missing rows are measured. ViT-Tiny and stories15M are left out where the folder of assets is absent. A
folder of integers is also replayed in NumPy. `--processor-time` is for a machine that is shared.
"""

from __future__ import annotations

import argparse
import json
import runpy
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from onespike import preset, runs
from onespike.adapters import load_model
from onespike.deploy.exports import FORMATS
from onespike.errors import OnespikeError
from onespike.runs.export_run import export_run
from onespike.runtime.atomic import write_atomically

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
    runs.save_run(folder, runs.convert_network(loaded, items, preset(recipe)))


def row(run: Path, data: str, name: str, integer: bool, options: argparse.Namespace) -> dict[str, Any]:
    """One file: written, compared, and of integers replayed; or why it cannot be written."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / f"network{FORMATS[name].suffix}"
        try:
            done = export_run(
                run, name, out, data=data, limit=options.limit, integer=integer, batch_size=options.batch_size
            )
        except OnespikeError as error:
            return {"refused": str(error)}
        replayed = runpy.run_path(str(REPLAY))["replay"](out)[:2] if name == "integers" else None
    return {**done.to_dict(), "replayed": replayed, "facts": None}


def line(network: str, name: str, integer: bool, found: dict[str, Any]) -> str:
    start = [network, name, "integer" if integer else "float"]
    if "refused" in found:
        return f"| {' | '.join(start)} | refused: {found['refused']} |" + " |" * (len(HEAD) - 4)
    spikes, times, replayed = found["comparison"], found["milliseconds"], found["replayed"]
    rest = [
        found["runtime"], f"{spikes['inputs']}", f"{found['bytes'] / 1e6:.2f}", f"{spikes['counts']:,}", f"{spikes['differ']:,}",
        f"{spikes['origins']:,}", f"{spikes['answers_differ']}", f"{times['file']:.0f}", f"{times['onespike']:.0f}",
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
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    if options.processor_time:
        time.perf_counter = time.process_time
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
        for name in options.formats:
            for integer in FORMATS[name].forms:
                key = f"{title} {name} {'integer' if integer else 'float'}"
                if key not in rows:
                    converted(network, run, options.preset)
                    rows[key] = row(run, network.data, name, integer, options)
                    write_atomically(file, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
                lines.append(line(title, name, integer, rows[key]))
                print(lines[-1], flush=True)
    write_atomically(options.out / f"{options.preset}.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
