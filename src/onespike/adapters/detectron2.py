"""`detectron2:CONFIG`: detectors defined by a configuration of detectron2, `.yaml` or lazy `.py`.

detectron2 is not on PyPI and no extra brings it; it is imported if the user has installed it.
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from onespike.adapters.base import LoadedModel, Reading, Source
from onespike.adapters.checkpoints import load_checkpoint_
from onespike.adapters.detection import as_list, listed, objects_in
from onespike.adapters.preprocessing import describe_normalization
from onespike.errors import LoadError, UsageError, first_line
from onespike.tasks import Detection

TRUST = "ONESPIKE_TRUST_CONFIG"  # set to 1, it allows a lazy configuration, which is a program
SAVED = "config.yaml"
DERIVED = ("anchor_generator.cell_anchors", "pixel_mean", "pixel_std")
"""Tensors in older checkpoints that the configuration already gives."""


def load(name: str, source: Source) -> LoadedModel:
    """Load a detector with the resizing and the color order of its configuration."""
    spec = source.spec
    library = _library(spec)
    file = Path(name) / SAVED if Path(name).is_dir() else Path(name)
    if not file.is_file():
        raise LoadError(f"{spec}: no such configuration. Give the path of a .yaml or .py file of detectron2.")
    if source.attention is not None:
        raise UsageError(f"{spec}: its configuration says how attention is computed. Leave attention out.")
    if source.pretrained or (source.file is not None and source.file.suffix == ".pkl"):
        raise LoadError(
            f"{spec}: detectron2 publishes its weights as pickles, which may hold code and are never opened. Where you "
            "trust one, convert it and give it with weights=FILE.pth: "
            "tensors = {k: torch.as_tensor(v) for k, v in pickle.load(file, encoding='latin1')['model'].items()}; "
            "torch.save(tensors, 'FILE.pth')"
        )
    lazy = file.suffix == ".py"
    if lazy and os.environ.get(TRUST) != "1":
        raise UsageError(f"{spec}: this is a program, which would be run. If you trust it, set {TRUST}=1.")
    try:
        built = _lazy(library, file) if lazy else _yaml(library, file)
    except Exception as error:
        raise LoadError(
            f"{spec}: detectron2 cannot build this configuration ({type(error).__name__}: {first_line(error)}). "
            "Give one that your installation of detectron2 knows."
        ) from error
    _register(library)
    if source.file:
        load_checkpoint_(built.model, source.file, ignored=DERIVED)
    mean, std = (getattr(built.model, f"pixel_{part}").flatten().tolist() for part in ("mean", "std"))
    masks = bool(getattr(getattr(built.model, "roi_heads", None), "mask_on", False))
    preprocessing = f"{built.resizing}, {built.colors}, {describe_normalization(mean, std)}"
    reading = Reading(_transform(library, built.augmentations, built.colors), preprocessing, as_list)
    task = Detection(
        lambda output, images: listed(map(_entry, output), images),
        lambda output: objects_in(map(_entry, output)),
        masks,
        _class_names(library, built.dataset, built.model),
    )
    spec = f"detectron2:{file.resolve()}" if lazy else spec
    return LoadedModel(built.model, spec, reading, task, source.describe(), save_configuration=built.save)


def _library(spec: str) -> Any:
    names = ("config", "modeling", "structures", "data", "data.transforms")
    try:
        parts = {n.rpartition(".")[2]: importlib.import_module(f"detectron2.{n}") for n in names}
    except (ImportError, AttributeError) as error:
        raise LoadError(
            f"{spec}: detectron2 cannot be imported ({first_line(error)}). It is not on PyPI: install it from its "
            "repository, for the torch that is here."
        ) from error
    return SimpleNamespace(**parts)


def _yaml(library: Any, file: Path) -> SimpleNamespace:
    config = library.config.get_cfg()
    config.merge_from_file(str(file), allow_unsafe=False)
    config.MODEL.DEVICE, config.MODEL.WEIGHTS = "cpu", ""
    shortest, longest = config.INPUT.MIN_SIZE_TEST, config.INPUT.MAX_SIZE_TEST
    resize = library.transforms.ResizeShortestEdge([shortest, shortest], longest)

    def save(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SAVED).write_text(config.dump(), encoding="utf-8")

    return SimpleNamespace(
        model=library.modeling.build_model(config.clone()),
        augmentations=[resize] if shortest else [],
        resizing=f"resize {shortest} to {longest} bilinear",
        colors=config.INPUT.FORMAT,
        dataset=next(iter(config.DATASETS.TEST), None),
        save=save,
    )


def _lazy(library: Any, file: Path) -> SimpleNamespace:
    config, instantiate = library.config.LazyConfig.load(str(file)), library.config.instantiate
    mapper = config.dataloader.test.mapper
    augmentations = [instantiate(a) for a in mapper.augmentations]
    names = config.dataloader.test.dataset.names
    return SimpleNamespace(
        model=instantiate(config.model).cpu(),
        augmentations=augmentations,
        resizing=" then ".join(map(str, augmentations)) or "no resizing",
        colors=mapper.image_format,
        dataset=names if isinstance(names, str) else next(iter(names), None),
        save=None,  # the run names the file, which must stay where it is
    )


def _transform(library: Any, augmentations: list[Any], colors: str) -> Callable[[Any], Any]:
    """Return the transform from an RGB image to one entry of detectron2's input list; the detector normalizes."""
    import numpy

    def transform(image: Any) -> dict[str, Any]:
        pixels = numpy.asarray(image)[:, :, :: 1 if colors == "RGB" else -1]
        entry = library.transforms.AugInput(pixels)
        library.transforms.AugmentationList(augmentations)(entry)
        changed = numpy.ascontiguousarray(entry.image.transpose(2, 0, 1), dtype=numpy.float32)
        return {"image": torch.from_numpy(changed), "height": image.height, "width": image.width}

    return transform


def _entry(one: Any) -> dict[str, Any]:
    instances = one["instances"]
    masks = {"masks": instances.pred_masks[:, None]} if instances.has("pred_masks") else {}
    boxes, labels = instances.pred_boxes.tensor, instances.pred_classes
    return {"boxes": boxes, "labels": labels, "scores": instances.scores, **masks}


def _class_names(library: Any, dataset: str | None, model: nn.Module) -> tuple[str, ...] | None:
    """Return the classes of the configuration's test data; otherwise they are numbered."""
    catalog = library.data.MetadataCatalog
    if dataset is not None and catalog.get(dataset).get("thing_classes"):
        return tuple(catalog.get(dataset).get("thing_classes"))
    count = getattr(getattr(model, "roi_heads", model), "num_classes", None)
    return None if count is None else tuple(f"class {i}" for i in range(count))


def _register(library: Any) -> None:
    """Register what a detector returns with torch: calibration asks which of its tensors are outputs."""
    instances, boxes = library.structures.Instances, library.structures.Boxes
    if instances in _pytree.SUPPORTED_NODES:
        return
    _pytree.register_pytree_node(boxes, lambda b: ([b.tensor], None), lambda parts, _: boxes(*parts))
    _pytree.register_pytree_node(
        instances,
        lambda i: (list(i.get_fields().values()), (i.image_size, tuple(i.get_fields()))),
        lambda parts, context: instances(context[0], **dict(zip(context[1], parts, strict=True))),
    )
