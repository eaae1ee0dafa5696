"""Train the bundled detector from nothing on composed scenes of Fashion-MNIST clothes, on a CPU.

    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb fashion      # the data, MIT
    python training/train_scenes.py fashion/usr/share/datasets/fashion-mnist --minutes 60 --out scenes.safetensors
    python training/train_scenes.py fashion/usr/share/datasets/fashion-mnist --write src/onespike/tasks/bundled

A scene is a smooth background with one to four tinted clothes that overlap a little. What is visible of each is its
mask. Training scenes are composed on the way, from the 60,000 training images; `--write` makes the bundled scenes:
for the test from the test images, for calibration and λ from the training images. A run that is interrupted continues with
the same command.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from scipy.ndimage import binary_fill_holes
from torch import Tensor

from onespike.adapters.bundled import SCENE_CLASSES, SIDE, STRIDE, SceneDetector, box_at

MOST, SMALLEST, LARGEST, HIDDEN = 4, 20, 34, 0.25


def load(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gray images, their masks without holes, and classes."""
    read = [gzip.decompress((folder / f"{name}-{kind}.gz").read_bytes()) for kind in
            ("images-idx3-ubyte", "labels-idx1-ubyte")]  # fmt: skip
    gray = np.frombuffer(read[0], np.uint8, offset=16).reshape(-1, 28, 28)
    masks = np.stack([binary_fill_holes(x > 12) for x in gray])
    return gray, masks, np.frombuffer(read[1], np.uint8, offset=8)


def resized(x: np.ndarray, side: int) -> np.ndarray:
    image = torch.from_numpy(x.astype(np.float32))[None, None]
    return F.interpolate(image, size=(side, side), mode="bilinear", antialias=side < 28)[0, 0].numpy()


