"""Integer inference equals a float64 simulation of the same integers, bit for bit, for every code and product."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import onespike
from contract.networks import converted, counted, sequences, transformer
from onespike import kernels
from onespike.deploy.folding import common_units
from onespike.deploy.integer import optimize_
from onespike.deploy.products import IntegerProduct, integer_form
from onespike.errors import UsageError
from onespike.neurons import ScaleFire
from onespike.passes.layout import digit_levels

X = torch.randn(64, 5, 12, generator=torch.Generator().manual_seed(1))
PATHS = kernels.paths()
MIXED = onespike.spikes.levels.mixed_levels(8)


def block() -> nn.Module:
    torch.manual_seed(0)
    layers = {
        "first": nn.Linear(12, 24), "norm": nn.LayerNorm(24), "two": nn.Linear(24, 20), "relu": nn.ReLU(),
        "one": nn.Linear(20, 16, bias=False), "last": nn.Linear(16, 3),
    }  # fmt: skip
    return nn.Sequential(OrderedDict(layers)).eval()


def pictures(**changes: nn.Module) -> nn.Module:
    """Convolutions of every kind that has a form of its own."""
    torch.manual_seed(0)
    layers = {
        "first": nn.Conv2d(3, 8, 3), "strided": nn.Conv2d(8, 12, 3, stride=2, padding=1), "relu": nn.ReLU(),
        "dilated": nn.Conv2d(12, 20, (1, 3), dilation=(1, 2), bias=False), "point": nn.Conv2d(20, 16, 1), "again": nn.ReLU(),
        "same": nn.Conv2d(16, 18, (3, 5), padding="same"), "groups": nn.Conv2d(18, 18, 3, groups=18, padding=1),
        "mirrored": nn.Conv2d(18, 6, 3, padding=2, padding_mode="reflect"), "rows": nn.Flatten(2),
        "line": nn.Conv1d(6, 5, 3, padding=1), "mean": nn.AdaptiveAvgPool1d(1), "flat": nn.Flatten(), "last": nn.Linear(5, 2),
    }  # fmt: skip
    return nn.Sequential(OrderedDict(layers | changes)).eval()


IMAGES = torch.randn(8, 3, 17, 19, generator=torch.Generator().manual_seed(1))


def snn(model: Callable[[], nn.Module] = block, x: Tensor = X, **recipe: object) -> nn.Module:
    return converted(model(), x, onespike.Recipe(**recipe))


def defined(form: IntegerProduct, neuron: ScaleFire, x: Tensor) -> Tensor:
    """gain·scale·(W·units) + bias with the sums in float64."""
    counts, gain = neuron.counts(x).double(), neuron.code().gain
    units = counts.clamp(min=0) * form.times_up + counts.clamp(max=0) * form.times_down
    value = (units @ form.weight.double().t()).float() * form.scale
    value = value if gain is None else value * gain
    value = value if form.bias is None else value + form.bias
    return value if form.other is None else value + defined(form.other, neuron, x)


@pytest.fixture(params=PATHS, ids=[path.name for path in PATHS])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> kernels.Path:
    """Every path that this processor has, one after the other."""
    monkeypatch.setattr(kernels, "best_path", lambda: request.param)
    return request.param


def neurons(tokens: int, inputs: int) -> dict[str, ScaleFire]:
    generator = torch.Generator().manual_seed(3)
    steps = torch.rand(inputs, generator=generator) * 0.4 + 0.05
    off = steps * (torch.arange(inputs) % 4 > 0)
    center = torch.randn(inputs, generator=generator)
    gain = torch.tensor([0.25, 1.0, 8.0, 2.0**20])[torch.arange(tokens) % 4].view(-1, 1)
    affine = {"levels": MIXED, "center": center, "offset": center + 0.1}
    return {
        "one step": ScaleFire(0.3, 0.3, levels=MIXED),
        "one side": ScaleFire(0.1, levels=MIXED),
        "negative side": ScaleFire(0.0, 0.3, levels=MIXED),
        "two steps": ScaleFire(0.3, 0.19, levels=MIXED),
        "far steps": ScaleFire(0.3, 0.002, levels=MIXED),
        "channels": ScaleFire(steps, steps.flip(0), levels=MIXED),
        "channels off": ScaleFire(off, steps * 1.4, levels=MIXED),
        "center": ScaleFire(steps, steps, **affine),
        "gain": ScaleFire(0.3, 0.2, gain=gain, **affine),
        "table": ScaleFire(0.1, 0.1, levels=(1, 2, 5, 90, 300), rounding="nearest"),
        "digits": ScaleFire(
            0.04, 0.06, gain=gain, **affine | {"levels": digit_levels(2, 200)}, rounding="nearest"
        ),
    }


@pytest.mark.parametrize("kind", list(neurons(1, 1)))
def test_a_linear_map_equals_its_definition_in_float64(kind: str, path: kernels.Path, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(2)
    neuron = neurons(7, 70)[kind]
    before = copy.deepcopy(neuron)
    weight, bias = torch.randn(37, 70, generator=generator), torch.randn(37, generator=generator)
    form, rounded = integer_form(neuron, weight, bias)
    # what is folded is the float map, up to the rounding of weights and the moved step
    x = torch.randn(3, 7, 70, generator=generator)
    expected = torch.nn.functional.linear(neuron(x), weight, bias)
    assert (form(x, neuron) - expected).norm() < 0.05 * expected.norm()
    assert (rounded - weight).norm() < weight.norm() * 0.1
    assert torch.equal(before.positive, neuron.positive)
    with torch.inference_mode():
        for threads in (1, 2, 3):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            x = 30 * torch.randn(120, 7, 70, generator=generator)  # counts are beyond a byte
            actual = form(x, neuron)
            assert form._ready[1] is not None and neuron.counts(x).abs().max() > 127  # the kernel has run
            assert torch.equal(actual, defined(form, neuron, x))
            assert torch.equal(actual[5:6], form(x[5:6], neuron)) and torch.equal(
                actual, form.plain(x, neuron)
            )
        x[2, 3, :6] = torch.tensor([torch.inf, -torch.inf, 3e38, -3e38, 0.0, -0.0])
        assert torch.equal(form(x, neuron), form.plain(x, neuron))
        x[1, 2, 3] = torch.nan
        assert torch.equal(form(x, neuron).isnan().any(-1).nonzero(), torch.tensor([[1, 2]]))
        assert form(x, neuron)[1, 2].isnan().all()


@pytest.mark.parametrize("recipe", [{}, {"granularity": "channel"}, {"levels": "linear:3"}, {"scale": 0.01}])
def test_convolutions_equal_their_plain_form(recipe: dict[str, object], path: kernels.Path) -> None:
    fast = onespike.optimize(snn(pictures, IMAGES, **recipe), integer_units=True)
    generator = torch.Generator().manual_seed(2)
    with torch.inference_mode():
        for name in ("strided", "dilated", "point", "same", "groups", "line"):
            made = getattr(fast, name)
            form, neuron = made.integer_conv0_input, made.neurons["conv0_input"]
            shape = (3, made.in_channels, 40) if name == "line" else (3, made.in_channels, 9, 11)
            x = 3 * torch.randn(shape, generator=generator)
            assert torch.equal(made(x), form.plain(x, neuron)), name
            assert torch.equal(made(x)[1:2], made(x[1:2])), name
            x.view(3, -1)[1, 30] = torch.nan
            assert torch.equal(made(x).isnan(), form.plain(x, neuron).isnan()) and made(x).isnan().any()
        assert torch.equal(fast.mirrored(torch.ones(18, 9, 9)), fast.mirrored(torch.ones(1, 18, 9, 9))[0])


def test_the_offset_of_a_padded_convolution_differs_by_place(path: kernels.Path) -> None:
    torch.manual_seed(0)
    center, steps = torch.randn(6, 1, 1), torch.rand(6, 1, 1) * 0.02 + 0.001
    neuron = ScaleFire(steps, steps, levels=tuple(range(1, 300)), center=center, offset=center * 2)
    module = nn.Conv2d(6, 5, 3, padding=1)
    x = torch.randn(2, 6, 8, 7)
    with torch.inference_mode():
        expected = module._conv_forward(neuron(x), module.weight, module.bias)
        form, _ = integer_form(neuron, module.weight, module.bias, module)
        assert (form(x, neuron) - expected).abs().max() < 0.05 and form.constants((8, 7)).shape == (5, 8, 7)
        assert torch.equal(form(x, neuron), form.plain(x, neuron))


def test_steps_find_a_common_unit_or_stay() -> None:
    up = torch.ones(4)
    q, p = common_units(up, torch.tensor([0.66, 1.5, 1.04, 1 / 30])) or (up, up)
    assert q.tolist() == [3, 2, 1, 29] and p.tolist() == [2, 3, 1, 1]
    assert common_units(up, torch.tensor([1.0, 1.0, 1.0, 0.02])) is None
    ratios = torch.logspace(-1.5, 1.5, 4000)
    q, p = common_units(torch.ones_like(ratios), ratios) or (ratios, ratios)
    assert ((p / q / ratios - 1).abs() <= 1 / 16).all() and torch.maximum(p, q).max() <= 31


def test_results_depend_neither_on_the_batch_nor_on_threads_nor_on_the_processor(monkeypatch) -> None:
    results = []
    for made in PATHS:
        monkeypatch.setattr(kernels, "best_path", lambda made=made: made)
        fast = onespike.optimize(snn(pictures, IMAGES, io="spiking"), integer_units=True)
        with torch.inference_mode():
            for threads in (1, 2, 3):
                monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
                whole = fast(IMAGES)
                results.append(whole)
                assert torch.equal(whole, torch.cat([fast(image) for image in IMAGES.split(1)]))
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_copy_is_changed_and_kept_without_what_is_packed() -> None:
    network = snn()
    fast = onespike.optimize(network, integer_units=True)
    with torch.inference_mode():
        expected = fast(X)
        assert torch.equal(copy.deepcopy(fast)(X), expected)
        assert pickle.loads(pickle.dumps(fast.two.integer_linear0_input))._ready is None
    assert not hasattr(network.two, "integer_linear0_input") and not network.two.neurons.products


def test_spikes_are_counted_as_before_and_scale_still_moves() -> None:
    network = snn(neuron="uniform", levels="bits:8", scale=1.0)  # steps of both signs are the same
    fast, x = onespike.optimize(network, integer_units=True), X[..., :1].expand(-1, -1, 24)
    assert counted(network.two, x).ratios() == counted(fast.two, x).ratios()
    with torch.inference_mode():
        fast = onespike.optimize(snn(), integer_units=True)
        before = fast(X)
        with onespike.metered(fast):
            assert torch.equal(fast(X), before)
        onespike.set_scale_(fast, 0.9)
        other = onespike.optimize(snn(scale=0.9), integer_units=True)
        # weights are rounded with other scales there
        assert not torch.equal(fast(X), before)
        assert (fast(X) - other(X)).abs().mean() < 0.05 * other(X).abs().mean()


@pytest.mark.compiles
@pytest.mark.parametrize(("model", "x"), [(block, X), (pictures, IMAGES)])
def test_compiled_and_exported_programs_give_the_same_bits(model: Callable[[], nn.Module], x: Tensor) -> None:
    fast = onespike.optimize(snn(model, x, io="spiking"), integer_units=True)
    with torch.inference_mode():
        expected = fast(x)
    with torch.no_grad():
        assert torch.equal(torch.compile(fast, backend="aot_eager", fullgraph=True)(x), expected)
        assert torch.equal(torch.export.export(fast, (x,)).module()(x), expected)


def test_torch_attention_with_weights_of_its_own() -> None:
    layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True).eval()
    x = torch.randn(6, 7, 24, generator=torch.Generator().manual_seed(1))
    network = converted(layer, x, onespike.Recipe(io="spiking"))
    fast = copy.deepcopy(network)
    report = optimize_(fast, integer_units=True)
    assert report.integer == 4 and not report.simulated
    assert set(fast.self_attn.neurons.products) == {"linear0_input", "linear1_input", "matmul0_lhs"}
    with torch.inference_mode():
        assert (fast(x) - layer(x)).norm() < 1.2 * (network(x) - layer(x)).norm() + 0.01 * x.norm()
        assert torch.equal(fast(x)[1:2], fast(x[1:2]))


def test_products_inside_a_module_are_not_taken_for_the_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that multiplies in float64 stands inside a module with products of its own, which are numbered."""
    model, x = transformer(), sequences()
    fast = onespike.optimize(onespike.spike(model, [x], "sformer", scale=0.1), integer_units=True)
    with torch.inference_mode():
        expected = fast(x)
        monkeypatch.setattr(kernels, "best_path", lambda: None)
        assert torch.equal(fast(x), expected)


