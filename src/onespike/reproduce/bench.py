"""One network and its images, measured under many recipes; what is finished is kept and not measured again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onespike import pipeline
from onespike.adapters import LoadedModel
from onespike.calibrate import Thresholds, calibrate, evaluating
from onespike.convert import convert
from onespike.errors import DataError, UsageError
from onespike.evaluate import evaluate
from onespike.files import write_atomically
from onespike.objective import OBJECTIVES, OverallObjective, ScaleObjective, scale_within
from onespike.pipeline import Progress, no_progress
from onespike.recipe import Recipe
from onespike.search import Search, search
from onespike.tasks import Coco, Items, Paired, batches, limit
from onespike.trace import logits

CACHE = "measured.json"
CALIBRATED = (
    "neuron",
    "levels",
    "percentile",
    "domain",
    "softmax",
    "granularity",
    "placement",
    "fold_batchnorm",
)
"""The recipe's fields that calibration depends on (λ too, for levels placed by density)."""


class Replayed(nn.Module):
    """The original network as the list of its outputs, so that it runs once for all recipes."""

    marker: Tensor

    def __init__(self, outputs: list[Tensor], device: torch.device) -> None:
        super().__init__()
        self.outputs, self.place = outputs, 0
        self.register_buffer("marker", torch.zeros((), device=device))

    def forward(self, x: Tensor) -> Tensor:
        self.place += 1
        return self.outputs[self.place - 1]


