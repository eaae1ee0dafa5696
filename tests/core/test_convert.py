"""What a conversion places where, and every refusal word by word."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import onespike
from contract.conversion_contract import own_forwards, run
from contract.networks import Layers, converted, mlp, refused, rows, sequences, transformer
from onespike import Recipe, calibrate, convert, convert_, preset, revert_, set_scale_, table
from onespike.conversion.firing import Analog
from onespike.errors import ConversionError, UsageError
from onespike.neurons import Neuron
from onespike.sites import Site


def spiking(model: nn.Module) -> set[str]:
    return {row["site"] for row in table(model) if row["spikes"]}


def reasons(model: nn.Module) -> dict[str, str]:
    return {str(s): n.reason for s, n in onespike.named_neurons(model) if isinstance(n, Analog)}


INNER = {
    "qkv:linear0_input", ":matmul0_lhs", ":matmul0_rhs", ":matmul1_lhs", ":matmul1_rhs", "proj:linear0_input",
    "fc1:linear0_input", "fc2:linear0_input",
}  # fmt: skip


def test_the_paper_leaves_input_and_head_analog():
    model = transformer()
    thresholds = calibrate(model, [sequences()])
    snn = convert(model, thresholds)
    assert spiking(snn) == INNER
    assert reasons(snn) == {
        "stem:linear0_input": "input of the network",
        "head:linear0_input": "input of the output layer",
    }
    every = convert(model, thresholds, Recipe(io="spiking"))
    assert spiking(every) == INNER | {"stem:linear0_input", "head:linear0_input"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"include": ("fc*",)}, {"fc1:linear0_input", "fc2:linear0_input"}),
        ({"include": ("*:matmul?_lhs",)}, {":matmul0_lhs", ":matmul1_lhs"}),
        ({"exclude": ("*:matmul*",)}, {s for s in INNER if "matmul" not in s}),
        ({"include": ("fc*", "qkv:*"), "exclude": ("fc1:*",)}, {"fc2:linear0_input", "qkv:linear0_input"}),
    ],
)
def test_include_and_exclude(changes, expected):
    model = transformer()
    snn = convert(model, calibrate(model, [sequences()]), Recipe(**changes))
    assert spiking(snn) == expected
    for site in INNER - expected:
        excluded = Recipe(**changes).excludes(site)
        assert reasons(snn)[site] == ("excluded" if excluded else "not included")


def test_globs_that_leave_nothing_or_match_nothing_are_refused():
    with refused(ConversionError, "convert: no site would spike. Widen include, or narrow exclude."):
        converted(mlp(), rows(), Recipe(exclude=("*",)))
    rest = (
        "'blocks.*' matches no site; the first is 0:linear0_input. `onespike inspect RUN` lists all of them."
    )
    for option in ("include", "exclude"):
        with refused(UsageError, f"convert: {option} {rest}"):
            converted(mlp(), rows(), Recipe(**{option: ("blocks.*",)}))


def test_constant_weight_and_zero_sites_stay_analog_with_their_reason():
    def forward(self: Layers, x: Tensor) -> Tensor:
        x = self.stem(x) @ self.weight + (self.weight @ self.weight)[0]
        seldom = torch.zeros_like(x)
        seldom[0, 0] = x[0, 0]
        return self.head(x + self.rare(seldom))

    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(8, 8))
    model = Layers(forward, stem=nn.Linear(4, 8), rare=nn.Linear(8, 8), head=nn.Linear(8, 2), weight=weight)
    snn = convert(model, calibrate(model, rows().split(32)))
    assert spiking(snn) == {":matmul0_lhs"}
    assert reasons(snn) == {
        ":matmul0_rhs": "plays a weight: the same for every input",
        ":matmul1_lhs": "constant over calibration",
        ":matmul1_rhs": "constant over calibration",
        "stem:linear0_input": "input of the network",
        "rare:linear0_input": "no threshold: over 99 % of its values are zero",
        "head:linear0_input": "input of the output layer",
    }


def test_already_converted():
    model = mlp()
    thresholds = calibrate(model, [rows()])
    convert_(model, thresholds)
    with refused(ConversionError, "convert: this network is converted already. Call revert_ on it first."):
        convert_(model, thresholds)
    convert_(revert_(model), thresholds)


def again(self: Layers, x: Tensor) -> Tensor:
    """A product of its own runs once, or twice."""
    x = self.stem(x) @ self.weight
    return self.head(x @ self.weight if self.other else x)


def detour(self: Layers, x: Tensor) -> Tensor:
    """One module, or another one."""
    return self.head((self.right if self.other else self.left)(self.stem(x)))


def two_ways(forward) -> nn.Module:
    layers = {"left": nn.Linear(8, 8), "right": nn.Linear(8, 8), "weight": nn.Parameter(torch.randn(8, 8))}
    return Layers(forward, stem=nn.Linear(4, 8), head=nn.Linear(8, 2), other=False, **layers)


@pytest.mark.parametrize(
    ("forward", "product", "owner"), [(again, "matmul1", "the network"), (detour, "linear0", "right")]
)
def test_a_product_that_calibration_never_reached(forward, product, owner):
    model = two_ways(forward)
    snn = convert(model, calibrate(model, rows().split(32)))
    run(snn, rows())
    snn.other = True
    message = (
        f"the product {product} ran in {owner}, and no calibration input had reached it. "
        "Calibrate with inputs that take the same path."
    )
    with refused(ConversionError, message):
        run(snn, rows())
    assert own_forwards(revert_(snn)) == set()


@pytest.mark.parametrize("owner", ["", "2"])
def test_an_attribute_named_neurons_is_not_overwritten(owner):
    model = two_ways(again) if owner == "" else mlp()
    model.get_submodule(owner).neurons = 7
    thresholds = calibrate(model, [rows()])
    where = owner or "the network itself"
    with refused(ConversionError, f"convert: {where} has an attribute 'neurons' of its own. Rename it."):
        convert_(model, thresholds)
    assert model.get_submodule(owner).neurons == 7 and own_forwards(model) == set()


def test_thresholds_of_another_network():
    message = (
        "convert: the thresholds name qkv:linear0_input, and the network has no module 'qkv'. "
        "Calibrate this very network."
    )
    thresholds = calibrate(transformer(), [sequences()])
    thresholds.entries.pop(Site.parse("stem:linear0_input"))
    with refused(ConversionError, message):
        convert(mlp(), thresholds)


def test_one_scale_for_all_neurons_but_softmax():
    model, x = transformer(), sequences()
    snn = convert(model, calibrate(model, [x]), Recipe(scale=0.25))
    scales = {str(s): n.scale for s, n in onespike.named_neurons(snn) if isinstance(n, Neuron)}
    assert scales.pop(":matmul1_lhs") is None
    assert len({id(s) for s in scales.values()}) == 1
    before = run(snn, x)
    set_scale_(snn, 0.5)
    assert not torch.equal(run(snn, x), before)
    twin = copy.deepcopy(snn).double()  # a shared tensor would have been split here
    set_scale_(twin, 0.25)
    scaled = [n for _, n in onespike.named_neurons(twin) if getattr(n, "scale", None)]
    assert {float(n.scale.value) for n in scaled} == {0.25}
    assert torch.allclose(run(twin, x.double()).float(), before, rtol=1e-2, atol=1e-2)
    with pytest.raises(UsageError, match=r"^this network has no neuron with a scale\. Convert it first, "):
        set_scale_(mlp(), 0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"granularity": "channel"}, {"softmax": "head"}, {"levels": "linear:4"}, {"rounding": "nearest"},
        {"domain": "sided"},
    ],
)  # fmt: skip
def test_options_reach_the_neurons(changes):
    model, x, recipe = transformer(), sequences(), Recipe(**changes)
    thresholds = calibrate(model, [x], recipe)
    snn = convert(model, thresholds, recipe)
    assert not torch.equal(run(snn, x), run(converted(model, x), x))
    for site, neuron in onespike.named_neurons(snn):
        if isinstance(neuron, Neuron):
            assert torch.equal(neuron.positive, thresholds[str(site)].positive)
            assert neuron.levels == thresholds[str(site)].levels
            assert neuron.rounding == recipe.rounding
    assert onespike.verify(snn, x).ok


def test_printing_shows_what_spikes_and_why_not():
    snn = converted(mlp(), rows())
    text = repr(snn)
    assert "1 of 3 sites spike" in text
    assert re.search(r"2:linear0_input +sfn, θ\+=", text)
    assert re.search(r"0:linear0_input +analog: input of the network", text)
    assert "linear0_input): ScaleFire(" in text.replace("(linear0_input", "linear0_input")
    revert_(snn)
    assert "spike" not in repr(snn)


def test_hooks_and_training_flags_survive():
    model, seen = transformer(), []
    model.fc1.register_forward_hook(lambda m, args, out: seen.append(out.shape))
    snn = converted(model, sequences())
    seen.clear()
    run(snn, sequences())
    assert seen == [(12, 7, 32)]
    assert not snn.training and not any(m.training for m in snn.modules())


def test_a_forward_of_ones_own_comes_back():
    model = mlp()
    own = model[2].forward
    model[2].forward = lambda x: own(x) + 1
    mine = model[2].forward
    expected = run(model, rows())
    convert_(model, calibrate(model, [rows()]))
    assert model[2].forward is not mine
    revert_(model)
    assert model[2].forward is mine
    assert torch.equal(run(model, rows()), expected)


def test_a_sequential_with_a_product_of_its_own_runs_its_children_as_before():
    """Its neurons are a child too, which `nn.Sequential` runs with the rest."""

    class Gated(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
            self.gate = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return super().forward(x @ self.gate)

    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Gated()), torch.randn(64, 4)
    snn = convert(model, calibrate(model, [x]), onespike.preset("sformer", scale=0.02))
    assert (snn(x) - model(x)).norm() < 0.2 * model(x).norm()


def test_ecmt_fixes_the_thresholds_of_its_vit_alone():
    """The constants belong to the ViT of its authors; elsewhere thresholds are calibrated."""
    part, x = Layers(lambda self, x: self.fc2(x), fc2=nn.Linear(4, 4)), rows()
    vit = Layers(
        lambda self, x: self.head(self.middle(self.blocks(self.stem(x)))), stem=nn.Linear(4, 4), middle=nn.Linear(4, 4),
        blocks=nn.Sequential(Layers(lambda self, x: self.mlp(x), mlp=part)), head=nn.Linear(4, 2),
    )  # fmt: skip
    neuron = converted(vit, x, preset("ecmt-vit", steps=1)).blocks[0].mlp.fc2.neurons["linear0_input"]
    assert (float(neuron.positive), float(neuron.negative)) == pytest.approx((0.25, 0.08))
    other, recipe = nn.Sequential(nn.Linear(4, 4), part, nn.Linear(4, 2)), preset("ecmt", steps=1)
    thresholds = calibrate(other, [x], recipe)
    neuron = convert(other, thresholds, recipe)[1].fc2.neurons["linear0_input"]
    assert torch.equal(neuron.positive, thresholds["1.fc2:linear0_input"].positive)
    message = (
        "convert: fixed 'blocks.*.mlp.fc2:linear0_input' matches no site; the first is 0:linear0_input. "
        "Name sites of this network, or take a preset without fixed thresholds."
    )
    with refused(UsageError, message):
        convert(other, thresholds, preset("ecmt-vit", steps=1))
