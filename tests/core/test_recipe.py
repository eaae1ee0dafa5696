"""How a recipe prints, and what its fields take."""

from __future__ import annotations

import math
import re

import pytest
import torch

from contract.networks import converted, mlp, rows
from onespike import NEURONS, Recipe, preset
from onespike.errors import UsageError
from onespike.neurons import Scale
from onespike.presets import PRESETS
from onespike.spikes import parse_levels


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
        ({"steps": "2.5"}, "steps must be a whole number, not '2.5'"),
        ({"levels": 8}, "levels must be text such as 'mixed:8' or '1,2,4', not 8"),
        ({"levels": [1, 2]}, r"levels must be text such as 'mixed:8' or '1,2,4', not \(1, 2\)"),
        ({"neuron": None}, "unknown neuron None"),
        ({"budget": "none at all", "passes": "nearest"}, "'none at all' is not a number"),
    ],
)
def test_fields_of_other_types_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        Recipe(**changes)


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_sentence_counts_its_levels(name):
    recipe, sentence = preset(name), PRESETS[name].about
    levels = len(parse_levels(recipe.levels).levels())
    rate_coded = recipe.neuron in ("if", "mtn")  # one spike per step, or all at once (Theorem 1: N = T)
    counted = {
        "bit": (levels + 1).bit_length() - 1,
        "thresholds": levels,
        "steps": recipe.steps * (levels if rate_coded else 1),
    }
    stated = re.findall(r"(\d+)[- ](?:exponential )?(bit|thresholds|steps)", sentence)
    assert all(counted[what] == int(number) for number, what in stated), sentence
    assert stated or name not in ("if", "mtn", "ecmt", "uniform")


def test_the_multi_threshold_preset_equals_integrate_and_fire_over_its_steps():
    levels = parse_levels(preset("mtn").levels).levels()
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    one, many = NEURONS["mtn"](1.0, levels=levels), NEURONS["if"](1.0, levels=tuple(range(1, 17)))
    assert torch.equal(one.spikes(x), many.spikes(x))


SMALL = r"must be (0 or )?from 1\.2e-38"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"scale": x}, rf"^scale must be in \(0, 1\] .* not {x:g}\. The paper uses") for x in (1e-300, 1e-46, 1e-40)),
        *(({"factors": (("*", x),)}, rf"^the factor of '\*' {SMALL}") for x in (0.0, 1e-300, 1e-40, 1e300, math.nan)),
        *(({"fixed": (("*", 1.0, x),)}, rf"^the fixed threshold of '\*' {SMALL}") for x in (-1.0, 1e-300, math.inf, math.nan)),
    ],
)  # fmt: skip
def test_what_float32_does_not_hold_is_refused_at_once(changes, message):
    with pytest.raises(UsageError, match=message):
        Recipe(**changes)
    if "scale" in changes:
        with pytest.raises(UsageError, match=r"^scale must be in"):
            Scale(changes["scale"])


def test_a_step_that_vanishes_is_refused_with_its_site():
    message = r"^convert: the step of 2:linear0_input, 1e-30 times its threshold .*, is 0 in float32\. Give a larger"
    with pytest.raises(UsageError, match=message):
        converted(mlp(), rows(), Recipe(scale=1e-30, factors=(("2:*", 1e-30),)))
