"""One network and its images, measured under many recipes; finished measurements are kept."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import nn

from onespike import runs
from onespike.adapters import LoadedModel
from onespike.calibration.inputs import batch_count, batches_of
from onespike.calibration.stream import calibrate
from onespike.calibration.thresholds import Thresholds, calibrated_by
from onespike.conversion.network import convert
from onespike.energy.ledger import or_none
from onespike.energy.profiles import profile
from onespike.errors import DataError
from onespike.evaluation.pairwise import Once
from onespike.evaluation.side_by_side import Evaluation
from onespike.recipe import Recipe
from onespike.runs import NetworkPair
from onespike.runs.inputs import images_digest, network_digest
from onespike.runs.searching import ScaleObjective, scale_within
from onespike.runtime.batches import to
from onespike.runtime.forward import device_of
from onespike.runtime.progress import progress
from onespike.scale_search import search
from onespike.studies.finished import Finished
from onespike.tasks import Items, limit
from onespike.tasks.detection import SHAPES

CACHE = "measured.json"
PREFIXES, PRECISIONS = (("ann", "ann "), ("snn", "")), ("AP", "AP50")
"""Of the figures of detectors in a table: the original network's and the spiking one's, of boxes and of masks."""
SPREAD: dict[str, Callable[[list[float]], float]] = {"sd": stdev, "lowest": min, "highest": max}
"""Columns of the score's spread over calibrations."""


