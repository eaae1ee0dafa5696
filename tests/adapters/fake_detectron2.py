"""The interfaces of detectron2 that its adapter uses, around a small detector: one dense layer of boxes and masks.

Each name, argument and return type is that of detectron2 0.5 and 0.6. The detector is not one of theirs.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from torch import nn


class Boxes:
    def __init__(self, tensor):
        self.tensor = tensor


class Instances:
    def __init__(self, image_size, **fields):
        self.image_size, self._fields = image_size, fields
        self.__dict__.update(fields)

    def has(self, name):
        return name in self._fields

    def get_fields(self):
        return self._fields


class GeneralizedRCNN(nn.Module):
    """Takes a list of dictionaries and returns one with instances for each, at the height and width it asks for."""

    def __init__(self, width=8, classes=10):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, 4, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 4, 1)
        )
        self.roi_heads = nn.Conv2d(width, classes + 5, 1)
        self.roi_heads.mask_on, self.roi_heads.num_classes = True, classes
        self.register_buffer("pixel_mean", torch.tensor([103.0, 116.0, 123.0]).view(-1, 1, 1), False)
        self.register_buffer("pixel_std", torch.full((3, 1, 1), 60.0), False)

    def forward(self, batched_inputs):
        return [{"instances": self.one(**entry)} for entry in batched_inputs]

    def one(self, image, height, width):
        x = ((image - self.pixel_mean) / self.pixel_std)[None]
        maps = self.roi_heads(self.backbone(x).relu())[0].flatten(1)
        scores, place = maps[:-5].sigmoid().max(0).values.topk(3)
        sides = maps[-5:-1, place].T.sigmoid()
        corners = torch.cat([sides[:, :2] / 2, 0.5 + sides[:, 2:] / 2], 1)
        boxes = corners * torch.tensor([width, height, width, height])
        masks = torch.zeros(3, height, width, dtype=torch.bool)
        for mask, (x0, y0, x1, y1) in zip(masks, boxes.int().tolist(), strict=True):
            mask[y0:y1, x0:x1] = True
        found = dict(pred_boxes=Boxes(boxes), scores=scores, pred_classes=maps[:-5, place].argmax(0))
        return Instances((height, width), **found, pred_masks=masks)


class CfgNode(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__

    def merge_from_file(self, cfg_filename, allow_unsafe=True):
        assert not allow_unsafe, "a file's objects would be built"
        for part, values in json.loads(Path(cfg_filename).read_text(encoding="utf-8")).items():
            if part not in self:
                raise KeyError(f"Non-existent config key: {part}")
            self[part].update(values)

    def clone(self):
        return CfgNode({part: CfgNode(values) for part, values in self.items()})

    def dump(self):
        return json.dumps(self)


def get_cfg():
    return CfgNode(
        MODEL=CfgNode(DEVICE="cuda", WEIGHTS="published.pkl", WIDTH=8),
        INPUT=CfgNode(MIN_SIZE_TEST=32, MAX_SIZE_TEST=64, FORMAT="BGR"),
        DATASETS=CfgNode(TEST=("clothes",)),
    )


def build_model(cfg):
    assert (cfg.MODEL.DEVICE, cfg.MODEL.WEIGHTS) == ("cpu", "")
    return GeneralizedRCNN(cfg.MODEL.WIDTH)


class LazyConfig:
    @staticmethod
    def load(filename):
        return SimpleNamespace(**runpy.run_path(filename))


def instantiate(config):
    return config["_target_"](**{k: v for k, v in config.items() if k != "_target_"})


class ResizeShortestEdge:
    def __init__(self, short_edge_length, max_size):
        self.length = short_edge_length[0] if isinstance(short_edge_length, list) else short_edge_length
        self.max_size = max_size

    def __str__(self):
        return f"ResizeShortestEdge({self.length}, {self.max_size})"


class AugInput:
    def __init__(self, image):
        self.image = image


class AugmentationList:
    def __init__(self, augs):
        self.augs = augs

    def __call__(self, aug_input):
        for each in self.augs:
            step = aug_input.image.shape[0] // each.length
            aug_input.image = np.ascontiguousarray(aug_input.image[::step, ::step])


def install(monkeypatch, classes):
    """Put the package among the imported modules for as long as a test runs."""
    metadata = {"clothes": {"thing_classes": list(classes)}}
    catalog = SimpleNamespace(get=lambda name: metadata.setdefault(name, {}))
    for name in ("", ".config", ".modeling", ".structures", ".data", ".data.transforms"):
        module = ModuleType(f"detectron2{name}")
        module.__path__ = []
        module.__dict__.update(globals(), __name__=module.__name__, MetadataCatalog=catalog)
        monkeypatch.setitem(sys.modules, module.__name__, module)