def test_what_has_no_integer_form_is_named() -> None:
    spread = pictures(same=nn.ConvTranspose2d(16, 18, 3))
    report = optimize_(converted(spread, IMAGES), integer_units=True)
    assert report.simulated == {"same:conv0_input": "ConvTranspose2d has no integer form"}
    assert "6 of 7 weighted products run on 8-bit integers" in str(report)
    assert "no VNNI, Arm dot products or AVX2" in str(optimize_(snn(), integer_units=False))
    assert str(optimize_(snn(), integer_units=True)) == "2 of 2 weighted products run on 8-bit integers"


@pytest.mark.parametrize("levels", ["exponential:12", "exponential:8"])
def test_counts_beyond_the_kernel_are_exact_in_the_plain_form(levels: str) -> None:
    fast = onespike.optimize(snn(levels=levels), integer_units=True)
    form, neuron = fast.two.integer_linear0_input, fast.two.neurons["linear0_input"]
    assert not form.fits
    with torch.inference_mode():
        x = 1e4 * torch.randn(9, 24, generator=torch.Generator().manual_seed(2))
        assert torch.equal(fast.two(x), defined(form, neuron, x))


def test_what_cannot_be_optimized_says_why() -> None:
    broken = snn()
    broken.two.weight.data[0, 0] = torch.inf
    for network, words in (
        (block(), r"no neurons\. Convert it first"),
        (snn(steps=2), r"integer inference is for one timestep\. Convert with steps=1"),
        (snn().half(), r"weights of type torch\.float16\. Use snn\.float\(\)"),
        (snn().to("meta"), r"runs on the CPU, not on meta\. Use snn\.cpu\(\)"),
        (broken, r"two has weights that are not finite\. Load a whole checkpoint"),
    ):
        with pytest.raises(UsageError, match=words):
            onespike.optimize(network)


@pytest.mark.parametrize("integer_units", [True, False])
def test_rounded_weights_are_not_reverted(integer_units):
    network = snn()
    with pytest.raises(UsageError, match="weights are rounded"):
        onespike.revert_(onespike.optimize(network, integer_units=integer_units))
    assert torch.equal(onespike.revert_(network)(X), block()(X))
