"""Fields of the recipe are options: each way from words to a recipe and back, and recipes as files."""

from __future__ import annotations

import json
import shlex

import pytest
from command_line import CALIBRATION, VIT, stored

from onespike.cli.options import recipe_of
from onespike.presets import DEFAULT, PRESETS
from onespike.recipe import FIELDS, Recipe, preset
from onespike.runs.recipe_text import read_recipe, recipe_options, recipe_text

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)
)
"""Twelve lines that stand for a text of 69 billion characters."""
WORDS = {
    "preset": "--preset ecmt-vit",
    "neuron": "--set neuron=mtn",
    "levels": "--set levels=mixed:64+8",
    "rounding": "--set rounding=nearest",
    "scale": "--scale 0.2718281828459045",
    "percentile": "--set percentile=0",
    "domain": "--set domain=sided",
    "softmax": "--set softmax=0.0035",
    "granularity": "--set granularity=channel",
    "step_digits": "--set step_digits=2",
    "payload_bits": "--set payload_bits=4",
    "centers": "--set centers=biases",
    "io": "--set io=spiking",
    "include": "--set include=a* --set include=b*",
    "exclude": "--set exclude=head:*",
    "fold_batchnorm": "--set fold_batchnorm=no",
    "factors": "--set factors=*.fc1:*=0.1 --set factors=a=b=3",
    "steps": "--set steps=2",
    "placement": "--set placement=activation",
    "fixed": "--set fixed=*.fc2:*=0.25,0",
    "passes": "--passes nearest,center",
    "budget": "--passes nearest --budget 0.2",
    "energy": "--passes nearest --energy binary",
    "max_drop": "--passes nearest --max-drop 0.01",
}
WORDS = {name: words if name == "preset" else f"--preset sformer {words}" for name, words in WORDS.items()}


def typed(text: str) -> Recipe:
    """The recipe of a command's words, as the command line reads them."""
    pairs = text.split()
    words = list(zip(pairs[::2], pairs[1::2], strict=True))
    usual = {flag[2:].replace("-", "_"): word for flag, word in words if flag != "--set"}
    return recipe_of([word for flag, word in words if flag == "--set"], **usual)


def test_every_field_is_an_option():
    assert list(Recipe.__dataclass_fields__) == list(FIELDS) == list(WORDS)


@pytest.mark.parametrize("name", WORDS)
def test_words_and_recipes_are_two_forms_of_one_thing(name):
    recipe = typed(WORDS[name])
    assert getattr(recipe, name) != getattr(Recipe(), name)
    assert " ".join(recipe_options(recipe)) == WORDS[name]


def test_what_a_preset_sets_can_be_unset():
    assert recipe_options(preset(DEFAULT)) == []  # what `convert` does without options
    recipe = preset("best", budget=None, passes=("nearest",))
    unset = ["--budget", "none", "--max-drop", "none"]
    assert recipe_options(recipe) == ["--preset", "best", "--passes", "nearest", *unset]
    for one in (recipe, preset("fast", budget=0.1), preset("fast", budget=0.1, max_drop=0.005)):
        assert typed(" ".join(recipe_options(one))) == one


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize("name", WORDS)
def test_a_file_gives_the_recipe_again(tmp_path, name, suffix):
    recipe, file = typed(WORDS[name]), tmp_path / f"recipe{suffix}"
    record = {"version": 1, "preset": recipe.preset, **recipe.changes()}
    text = recipe_text(recipe)
    assert [line.partition(": ")[0] for line in text.splitlines()] == list(record)
    file.write_text(json.dumps(record) if suffix == ".json" else text)
    assert read_recipe(file) == recipe


REFUSED = {
    "scal: 0.3": "unknown recipe field 'scal'. Did you mean 'scale'? Known: ",
    "scale: much": "the file is damaged (at scale: input should be a valid number). Write it as",
    "scale: 2": "the file is damaged: scale must be in (0, 1], not 2.",
    "scale: [": "this is no valid YAML at line 1. Write it as",
    "preset: bets": "unknown preset 'bets'. Did you mean 'best'",
    "version: 9": "this recipe has version 9, not 1. Write it as",
    "just words": "a recipe has lines such as `scale: 0.25`, and this has none. Write it as",
    "a: &a [*a]": "this is no valid YAML at line 1. Write it as",
    "scale: !!timestamp x": "this is no valid YAML. Write it as",
    "scale: !!bool x": "this is no valid YAML. Write it as",
    BOMB: "this is no valid YAML at line 2. Write it as",
    "5: 6": "unknown recipe field '5'. Known: ",
    "passes: [nearest]\nsteps: 2": "the file is damaged: passes are for one timestep",
    "exclude: head": "the file is damaged (at exclude: input should be a valid",
}


@pytest.mark.parametrize("text", REFUSED)
def test_files_that_are_no_recipe(cli, tmp_path, text):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    words = ("convert", VIT, "--calibrate", CALIBRATION, "--out", tmp_path / "run", "--recipe")
    assert cli(*words, file).message().startswith(f"{file}: {REFUSED[text]}")
    assert not (tmp_path / "run").exists()


def test_a_recipe_goes_out_of_a_run_and_into_the_next(cli, tmp_path):
    words = ("convert", VIT, "--calibrate", CALIBRATION, "--limit", 2)
    changes = ("--scale", 0.3, "--set", "exclude=head:*")
    cli(*words, "--preset", "sformer", *changes, "--out", tmp_path / "a").good()
    shown = cli("inspect", tmp_path / "a", "--recipe", "--json", tmp_path / "recipe.json")
    assert shown.out == "version: 1\npreset: sformer\nscale: 0.3\nexclude: ['head:*']\n"
    (tmp_path / "recipe.yaml").write_text(shown.out)
    for suffix in ("yaml", "json"):
        file, out = tmp_path / f"recipe.{suffix}", tmp_path / suffix
        cli(*words, "--recipe", file, "--set", "percentile=2", "--out", out).good()
        recipe = stored(out / "run.json")["recipe"]
        assert (recipe["scale"], recipe["exclude"], recipe["percentile"]) == (0.3, ["head:*"], 2.0)


def test_listed_settings_can_be_typed(cli):
    """They lead from the first preset, which shows all its own, to each of the others."""
    lines = cli("list", "presets").out.splitlines()
    assert [line.split()[0] for line in lines[::3]] == list(PRESETS)
    for name, settings in zip(PRESETS, lines[2::3], strict=True):
        words = " ".join(word for word in shlex.split(settings.replace(" --passes ''", "")))
        assert typed(f"--preset sformer {words}") == preset(name).replace(preset="sformer"), name
