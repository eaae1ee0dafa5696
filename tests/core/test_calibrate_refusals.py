"""What calibration refuses: values that are not finite, no inputs, networks that ignore theirs, labels; and recipes that ask for another."""

from __future__ import annotations

import pytest
import torch
from test_calibrate import Named
from torch import nn

from contract.networks import Layers, converted, mlp, refused, rows, sequences, transformer
from onespike import Recipe, calibrate, convert, preset, table
from onespike.errors import CalibrationError, UsageError


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_refused_where_they_appear(bad):
    message = (
        "calibrate: {} receives NaN or infinite values. "
        "Check the weights and the preprocessing, or calibrate in float32."
    )
    x = rows()
    x[3, 1] = bad
    with refused(CalibrationError, message.format("0:linear0_input")):
        calibrate(mlp(), [rows(), x])
    model = mlp()
    with torch.no_grad():
        model[0].bias[2] = abs(bad)
    with refused(CalibrationError, message.format("2:linear0_input")):
        calibrate(model, [rows()])


EMPTY = "calibrate: there are no calibration inputs. Give at least one batch."
NO_PRODUCTS = (
    "calibrate: this network multiplies nothing by a weight, so there is nothing to convert. "
    "Check that the right network was loaded."
)


@pytest.mark.parametrize(
    ("model", "batches", "message"),
    [(mlp(), [], EMPTY), (mlp(), [torch.zeros(0, 4)], EMPTY), (nn.ReLU(), [rows()], NO_PRODUCTS)],
)
def test_nothing_to_calibrate(model, batches, message):
    with refused(CalibrationError, message):
        calibrate(model, batches)


def deaf() -> nn.Module:
    """Computes, and then answers with a constant."""
    layers = {"linear": nn.Linear(4, 3), "answer": nn.Parameter(torch.ones(3))}
    return Layers(lambda self, x: (self.linear(x), self.answer.expand(len(x), -1))[1], **layers)


def dead_head() -> nn.Sequential:
    model = mlp()
    with torch.no_grad():
        model[-1].weight.zero_()
    return model


IGNORED = (
    "calibrate: the network's output is the same for all {} inputs. "
    "Check its weights, and that the calibration inputs differ."
)


@pytest.mark.parametrize("model", [deaf(), dead_head()], ids=["constant", "zero head"])
def test_a_network_that_ignores_its_input(model):
    with refused(CalibrationError, IGNORED.format(64)):
        calibrate(model, rows().split(16))


def test_inputs_that_are_all_the_same():
    with refused(CalibrationError, IGNORED.format(6)):
        calibrate(mlp(), [torch.ones(3, 4), torch.ones(3, 4)])
    assert len(calibrate(mlp(), [torch.ones(1, 4)])) == 3  # one input has nothing to differ from


def test_a_head_of_zeros_is_no_constant_answer():
    model = dead_head()
    nn.init.zeros_(model[-1].bias)
    assert len(calibrate(model, rows().split(16))) == 3


def test_an_output_is_compared_relative_to_its_spread_and_named():
    """No input changes it but by rounding."""
    answer = torch.tensor([1.0, 2.0, 3.0])
    rounded = Layers(lambda self, x: {"scores": self.linear(x) * 1e-9 + answer}, linear=nn.Linear(4, 3))
    with refused(CalibrationError, IGNORED.format(64).replace("output", "output['scores']")):
        calibrate(rounded, rows().split(16))


def test_an_output_that_is_nan():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.constant_(model[2].weight, float("nan"))
    message = r"^calibrate: the network's output holds NaN\. Check the weights, or calibrate in float32\.$"
    with pytest.raises(CalibrationError, match=message):
        calibrate(model, [torch.randn(8, 4)])


@pytest.mark.parametrize("label", [torch.zeros(4, dtype=torch.long), torch.zeros(4, 3), [{"boxes": 1}]])
def test_what_may_be_a_label_is_never_fed(label):
    message = (
        r"Named.forward\(x, gain\) may take some of them or not: are they inputs or "
        r"labels\? Give inputs only, \(\(x,\) for x, _ in loader\), or a mapping"
    )
    with pytest.raises(UsageError, match=message):
        calibrate(Named(), [(rows()[:4], label)])
    x, gain = rows(), torch.ones(len(rows()), 1)
    assert calibrate(Named(), [(x,)]).provenance["samples"] == len(x)
    assert calibrate(Named(), [{"x": x, "gain": gain}]).provenance["samples"] == len(x)


def test_what_is_no_network_or_is_converted_already():
    model, x = mlp(), rows()
    with pytest.raises(UsageError, match=r"must be a torch\.nn\.Module, not function"):
        calibrate(lambda x: x, [x])
    with pytest.raises(UsageError, match=r"is converted already\. Call revert_ on it first"):
        calibrate(converted(model, x), [x])


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
    with pytest.raises(UsageError) as caught:
        convert(model, calibrate(model, [x]), recipe)
    assert difference in str(caught.value)
    assert str(caught.value).endswith("Calibrate with this recipe: calibrate(model, batches, recipe).")
    assert converted(model, x, recipe) is not None
