"""A record as `gather` makes it, from a small network with hostile names everywhere a user can put one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from onespike import Recipe, calibrate, convert, runs
from onespike.adapters import LoadedModel, Reading
from onespike.passes import improve
from onespike.reports import record as gather
from onespike.tasks import Classification, Items

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}"


class Small(nn.Module):
    """Two blocks with attention, on 8×8 images: random weights, so nothing about accuracy follows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, stride=4)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def to_input(image) -> torch.Tensor:
    pixels = torch.frombuffer(bytearray(image.resize((8, 8)).tobytes()), dtype=torch.uint8)
    return pixels.view(8, 8, 3).permute(2, 0, 1).float() / 128 - 1


def make_record(run: Path | None = None, hardware: bool = False, **changes) -> dict:
    torch.manual_seed(0)
    recipe = Recipe(**changes)
    items = runs.choose("bundled:cifar10-test", 12)
    ann, classes = Small().eval(), (HOSTILE, "cat", "dog")
    loaded = LoadedModel(ann, HOSTILE, Reading(to_input, "8×8"), Classification(classes), "random")
    images = [x for x, _ in loaded.batches(items, 6)]
    thresholds = improve(ann, images, calibrate(ann, images, recipe), recipe)
    snn = convert(ann, thresholds, recipe)
    data = {"source": f"images/{HOSTILE}", "names": list(items.names), "sha256": []}
    pair = runs.NetworkPair(loaded, ann, snn, recipe, thresholds, data)
    unlabeled = Items(HOSTILE, tuple(replace(i, label=None) for i in items), classes)
    return gather.gather(run or Path(f"run-{HOSTILE}"), pair, unlabeled, batch_size=6, hardware=hardware)
