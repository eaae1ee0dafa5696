"""Scales, factors and thresholds that float32 does not hold are refused at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onespike import Recipe, calibrate, convert
from onespike.errors import UsageError
from onespike.neurons import Scale


@pytest.mark.parametrize("scale", [1e-300, 1e-46, 1e-40])
def test_a_scale_that_float32_does_not_hold_is_refused_at_once(scale):
    with pytest.raises(UsageError, match=rf"^scale must be in \(0, 1\] .* not {scale:g}\. The paper uses"):
        Recipe(scale=scale)
    with pytest.raises(UsageError, match=r"^scale must be in"):
        Scale(scale)


@pytest.mark.parametrize("factor", [0.0, 1e-300, 1e-40, 1e300, float("nan")])
def test_a_factor_that_float32_does_not_hold_is_refused_at_once(factor):
    with pytest.raises(UsageError, match=r"^the factor of '\*' must be from 1\.2e-38 to 3\.4e\+38"):
        Recipe(factors=(("*", factor),))


@pytest.mark.parametrize("fixed", [-1.0, 1e-300, float("inf"), float("nan")])
def test_a_fixed_threshold_that_float32_does_not_hold_is_refused_at_once(fixed):
    with pytest.raises(UsageError, match=r"^the fixed threshold of '\*' must be 0 or from 1\.2e-38"):
        Recipe(fixed=(("*", 1.0, fixed),))


def test_a_step_that_vanishes_is_refused_with_its_site():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    thresholds = calibrate(model, [torch.randn(64, 2)])
    recipe = Recipe(scale=1e-30, factors=(("2:*", 1e-30),))
    message = r"^convert: the step of 2:linear0_input, 1e-30 times its threshold .*, is 0 in float32\. Give a larger"
    with pytest.raises(UsageError, match=message):
        convert(model, thresholds, recipe)