@dataclass
class Bench:
    """Measures recipes on one network: thresholds on `calibration`, λ on `held`, figures on `test`.

    Finished measurements are kept in the folder. With `draws`, more sets of images for thresholds, scores are means over all
    sets, with their spread.
    """

    loaded: LoadedModel
    calibration: Items
    held: Items
    test: Items
    folder: Path
    batch_size: int = 50
    draws: Sequence[Items] = ()

    def __post_init__(self) -> None:
        self.ann, self.original = self.loaded.model, Once(self.loaded.model)
        self.calibrations, self.thresholds = (self.calibration, *self.draws), dict[str, Thresholds]()
        sets = {"calibration": self.calibration, "search": self.held, "test": self.test}
        self.identity = {
            "network": self.loaded.spec,
            "weights": self.loaded.weights,
            "preprocessing": self.loaded.reading.preprocessing,
            "profile": profile().name,
            **{name: list(items.names) for name, items in sets.items()},
            "sha256": {
                "weights": network_digest(self.ann),
                **{name: images_digest(items) for name, items in sets.items()},
            },
            "draws": [images_digest(items) for items in self.draws],
        }
        self.finished = Finished(self.folder / CACHE, self.identity)
        self.once = self.finished.once

    @property
    def note(self) -> str:
        """What the columns of a spread mean, where there are such."""
        if len(self.calibrations) == 1:
            return ""
        return (
            f"Scores are means over {len(self.calibrations)} calibrations on {len(self.calibration)} images each; sd, lowest "
            "and highest are their spread. `error` is of the test images alone. Searches take the first calibration."
        )

    def calibrated(self, recipe: Recipe) -> Thresholds:
        """Return thresholds for a recipe; recipes that differ only after calibration share them."""
        key = json.dumps([calibrated_by(recipe), self.calibration.names])
        if key not in self.thresholds:
            bar = progress("calibrating", batch_count(self.calibration, self.batch_size))
            batches = batches_of(self.calibration, self.loaded, self.batch_size)
            self.thresholds[key] = calibrate(self.ann, bar(batches), recipe)
        return self.thresholds[key]

    def batch(self, items: Items, size: int) -> Any:
        """Return one batch of inputs, evenly spaced over these, where the network is."""
        return to(next(batches_of(limit(items, size), self.loaded, size)), device_of(self.ann))

    def converted(self, recipe: Recipe) -> nn.Module:
        return convert(self.ann, self.calibrated(recipe), recipe, share_weights=True)

    def measure(self, recipe: Recipe) -> dict[str, Any]:
        """Measure the headline, precision, divergence, energy and time of the network under a recipe, on the test images.

        After several calibrations figures are means, and the score has its spread.
        """
        rows, key = [], "score " + spell(recipe)
        for number, calibration in enumerate(self.calibrations):
            self.calibration = calibration
            name = f"{key} after calibration {number}" if number else key
            rows.append(self.once(name, lambda: self._measure(recipe)))
        self.calibration = self.calibrations[0]
        if len(rows) == 1:
            return rows[0]
        every = {name: [row[name] for row in rows] for name in rows[0]}
        numbers = {n: v for n, v in every.items() if all(isinstance(one, int | float) for one in v)}
        means = {name: fmean(values) for name, values in numbers.items()}
        over = (summary(numbers["score"]) if "score" in numbers else None for summary in SPREAD.values())
        return {**rows[0], **means, **dict(zip(SPREAD, over, strict=True))}

    def evaluated(self, recipe: Recipe) -> Evaluation:
        """Run both networks side by side on the test images."""
        title = f"{recipe.preset} {recipe.levels:.16} T={recipe.steps} λ={recipe.scale:.3g}"
        networks = self.original, self.converted(recipe)
        pair = NetworkPair(self.loaded, *networks, recipe, self.calibrated(recipe), {})
        return runs.evaluate_pair(pair, self.test, batch_size=self.batch_size, title=title)

    def _measure(self, recipe: Recipe) -> dict[str, Any]:
        result = self.evaluated(recipe)
        record = result.to_dict()
        headline = self.loaded.task.headline(record)
        rows = [row for row in result.ledger.sites.values() if row.spiking]
        precisions = {
            f"{prefix}{shape} {name}": record[network][kind][name]
            for (network, prefix), (kind, shape), name in product(PREFIXES, SHAPES.items(), PRECISIONS)
            if kind in record.get(network, ())
        }
        return {
            **precisions,
            "metric": headline.title,
            "ann": headline.original,
            "score": headline.spiking,
            "error": headline.error,
            "agreement": record.get("agreement"),
            "kl": record.get("kl"),
            **record["energy"],
            "pairs": or_none(result.ledger.ratio("nonzero", double=True)),
            "firing": sum(r.spikes for r in rows) / max(sum(r.elements for r in rows) / recipe.steps, 1),
            "seconds": record["seconds"]["snn"],
        }

    def searched(self, recipe: Recipe, trials: int = 12, objective: str = "kl") -> Recipe:
        """Return the recipe with the λ that a search on the held-out images finds best."""
        key = f"search {objective} {trials} " + spell(recipe.replace(scale=1.0))

        def measure() -> dict[str, Any]:
            aim = self.loaded.task.objectives[objective]
            batches, snn = self.loaded.batches(self.held, self.batch_size), self.converted(recipe)
            measured = ScaleObjective(self.ann, snn, batches, aim, self.held)
            result = search(measured, trials=trials, maximize=aim.maximize, fixed=(1.0, 0.25))
            return {"scale": result.best.scale}

        return recipe.replace(scale=self.once(key, measure)["scale"])

    def at_energy(self, recipe: Recipe, column: str, ratio: float) -> Recipe:
        """Return the recipe with the λ whose energy on a few held-out images is closest to this ratio."""
        key = f"at {column} {ratio:.6f} " + spell(recipe.replace(scale=1.0))

        def bisect() -> dict[str, Any]:
            few = self.batch(self.held, self.batch_size)
            return {"scale": scale_within(self.converted(recipe), few, column, ratio)}

        return recipe.replace(scale=self.once(key, bisect)["scale"])


def spell(recipe: Recipe) -> str:
    """Return a recipe as a key: all of its fields but the name of its preset."""
    fields = {k: v for k, v in recipe.to_dict().items() if k not in ("version", "preset")}
    return json.dumps(fields, sort_keys=True)


def split(
    source: Items, calibration: Items | None, held: int, count: int | None
) -> tuple[Items, Items, Items]:
    """Return images for calibration, for searches and for the figures, without overlap.

    Without a separate source, calibration also takes its images (as many as a search) from the data.
    """
    if calibration is None:
        if len(source) < 2 * held + 1:
            raise DataError(
                f"{source.source}: {len(source)} images are too few to calibrate, search and evaluate apart. "
                f"Give at least {2 * held + 1}, or calibrate=DIR."
            )
        calibration = limit(source, 2 * held)
        source = runs.without(source, calibration.names)
    if len(calibration) < 2:
        raise DataError(f"{calibration.source}: calibration and search need two images. Give more.")
    first = limit(calibration, max(len(calibration) // 2, 1))
    if Path(calibration.source).resolve() == Path(source.source).resolve():
        source = runs.without(source, calibration.names)
    return first, runs.without(calibration, first.names), limit(source, count)
