"""Thresholds against numpy on captured activations, whatever the split; and every refusal word by word."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from contract.networks import Layers, converted, mlp, refused, rows, sequences, transformer
from onespike import Recipe, calibrate, convert, preset, table
from onespike.errors import CalibrationError, UsageError
from onespike.passes.base import axes
from onespike.sites import Site

RESOLUTION = 2.0**-10
"""The stated error of the observer."""


def captured(model: nn.Module, x: Tensor) -> dict[str, np.ndarray]:
    """The inputs of all linear maps, and the attention's operands computed apart from the library."""
    seen: dict[str, Tensor] = {}
    linear = {f"{name}:linear0_input": m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    handles = [
        module.register_forward_pre_hook(lambda m, args, site=site: seen.update({site: args[0]}))
        for site, module in linear.items()
    ]
    with torch.no_grad():
        model(x)
        h = model.stem(x)
        q, k, v = (
            model.qkv(model.norm1(h)).view(len(x), x.shape[1], 3, model.heads, -1).permute(2, 0, 3, 1, 4)
        )
        seen[":matmul0_lhs"] = q * q.shape[-1] ** -0.5
        seen[":matmul0_rhs"], seen[":matmul1_rhs"] = k, v
        seen[":matmul1_lhs"] = (seen[":matmul0_lhs"] @ k.mT).softmax(-1)
    for handle in handles:
        handle.remove()
    return {Site.parse(site): value.numpy() for site, value in seen.items()}


def top(x: np.ndarray, percentile: float) -> float:
    return max(0.0, float(np.quantile(x, 1 - percentile / 100, method="inverted_cdf")))


@pytest.mark.parametrize(("percentile", "domain"), [(1.0, "all"), (2.5, "all"), (0.0, "all"), (1.0, "sided")])
def test_thresholds_of_the_preset_against_numpy(percentile, domain):
    """In the sided domain a threshold is a quantile of one sign."""
    model, x = transformer(), sequences(40)
    found = calibrate(model, x.split(16), preset("sformer", percentile=percentile, domain=domain))
    expected = captured(model, x)
    assert set(found) == set(expected)
    for site, threshold in found.items():
        assert threshold.largest == pytest.approx(np.abs(expected[site]).max(), rel=1e-5)
        if threshold.role == "softmax":
            assert float(threshold.positive) == pytest.approx(expected[site].max() / 263, rel=1e-5)
            assert float(threshold.negative) == 0
            continue
        for side, value in ((1, threshold.positive), (-1, threshold.negative)):
            values = side * expected[site]
            highest = top(values if domain == "all" else values[values > 0], percentile)
            assert float(value) == pytest.approx(highest, rel=RESOLUTION + 1e-5)
    assert [str(t.site) for t in found.values() if t.role == "softmax"] == [":matmul1_lhs"]


@pytest.mark.parametrize(
    "recipe", [Recipe(), Recipe(domain="sided"), Recipe(granularity="channel"), Recipe(softmax="head")]
)
def test_any_order_and_split_gives_the_same_thresholds(recipe):
    # In float64 a batch's size cannot move a rounding across a bin of the float32 histogram.
    model, x = transformer().double(), sequences(12).double()
    whole = calibrate(model, [x], recipe)
    for batches in (x.split(5), x.split(1), x.flip(0).split(7)):
        split = calibrate(model, batches, recipe)
        assert list(split) == list(whole)
        for site, threshold in split.items():
            same = whole[site]
            assert torch.equal(threshold.positive, same.positive), site
            assert torch.equal(threshold.negative, same.negative), site
            assert (threshold.role, threshold.levels, threshold.macs, threshold.calls) == (
                same.role, same.levels, same.macs, same.calls
            )  # fmt: skip
        assert split.provenance["samples"] == 12


def test_channels_have_thresholds_of_their_own():
    model, x = transformer(), sequences(40)
    found = calibrate(model, [x], Recipe(granularity="channel"))
    values = captured(model, x)[Site.parse("fc2:linear0_input")]
    threshold = found["fc2:linear0_input"].positive
    assert threshold.shape == (32,)
    for channel, value in enumerate(threshold):
        assert float(value) == pytest.approx(top(values[..., channel], 1.0), rel=2.0**-5 + 1e-5)
    assert found[":matmul0_lhs"].positive.dim() == 0  # the operands of a product have no channel


def softmax_thresholds(recipe: Recipe) -> dict[str, Tensor]:
    """Of two attentions in a row, so that one value for the model differs from one for each site."""
    layers = {"a": transformer(0), "b": transformer(1), "widen": nn.Linear(5, 6)}
    model = Layers(lambda self, x: self.b(3 * self.widen(self.a(x))[:, None] * x), **layers).eval()
    found = calibrate(model, [sequences()], recipe)
    return {str(site): t.positive for site, t in found.items() if t.role == "softmax"}


def test_softmax_options():
    site = softmax_thresholds(Recipe())
    a, b = site["a:matmul1_lhs"], site["b:matmul1_lhs"]
    assert a != b
    model = softmax_thresholds(Recipe(softmax="model"))
    assert model["a:matmul1_lhs"] == model["b:matmul1_lhs"] == max(a, b)
    head = softmax_thresholds(Recipe(softmax="head"))["a:matmul1_lhs"]
    assert head.shape == (2, 1, 1)
    assert head.max() == a and head.min() < a
    assert all(float(t) == pytest.approx(0.0035) for t in softmax_thresholds(Recipe(softmax=0.0035)).values())


@pytest.mark.parametrize(("levels", "largest"), [("linear:8", 16), ("exponential:4", 128), ("1,2,9", 9)])
def test_the_softmax_step_follows_the_largest_level_in_use(levels, largest):
    found = calibrate(transformer(), [sequences()], Recipe(levels=levels))[":matmul1_lhs"]
    assert (found.levels[-1], float(found.positive)) == (largest, pytest.approx(found.largest / largest))


def test_the_network_runs_in_inference_mode_and_gets_its_flags_back():
    seen = []

    def record(self: Layers, x: Tensor) -> Tensor:
        seen.append((torch.is_inference_mode_enabled(), self.training))
        return x

    recorder = Layers(record)
    model = mlp(nn.Dropout(0.5), recorder)
    model.train()
    model[0].eval()
    before = {name: module.training for name, module in model.named_modules()}
    state = {k: v.clone() for k, v in model.state_dict().items()}
    first = calibrate(model, [rows()])
    assert seen == [(True, False)]
    assert {name: module.training for name, module in model.named_modules()} == before
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all("forward" not in m.__dict__ for m in model.modules())
    again = calibrate(model, [rows()])  # dropout was off
    assert all(torch.equal(t.positive, again[s].positive) for s, t in first.items())


def test_flags_come_back_after_a_failure_too():
    model = mlp().train()
    with pytest.raises(RuntimeError):
        calibrate(model, [torch.zeros(2, 5)])
    assert all(m.training for m in model.modules())
    assert len(calibrate(model, [rows()])) == 3  # and no hook stayed behind


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        return self.inner(x if gain is None else x * gain)


class Both(Named):
    """Needs two inputs."""

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        return super().forward(x, gain)


def test_batches_are_tensors_tuples_or_mappings():
    x, gain = rows(), torch.full((64, 1), 2.0)
    direct = calibrate(Named(), [2 * x])
    for model, batch in (
        (Both(), (x, gain)),
        (Both(), [x, gain]),
        (Both(), (x, gain, torch.arange(64))),
        (Named(), {"x": x, "gain": gain}),
    ):
        found = calibrate(model, [batch])
        assert found.provenance["samples"] == 64
        for site, threshold in found.items():
            assert torch.equal(threshold.positive, direct[site].positive)


def test_a_module_that_runs_twice_shares_its_site_and_its_neurons_and_says_so():
    twice = Layers(
        lambda self, x: self.head(self.shared(self.shared(self.stem(x)))),
        stem=nn.Linear(4, 8), shared=nn.Linear(8, 8), head=nn.Linear(8, 2),
    )  # fmt: skip
    found = calibrate(twice, [rows()])
    assert (found["shared:linear0_input"].calls, found["shared:linear0_input"].macs) == (2, 128)
    assert found["stem:linear0_input"].calls == 1
    assert found.macs == 32 + 128 + 16
    text = {row["site"]: row["neuron"] for row in table(convert(twice, found))}
    assert text["shared:linear0_input"].endswith(", shared by 2 calls per forward")
    assert "shared" not in text["stem:linear0_input"]


def test_a_site_needs_two_different_inputs_to_be_constant():
    """One visit, or the same batch twice, is no evidence."""
    same = calibrate(mlp(), [rows(), rows()])
    assert [t.role for t in same.values()] == ["input", "activation", "head"]

    seldom = Layers(
        lambda self, x: self.head(self.rare(self.stem(x)) if len(x) > 8 else self.stem(x)),
        stem=nn.Linear(4, 8), rare=nn.Linear(8, 8), head=nn.Linear(8, 2),
    )  # fmt: skip
    found = calibrate(seldom, rows(24).split(16))
    assert (found["rare:linear0_input"].role, found["rare:linear0_input"].calls) == ("activation", 0.5)


def test_an_empty_batch_among_others_changes_nothing():
    found = calibrate(mlp(), [torch.zeros(0, 4), rows()], provenance={"data": "noise"})
    expected = calibrate(mlp(), [rows()])
    assert all(torch.equal(t.positive, expected[s].positive) for s, t in found.items())
    assert found.provenance == expected.provenance | {"data": "noise"}


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.Conv1d, (5,)), (nn.Conv2d, (5, 6)), (nn.Conv3d, (5, 6, 4)), (nn.ConvTranspose2d, (5, 6))],
)
def test_a_convolution_without_a_batch_has_the_same_channels(kind, shape):
    """[C, H, W] is taken by torch as one image: thresholds and passes must not mistake its rows for channels."""
    torch.manual_seed(0)
    model = nn.Sequential(
        kind(3, 4, 3, padding=1), nn.Tanh(), kind(4, 4, 3, padding=1), nn.Tanh(), kind(4, 2, 3)
    )
    images = [torch.randn(3, *shape) for _ in range(4)]
    recipe = Recipe(granularity="channel", percentile=0.0)
    single, batched = (calibrate(model, x, recipe) for x in (images, [x[None] for x in images]))
    for site in ("0:conv0_input", "2:conv0_input", "4:conv0_input"):
        assert torch.equal(single[site].positive, batched[site].positive)
        assert single[site].positive.shape == (3 if site[0] == "0" else 4, *[1] * len(shape))
        assert axes(single[site], single[site]) == axes(batched[site], batched[site])
        assert axes(single[site], single[site]).step == (-len(shape) - 1,)
    snn = convert(model, single, recipe)
    x = torch.randn(3, *shape)
    torch.testing.assert_close(snn(x), snn(x[None])[0])


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


