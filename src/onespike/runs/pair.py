"""A network and its converted copy, side by side."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import nn

from onespike.adapters import LoadedModel
from onespike.calibration.thresholds import Thresholds
from onespike.conversion.network import convert
from onespike.recipe import Recipe


@dataclass(frozen=True)
class NetworkPair:
    """A network and its converted copy, with everything needed to feed them."""

    loaded: LoadedModel
    ann: nn.Module
    snn: nn.Module
    recipe: Recipe
    thresholds: Thresholds
    data: dict[str, Any]


def with_recipe(pair: NetworkPair, recipe: Recipe) -> NetworkPair:
    """Return the same network and thresholds, converted by another recipe."""
    snn = convert(pair.ann, pair.thresholds, recipe, share_weights=True)
    return dataclasses.replace(pair, snn=snn, recipe=recipe)
