"""A recipe that asks for another calibration than the thresholds had is refused."""

from __future__ import annotations

import pytest

from contract.networks import converted, sequences, transformer
from onespike import Recipe, calibrate, convert, preset, table
from onespike.errors import UsageError


@pytest.mark.parametrize("levels", ["4", "8", "12", "linear:8", "exponential:4"])
@pytest.mark.parametrize("percentile", [0.0, 1.0, 2.0])
def test_a_recipe_that_asks_for_another_calibration_is_refused(levels, percentile):
    model, x = transformer(), sequences()
    thresholds, recipe = calibrate(model, [x]), Recipe(levels=levels, percentile=percentile)
    if (levels, percentile) == ("8", 1.0):  # the paper's, in other words
        assert table(convert(model, thresholds, recipe)) == table(convert(model, thresholds))
        return
    with pytest.raises(
        UsageError, match=r"^convert: the thresholds were calibrated with (levels|percentile)="
    ):
        convert(model, thresholds, recipe)


@pytest.mark.parametrize(
    ("recipe", "difference"),
    [
        (preset("mtn"), "neuron='sfn', and the recipe has neuron='mtn'"),
        (Recipe(domain="sided"), "domain='all', and the recipe has domain='sided'"),
        (Recipe(softmax=0.0035), "softmax='site', and the recipe has softmax=0.0035"),
        (Recipe(granularity="channel"), "granularity='site', and the recipe has granularity='channel'"),
        *((preset(name), "") for name in ("if", "uniform", "ecmt", "paper-vit-base")),
    ],
)
def test_presets_do_not_take_over_foreign_thresholds(recipe, difference):
    model, x = transformer(), sequences()
    with pytest.raises(UsageError) as refused:
        convert(model, calibrate(model, [x]), recipe)
    assert difference in str(refused.value)
    assert str(refused.value).endswith("Calibrate with this recipe: calibrate(model, batches, recipe).")
    assert converted(model, x, recipe) is not None