def rounded() -> nn.Module:
    """No input changes its answer but by rounding."""
    answer = torch.tensor([1.0, 2.0, 3.0])
    return Layers(lambda self, x: {"scores": self.linear(x) * 1e-9 + answer}, linear=nn.Linear(4, 3))


def with_head(value: float) -> nn.Sequential:
    model = mlp()
    nn.init.constant_(model[-1].weight, value)
    return model


EMPTY = "there are no calibration inputs. Give at least one batch."
IGNORED = "the network's output is the same for all {} inputs. Check its weights, and that the calibration inputs differ."
REFUSALS = {
    "no batch": (mlp(), [], EMPTY),
    "empty batch": (mlp(), [torch.zeros(0, 4)], EMPTY),
    "no product": (
        nn.ReLU(),
        [rows()],
        "this network multiplies nothing by a weight, so there is nothing to convert. "
        "Check that the right network was loaded.",
    ),
    "constant but for rounding": (rounded(), rows().split(16), IGNORED.format(64)),
    "zero head": (with_head(0.0), rows().split(16), IGNORED.format(64)),
    "inputs that are the same": (mlp(), [torch.ones(3, 4)] * 2, IGNORED.format(6)),
    "NaN": (
        with_head(torch.nan),
        [rows()],
        "the output holds NaN. Check the weights, or use float32.",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_calibrated(name):
    model, batches, message = REFUSALS[name]
    with refused(CalibrationError, f"calibrate: {message}"):
        calibrate(model, batches)


def test_one_input_and_a_head_of_zeros_are_no_constant_answer():
    assert len(calibrate(mlp(), [torch.ones(1, 4)])) == 3  # one input has nothing to differ from
    model = with_head(0.0)
    nn.init.zeros_(model[-1].bias)
    assert len(calibrate(model, rows().split(16))) == 3


@pytest.mark.parametrize("label", [torch.zeros(4, dtype=torch.long), torch.zeros(4, 3), [{"boxes": 1}]])
def test_what_may_be_a_label_is_never_fed(label):
    message = (
        r"Named.forward\(x, gain\) may take some of them or not: are they inputs or "
        r"labels\? Give inputs only, \(\(x,\) for x, _ in loader\), or a mapping"
    )
    with pytest.raises(UsageError, match=message):
        calibrate(Named(), [(rows()[:4], label)])
    assert calibrate(Named(), [(rows(),)]).provenance["samples"] == 64


def test_what_is_converted_already():
    with pytest.raises(UsageError, match=r"is converted already\. Call revert_ on it first"):
        calibrate(converted(mlp(), rows()), [rows()])


@pytest.mark.parametrize(
    ("recipe", "difference"),
    [
        (preset("mtn"), "neuron='sfn', and the recipe has neuron='mtn'"),
        (Recipe(domain="sided"), "domain='all', and the recipe has domain='sided'"),
        (Recipe(softmax=0.0035), "softmax='site', and the recipe has softmax=0.0035"),
        (Recipe(granularity="channel"), "granularity='site', and the recipe has granularity='channel'"),
        (Recipe(payload_bits=4), "payload_bits=0, and the recipe has payload_bits=4"),
        (Recipe(io="int8"), "io='analog', and the recipe has io='int8'"),
        (Recipe(percentile=2.0), "percentile=1.0, and the recipe has percentile=2.0"),
        (Recipe(levels="linear:8"), "levels='mixed:8', and the recipe has levels='linear:8'"),
        *((preset(name), "") for name in ("if", "uniform", "ecmt", "paper-vit-base")),
    ],
)
def test_a_recipe_that_asks_for_another_calibration_is_refused(recipe, difference):
    model, x = transformer(), sequences()
    with pytest.raises(UsageError) as caught:
        convert(model, calibrate(model, [x]), recipe)
    assert difference in str(caught.value)
    assert str(caught.value).endswith("Calibrate with this recipe: calibrate(model, batches, recipe).")
    assert converted(model, x, recipe) is not None


def test_the_same_calibration_in_other_words_is_taken():
    model, x = transformer(), sequences()
    assert table(convert(model, calibrate(model, [x]), Recipe(levels="8"))) == table(converted(model, x))
