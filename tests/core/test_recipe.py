"""How a recipe prints."""

from __future__ import annotations

import pytest

from onespike import Recipe, preset
from onespike.recipe import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_a_recipe_prints_as_its_preset_and_what_differs(name):
    assert repr(preset(name)) == f"preset('{name}')"
    changed = preset(name, percentile=2.0, exclude=("fc1:*",))
    assert repr(changed) == f"preset('{name}', percentile=2.0, exclude=('fc1:*',))"
    assert eval(repr(changed)) == changed
    assert repr(Recipe(scale=0.3)) == "preset('sformer', scale=0.3)"
