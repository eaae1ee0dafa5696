"""How a recipe prints, and what its fields take."""

from __future__ import annotations

import math

import pytest

from contract.networks import converted, mlp, rows
from onespike import Recipe, preset
from onespike.errors import UsageError
from onespike.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_a_recipe_prints_as_its_preset_and_what_differs(name):
    assert repr(preset(name)) == f"preset('{name}')"
    changed = preset(name, percentile=2.0, exclude=("fc1:*",))
    assert repr(changed) == f"preset('{name}', percentile=2.0, exclude=('fc1:*',))"
    assert eval(repr(changed)) == changed
    assert repr(Recipe(scale=0.3)) == "preset('sformer', scale=0.3)"


def test_words_are_read_as_on_the_command_line():
    """A glob that is no tuple must not be taken letter by letter: `*` would exclude everything."""
    words = dict(exclude="fc1:*", scale="0.3", steps="2", softmax="0.5", fixed="fc2:*=1,2")
    values = dict(exclude=("fc1:*",), scale=0.3, steps=2, softmax=0.5, fixed=(("fc2:*", 1.0, 2.0),))
    recipe = Recipe(include=["fc1:*", "fc2:*"], **words)
    assert recipe == Recipe(include=("fc1:*", "fc2:*"), **values)
    assert Recipe(passes="nearest, allocate").passes == ("nearest", "allocate")
    assert not recipe.chooses("fc1:linear0_input") and recipe.chooses("fc2:linear0_input")


SMALL = r"must be (0 or )?from 1\.2e-38"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"scale": x}, rf"^scale must be in \(0, 1\] .* not {x:g}\. The paper uses") for x in (1e-300, 1e-46, 1e-40)),
        *(({"factors": (("*", x),)}, rf"^the factor of '\*' {SMALL}") for x in (0.0, 1e-300, 1e-40, 1e300, math.nan)),
        *(({"fixed": (("*", 1.0, x),)}, rf"^the fixed threshold of '\*' {SMALL}") for x in (-1.0, 1e-300, math.inf, math.nan)),
        ({"steps": 0}, r"^steps must be from 1 to 4096, not 0\. The paper uses 1 and 2\.$"),
        ({"steps": 10**11}, r"^steps must be from 1 to 4096, not 100000000000\. The paper uses 1 and 2\.$"),
        ({"neuron": "if", "steps": 4}, r"'if' fires one spike per step, and levels 'mixed:8' are .*use levels='1,'\.$"),
        ({"neuron": "uniform", "levels": "bits:4", "steps": 2}, r"'uniform' is plain quantization and has one step\. Use steps=1\.$"),
        ({"placement": "relu"}, r"^unknown placement 'relu'\. Known: activation, synapse\.$"),
        ({"io": "int8", "steps": 2}, r"^edges in 8 bits are for one timestep\. Use io='analog', or steps=1\.$"),
        ({"max_drop": 0.01}, "there are no passes"),
        ({"max_drop": 2.0, "passes": "nearest"}, "a share from 0 to 1"),
        ({"scale": "much"}, "scale must be a number, not 'much'"),
        ({"scale": None}, "scale must be a number, not None"),
        ({"percentile": True}, "percentile must be a number, not True"),
        ({"steps": 2.5}, "steps must be a whole number, not 2.5"),
        ({"steps": "2.5"}, "steps must be a whole number, not '2.5'"),
        ({"levels": 8}, "levels must be text such as 'mixed:8' or '1,2,4', not 8"),
        ({"levels": [1, 2]}, r"levels must be text such as 'mixed:8' or '1,2,4', not \(1, 2\)"),
        ({"neuron": None}, "unknown neuron None"),
        ({"budget": "none at all", "passes": "nearest"}, "'none at all' is not a number"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_at_once(changes, message):
    with pytest.raises(UsageError, match=message):
        Recipe(**changes)


def test_a_step_that_vanishes_is_refused_with_its_site():
    message = r"^convert: the step of 2:linear0_input, 1e-30 times its threshold .*, is 0 in float32\. Give a larger"
    with pytest.raises(UsageError, match=message):
        converted(mlp(), rows(), Recipe(scale=1e-30, factors=(("2:*", 1e-30),)))