def compose(
    data: tuple[np.ndarray, ...], random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """A scene of 64×64 pixels, its map of instances (0 is background) and the instances' classes."""
    gray, masks, labels = data
    corners = torch.from_numpy(random.uniform(0, 255, (1, 3, 3, 3)).astype(np.float32))
    scene = F.interpolate(corners, size=(SIDE, SIDE), mode="bilinear", align_corners=True)[0]
    scene = scene.permute(1, 2, 0).numpy().copy()
    instances, classes, areas = np.zeros((SIDE, SIDE), np.uint8), [], []
    for _ in range(random.integers(1, MOST + 1)):
        chosen, side = random.integers(len(gray)), int(random.integers(SMALLEST, LARGEST + 1))
        cloth, mask = resized(gray[chosen], side), resized(masks[chosen], side) > 0.5
        if random.random() < 0.5:
            cloth, mask = cloth[:, ::-1], mask[:, ::-1]
        x, y = random.integers(0, SIDE - side + 1, 2)
        here = instances[y : y + side, x : x + side]
        left = [np.sum(instances == i + 1) - np.sum(mask & (here == i + 1)) for i in range(len(classes))]
        if mask.sum() < 40 or any(n < (1 - HIDDEN) * area for n, area in zip(left, areas, strict=True)):
            continue
        classes.append(int(labels[chosen]))
        areas.append(int(mask.sum()))
        here[mask] = len(classes)
        tint = random.uniform(0.35, 1, 3)
        scene[y : y + side, x : x + side][mask] = (40 + 0.85 * cloth[..., None] * tint)[mask]
    return np.clip(scene, 0, 255).astype(np.uint8), instances, classes


def targets(instances: Tensor, classes: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The heat of each class, and for each place near a center: its index, its box, its instance."""
    cells, heat = SIDE // STRIDE, torch.zeros(len(SCENE_CLASSES), SIDE // STRIDE, SIDE // STRIDE)
    ys, xs = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
    places, boxes, owners = [], [], []
    for number, label in enumerate(classes, 1):
        rows, columns = torch.nonzero(instances == number, as_tuple=True)
        box = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()
        cx, cy = (((box[:2] + box[2:]) / 2 / STRIDE).long().clamp(max=cells - 1)).tolist()
        far = (xs - cx) ** 2 + (ys - cy) ** 2
        heat[label] = torch.maximum(heat[label], torch.exp(-far / 1.6))
        near = torch.nonzero(far.flatten() <= 2).flatten()
        (
            places.append(near),
            boxes.append(box.expand(len(near), 4)),
            owners.append(torch.full_like(near, number)),
        )
    return heat, torch.cat(places), torch.cat(boxes), torch.cat(owners)


def losses(
    network: SceneDetector, images: Tensor, truth: list[tuple[Tensor, ...]], instances: Tensor
) -> Tensor:
    """CenterNet's focal loss on the heat, 1 − IoU of boxes, and cross-entropy with Dice on masks inside their box."""
    classes, distances, coefficients, prototypes = network.maps(images)
    heat = torch.stack([t[0] for t in truth])
    p = classes.sigmoid().clamp(1e-5, 1 - 1e-5)
    peaks = heat == 1
    focal = torch.where(peaks, (1 - p) ** 2 * p.log(), (1 - heat) ** 4 * p**2 * (1 - p).log())
    loss = -focal.sum() / peaks.sum()
    ones = torch.arange(len(truth)).repeat_interleave(torch.tensor([len(t[1]) for t in truth]))
    place, boxes, owners = (torch.cat([t[i] for t in truth]) for i in (1, 2, 3))
    found = box_at(distances[ones], place[:, None])[:, 0]
    inner = (torch.minimum(found[:, 2:], boxes[:, 2:]) - torch.maximum(found[:, :2], boxes[:, :2])).clamp(
        min=0
    )
    outer = torch.maximum(found[:, 2:], boxes[:, 2:]) - torch.minimum(found[:, :2], boxes[:, :2])
    area = [(b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) for b in (found, boxes)]
    union = area[0] + area[1] - inner.prod(1)
    giou = inner.prod(1) / union - (outer.prod(1) - union) / outer.prod(1)
    mixing = coefficients.flatten(2)[ones, :, place]
    masks = torch.einsum("nk,nkhw->nhw", mixing, prototypes[ones])
    wanted = (instances[ones] == owners[:, None, None]).float()
    masks = F.interpolate(masks[:, None], size=(SIDE, SIDE), mode="bilinear")[:, 0]
    at = torch.arange(SIDE) + 0.5
    inside = ((at >= boxes[:, :1]) & (at <= boxes[:, 2:3]))[:, None, :] & (
        (at >= boxes[:, 1:2]) & (at <= boxes[:, 3:])
    )[:, :, None]
    size = inside.sum((1, 2))
    entropy = (F.binary_cross_entropy_with_logits(masks, wanted, reduction="none") * inside).sum(
        (1, 2)
    ) / size
    q = masks.sigmoid() * inside
    dice = 1 - (2 * (q * wanted).sum((1, 2)) + 1) / (q.sum((1, 2)) + wanted.sum((1, 2)) + 1)
    return loss + (1 - giou).mean() + entropy.mean() + dice.mean()


def batch(
    data: tuple[np.ndarray, ...], random: np.random.Generator, size: int
) -> tuple[Tensor, list, Tensor]:
    scenes = [compose(data, random) for _ in range(size)]
    scenes = [s for s in scenes if s[2]]
    images = torch.from_numpy(np.stack([s[0] for s in scenes])).permute(0, 3, 1, 2).float() / 127.5 - 1
    instances = torch.from_numpy(np.stack([s[1] for s in scenes]))
    return images, [targets(i, s[2]) for i, s in zip(instances, scenes, strict=True)], instances


def write(folder: Path, name: str, data: tuple[np.ndarray, ...], count: int, seed: int) -> None:
    """Scenes as one PNG with a scene in each row, and their annotations as COCO has them."""
    from pycocotools import mask as coco

    random, rows, images, annotations = np.random.default_rng(seed), [], [], []
    while len(rows) < count:
        scene, instances, classes = compose(data, random)
        if not classes:
            continue
        images.append({"id": len(rows), "file_name": f"{len(rows):04d}.png", "width": SIDE, "height": SIDE})
        for number, label in enumerate(classes, 1):
            run = coco.encode(np.asfortranarray(instances == number))
            annotations.append({
                "id": len(annotations) + 1, "image_id": len(rows), "category_id": label + 1, "iscrowd": 0,
                "bbox": [float(v) for v in coco.toBbox(run)], "area": int(coco.area(run)),
                "segmentation": {"size": [SIDE, SIDE], "counts": run["counts"].decode()},
            })  # fmt: skip
        rows.append(scene.reshape(-1, 3))
    Image.fromarray(np.stack(rows)).save(folder / f"{name}.png", optimize=True)
    record = {
        "info": {"description": f"clothes of Fashion-MNIST in composed scenes, seed {seed}",
                 "sha256": hashlib.sha256((folder / f"{name}.png").read_bytes()).hexdigest()},
        "categories": [{"id": i + 1, "name": label} for i, label in enumerate(SCENE_CLASSES)],
        "images": images, "annotations": annotations,
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
    sizes = [(folder / f"{name}.{kind}").stat().st_size / 1e6 for kind in ("png", "json")]
    print(f"{name}: {count} scenes, {len(annotations)} clothes, {sizes[0]:.2f} + {sizes[1]:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--write", type=Path, help="write the bundled scenes into this folder instead")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = load(options.data, "train")
    if options.write:
        write(options.write, "scenes_test", load(options.data, "t10k"), 100, 1)
        write(options.write, "scenes_calibration", data, 96, 2)
        return
    torch.manual_seed(0)
    network = SceneDetector()
    averaged = torch.optim.swa_utils.AveragedModel(
        network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.995), use_buffers=True
    )
    mover = torch.optim.AdamW(network.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.02)
    checkpoint, step, spent = options.out.with_suffix(".ckpt"), 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(state["network"])
        averaged.load_state_dict(state["averaged"])
        mover.load_state_dict(state["mover"])
        step, spent = state["step"], state["spent"]
    started, progress, total = time.time() - spent, 0.0, 0.0
    while progress < 1:
        progress = max(step / options.steps, (time.time() - started) / 60 / options.minutes)
        mover.param_groups[0]["lr"] = options.rate * min(1.0, (step + 1) / 100) * max(0.0, 1 - progress)
        network.train()
        loss = losses(network, *batch(data, np.random.default_rng([3, step]), options.batch))
        mover.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        mover.step()
        averaged.update_parameters(network)
        step, total = step + 1, total + loss.item()
        if step % 20 == 0:
            print(
                f"step {step} progress {progress:.3f} loss {total / 20:.3f} {time.time() - started:.0f} s",
                flush=True,
            )
            total = 0.0
        if step % 50 == 0 or progress >= 1:
            torch.save(dict(network=network.state_dict(), averaged=averaged.state_dict(), step=step,
                            mover=mover.state_dict(), spent=time.time() - started), checkpoint)  # fmt: skip
    weights = {k: v.half() if v.is_floating_point() else v for k, v in averaged.module.state_dict().items()}
    save_file({k: v.contiguous() for k, v in weights.items()}, options.out, {"steps": str(step)})
    print(f"{step} steps of {options.batch} scenes in {(time.time() - started) / 60:.0f} min")


if __name__ == "__main__":
    main()