class Bench:
    """Measures recipes on one network.

    Args:
        loaded: the network with its preprocessing.
        calibration: images for thresholds.
        held: images for λ searches, which neither calibration nor evaluation sees.
        test: images for the figures.
        folder: where finished measurements are kept.
        batch_size: images a forward.
        progress: for bars.
        truths: for a detector, the annotations of each source of images.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        calibration: Items,
        held: Items,
        test: Items,
        folder: Path,
        *,
        batch_size: int = 50,
        progress: Progress = no_progress,
        truths: Mapping[str, Coco] | None = None,
    ) -> None:
        self.loaded, self.calibration, self.held, self.test = loaded, calibration, held, test
        self.folder, self.batch_size, self.progress = folder, batch_size, progress
        self.ann, self.truths = loaded.model, truths or {}
        self.identity = {
            "network": loaded.spec,
            "weights": loaded.weights,
            **{name: list(items.names) for name, items in self.sets().items()},
        }
        self.kept = self._read()
        self.thresholds: dict[str, Thresholds] = {}
        self.outputs: list[Tensor] = []

    def sets(self) -> dict[str, Items]:
        return {"calibration": self.calibration, "search": self.held, "test": self.test}

    def _read(self) -> dict[str, Any]:
        file = self.folder / CACHE
        if not file.exists():
            return {}
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            identity, kept = record["identity"], record["measured"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}: this file is damaged. Remove it to measure again.") from error
        if identity != json.loads(json.dumps(self.identity)):
            raise UsageError(
                f"{self.folder} holds measurements of another network or of other images. Choose another --out."
            )
        return dict(kept)

    def once(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A measurement by its key: from the folder if it was finished before, else made and kept."""
        if key not in self.kept:
            self.kept[key] = measure()
            record = {"identity": self.identity, "measured": self.kept}
            write_atomically(self.folder / CACHE, json.dumps(record, indent=1) + "\n")
        found: dict[str, Any] = self.kept[key]
        return found

    def calibrated(self, recipe: Recipe) -> Thresholds:
        """Thresholds for a recipe; recipes that differ only after calibration share them."""
        fields = {name: getattr(recipe, name) for name in CALIBRATED}
        if recipe.levels.startswith("density"):
            fields["scale"] = recipe.scale
        key = json.dumps(fields)
        if key not in self.thresholds:
            bar = self.progress("calibrating", self.steps(self.calibration))
            inputs = self._inputs(self.calibration)
            self.thresholds[key] = calibrate(self.ann, inputs, recipe, progress=bar)
        return self.thresholds[key]

    def steps(self, items: Items) -> int:
        return -(-len(items) // self.batch_size)

    def labelled(self, items: Items) -> Iterator[tuple[Any, Any]]:
        """Batches of inputs and labels."""
        return batches(items, self.loaded.transform, self.batch_size, collate=self.loaded.collate)

    def _inputs(self, items: Items) -> Iterator[Any]:
        return (x for x, _ in self.labelled(items))

    def truth(self, items: Items) -> Coco:
        """The annotations of these images."""
        if items.source not in self.truths:
            raise DataError(f"{items.source}: boxes are scored with annotations. Give --annotations FILE.")
        return self.truths[items.source]

    def converted(self, recipe: Recipe) -> nn.Module:
        return convert(self.ann, self.calibrated(recipe), recipe, share_weights=True)

    def measure(self, recipe: Recipe) -> dict[str, Any]:
        """Accuracy, divergence, energy and time of the network under a recipe, on the test images."""
        return self.once("measure " + spell(recipe), lambda: self._measure(recipe))

    def _measure(self, recipe: Recipe) -> dict[str, Any]:
        snn, metric = self.converted(recipe), Paired()
        steps = self.steps(self.test)
        device = next(self.ann.parameters()).device
        if not self.outputs:
            with evaluating(self.ann):
                inputs = self.progress("original network", steps)(self._inputs(self.test))
                self.outputs = [logits(self.ann(x.to(device))) for x in inputs]
        title = f"{recipe.preset} {recipe.levels:.16} T={recipe.steps} λ={recipe.scale:.3g}"
        result = evaluate(
            Replayed(self.outputs, device),
            snn,
            self.labelled(self.test),
            metric,
            progress=self.progress(title, steps),
        )
        record = result.to_dict()
        rows = [row for row in result.ledger.sites.values() if row.spiking]
        return {
            "ann": record["ann"]["top1"],
            "top1": record["snn"]["top1"],
            "error": record["standard_error"],
            "agreement": record["agreement"],
            "kl": record["kl"],
            **record["energy"],
            "pairs": _number(result.ledger.ratio("nonzero", double=True)),
            "firing": sum(r.spikes for r in rows) / max(sum(r.elements for r in rows) / recipe.steps, 1),
            "seconds": record["seconds"]["snn"],
            "images": record["images"],
        }

    def searched(self, recipe: Recipe, trials: int = 12, objective: str = "kl") -> dict[str, Any]:
        """λ by search on the held-out images: `scale`, `value`, `seconds` and `forwards`."""
        key = f"search {objective} {trials} " + spell(recipe.replace(scale=1.0))
        return self.once(key, lambda: self._search(recipe, trials, objective))

    def _search(self, recipe: Recipe, trials: int, objective: str) -> dict[str, Any]:
        title = f"{trials} λ trials, {objective}"
        snn, held = self.converted(recipe), self.labelled(self.held)
        measure: ScaleObjective | OverallObjective
        if objective == "ap":
            score = pipeline.detection(self.loaded, self.truth(self.held)).precision
            measure = OverallObjective(snn, held, score)
        else:
            measure = ScaleObjective(self.ann, snn, held, objective)
        bar = iter(self.progress(title, trials)(range(trials)))

        def advance() -> None:
            next(bar, None)

        found: Search = search(
            measure,
            trials=trials,
            maximise=OBJECTIVES[objective],
            fixed=(1.0, 0.25),
            report=lambda trial, done, total: advance(),
        )
        for _ in bar:
            pass
        return {
            "scale": found.best.scale,
            "value": found.best.value,
            "seconds": sum(trial.seconds for trial in found.trials),
            "forwards": measure.forwards,
            "images": measure.images,
        }

    def at_energy(self, recipe: Recipe, column: str, ratio: float) -> Recipe:
        """The recipe with the λ whose energy on a few held-out images is this ratio, as nearly as λ can."""
        key = f"at {column} {ratio:.6f} " + spell(recipe.replace(scale=1.0))

        def bisect() -> dict[str, Any]:
            few = next(iter(self._inputs(limit(self.held, self.batch_size))))
            return {"scale": scale_within(self.converted(recipe), few, column, ratio)}

        return recipe.replace(scale=self.once(key, bisect)["scale"])


def spell(recipe: Recipe) -> str:
    """A recipe as a key: all of its fields but the name of its preset."""
    fields: Mapping[str, Any] = {k: v for k, v in recipe.to_dict().items() if k not in ("version", "preset")}
    return json.dumps(fields, sort_keys=True)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def split(
    source: Items, calibration: Items | None, held: int, count: int | None
) -> tuple[Items, Items, Items]:
    """Images for calibration, for searches and for the figures, none of them twice.

    Without a source of its own, calibration takes its images (as many as a search) from the data too.
    """
    if calibration is None:
        if len(source) < 2 * held + 1:
            raise DataError(
                f"{source.source}: {len(source)} images are too few to calibrate, search and evaluate apart. "
                f"Give at least {2 * held + 1}, or --calibrate DIR."
            )
        calibration = limit(source, 2 * held)
        source = pipeline.without(source, calibration.names)
    if len(calibration) < 2:
        raise DataError(f"{calibration.source}: calibration and search need two images. Give more.")
    first = limit(calibration, max(len(calibration) // 2, 1))
    rest = pipeline.without(calibration, first.names)
    if Path(calibration.source).resolve() == Path(source.source).resolve():
        source = pipeline.without(source, calibration.names)
    return first, rest, source if count is None else limit(source, count)
