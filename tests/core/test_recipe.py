"""How a recipe prints, and what its fields take."""

from __future__ import annotations

import pytest

from onespike import Recipe, preset
from onespike.errors import UsageError
from onespike.recipe import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_a_recipe_prints_as_its_preset_and_what_differs(name):
    assert repr(preset(name)) == f"preset('{name}')"
    changed = preset(name, percentile=2.0, exclude=("fc1:*",))
    assert repr(changed) == f"preset('{name}', percentile=2.0, exclude=('fc1:*',))"
    assert eval(repr(changed)) == changed
    assert repr(Recipe(scale=0.3)) == "preset('sformer', scale=0.3)"


def test_words_are_read_as_on_the_command_line():
    """A glob that is no tuple must not be taken letter by letter: `*` would exclude everything."""
    given = Recipe(
        exclude="fc1:*", include=["fc1:*", "fc2:*"], scale="0.3", steps="2", softmax="0.5", fixed="fc2:*=1,2"
    )
    assert given == Recipe(
        exclude=("fc1:*",),
        include=("fc1:*", "fc2:*"),
        scale=0.3,
        steps=2,
        softmax=0.5,
        fixed=(("fc2:*", 1.0, 2.0),),
    )
    assert Recipe(passes="nearest, allocate").passes == ("nearest", "allocate")
    assert not given.chooses("fc1:linear0_input") and given.chooses("fc2:linear0_input")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": "much"}, "scale must be a number, not 'much'"),
        ({"scale": None}, "scale must be a number, not None"),
        ({"percentile": True}, "percentile must be a number, not True"),
        ({"steps": 2.5}, "steps must be a whole number, not 2.5"),
        ({"steps": "2.5"}, "steps must be a number, not '2.5'"),
        ({"levels": 8}, "levels must be text such as 'mixed:8' or '1,2,4', not 8"),
        ({"levels": [1, 2]}, r"levels must be text such as 'mixed:8' or '1,2,4', not \(1, 2\)"),
        ({"neuron": None}, "unknown neuron None"),
        ({"budget": "none at all", "passes": "nearest"}, "'none at all' is not a number"),
    ],
)
def test_fields_of_other_types_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        Recipe(**changes)
