"""How a recipe prints, and what its fields take."""

from __future__ import annotations

import re

import pytest
import torch

from onespike import NEURONS, Recipe, preset
from onespike.errors import UsageError
from onespike.recipe import PRESETS
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
    rate_coded = recipe.neuron in (
        "if",
        "mtn",
    )  # one spike per step, or all of them at once (Theorem 1: N = T)
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
