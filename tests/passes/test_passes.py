"""Each pass against its equation, the budget, what it refuses, sites of which it learns nothing, and the whole way in one call."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_networks import ALL, attention, convolutional, divergence, passed, ready, start, tokens
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import onespike
from contract.conversion_contract import run
from contract.networks import Layers, counted, refused
from onespike import calibrate, convert, preset, spike
from onespike.conversion.firing import named_neurons
from onespike.errors import OnespikeWarning, UsageError
from onespike.passes import (
    PASSES,
    PassContext,
    calibration_pass,
    chain,
    check_passes,
    check_recipe,
    statistics,
)
from onespike.passes.budget import spending
from onespike.passes.chaining import improve
from onespike.passes.statistics import fisher, judged
from onespike.presets import PRESETS
from onespike.sites import Site


def test_thrifty_neurons_lose_less_for_the_same_digits():
    lost = []
    for first in ("nearest", "thrifty"):
        result, context = passed((first, "layout", "center", "allocate"), budget=0.12, energy="binary")
        assert spending(result, context) == pytest.approx(0.12, rel=0.01)
        lost.append(divergence(context.model, result, tokens(seed=5)))
    assert lost[1] < 0.75 * lost[0]
    assert {t.rounding for t in result.spiking.values()} == {"thrifty"}
    counted = PASSES["thrifty"].run(*ready(energy="counts"))
    assert {t.rounding for t in counted.spiking.values()} == {"nearest"}


def test_center_is_the_median_of_each_channel_and_softmax_has_none():
    state, context = ready()
    result = PASSES["center"].run(state, context).thresholds
    with torch.no_grad():
        x = torch.cat(tokens())
        x = torch.cat([context.model.token.expand(len(x), -1, -1), context.model.embed(x)], 1)
        x = context.model.blocks[0].norm1(x)
    center = result["blocks.0.qkv:linear0_input"].center
    assert torch.allclose(center.flatten(), x.flatten(0, 1).median(0).values, atol=1e-6)
    assert {t.center is None for t in result.values() if t.role == "softmax"} == {True}


def test_positions_make_the_class_token_finer_and_silence_what_cannot_matter():
    state, context = ready()
    result = PASSES["positions"].run(state, context)
    last, first = (result.thresholds[f"blocks.{n}.fc2:linear0_input"].gain.flatten() for n in (1, 0))
    assert last[0] == 1 and bool((last[1:] == 2.0**30).all())  # only the class token reaches the output
    assert bool((first.log2() == first.log2().round()).all()) and float(first.max()) < 2**20
    gains = {s: t.gain for s, t in result.spiking.items() if t.gain is not None}
    only_silent = result.with_sites(
        {s: {"gain": gain.where(gain > 2**20, torch.ones(()))} for s, gain in gains.items()}
    )
    plain, silent = (s.network(context.model)(tokens()[0]) for s in (state, only_silent))
    assert torch.equal(plain, silent)
    assert spending(only_silent, context) < 0.9 * spending(state, context)


def test_information_by_position_and_channel_depends_not_on_how_many_inputs_go_back_at_once(monkeypatch):
    whole = fisher(*ready())
    information = whole[Site.parse("blocks.1.fc1:linear0_input")].information
    assert information.shape == (9, 16) and not information[1:].any() and bool(information[0].all())
    for part in (1, 100):
        monkeypatch.setattr(statistics, "PART", part)
        for site, row in fisher(*ready()).items():
            assert torch.allclose(row.information, whole[site].information, rtol=1e-4)


@pytest.mark.parametrize(("energy", "budget"), [("counts", 0.4), ("binary", 0.2), ("counts", None)])
def test_passes_meet_the_budget_and_lower_the_divergence(energy, budget):
    state, context = ready(energy=energy, budget=budget)
    goal = spending(state, context) if budget is None else budget
    context = dataclasses.replace(context, budget=goal)
    plain, better = chain(state, context, ("nearest",)), chain(state, context, ALL)
    for result in (plain, better):
        assert spending(result, context) == pytest.approx(goal, rel=0.011)
    after, before = (divergence(context.model, result, tokens(seed=5)) for result in (better, plain))
    assert after < 0.5 * before


@pytest.mark.parametrize("energy", ["counts", "binary"])
def test_passes_work_on_a_convolutional_network(energy):
    """In binary it is one small layer of three spikes: no more of them lower its error, and a part of the budget is left."""
    model = convolutional()
    inputs = list(torch.randn(32, 2, 4, 4, generator=torch.Generator().manual_seed(0)).split(8))
    state, context = start(model, inputs, budget=0.3, energy=energy)
    result = chain(state, context, ALL)
    assert result.thresholds["2:conv0_input"].positive.shape == (4, 1, 1)
    if energy == "binary":
        assert spending(result, context) < 0.3 and divergence(model, result, inputs) < 1e-3
        return
    assert spending(result, context) == pytest.approx(0.3, rel=0.011)
    assert divergence(model, result, inputs) < divergence(model, chain(state, context, ("nearest",)), inputs)


def test_corrected_channels_have_the_means_of_the_original():
    """A constant for each channel at the inputs of linear maps alone, layer after layer, at the same energy."""
    plain, context = passed(budget=0.15)
    corrected = PASSES["correct"].run(plain, context)
    assert spending(corrected, context) == pytest.approx(0.15, rel=0.011)
    assert all(t.offset is None for s, t in corrected.spiking.items() if s.operation != "linear")
    judges = tokens()[-1:]
    assert divergence(context.model, corrected, judges) <= divergence(context.model, plain, judges)


def test_each_site_is_corrected_for_its_own_loss_and_for_those_before_it(monkeypatch):
    """Both ways agree at the first site, and part behind it."""
    plain, context = passed(budget=0.15)
    monkeypatch.setattr("onespike.passes.correct.fit", lambda state, context, goal: state)
    monkeypatch.setattr("onespike.passes.correct.judged", lambda name, state, others, context: others)
    apart, onward = (result.thresholds for result in PASSES["correct"].run(plain, context))
    first, *later = (site for site, t in apart.items() if t.offset is not None)
    torch.testing.assert_close(apart[first].offset, onward[first].offset)
    assert all(not torch.allclose(apart[site].offset, onward[site].offset) for site in later)


@pytest.mark.parametrize(
    ("before", "others", "expected"),
    [
        ([1.0, 1.0, 1.0], [[1.1, 1.1, 1.1]], None),  # clearly worse, little as it is
        ([1.0, 1.0, 1.0], [[0.5, 0.5, 2.9]], 0),  # one batch decides, and it may be chance
        ([1.0, 1.0, 1.0], [[5.0, 6.0, 5.0], [0.9, 0.9, 0.9]], 1),
        ([1.0], [[1.1]], None),
        ([1.0], [[0.9]], 0),
        ([1.0, 1.0], [[float("nan"), 0.1]], None),
    ],
)
def test_a_pass_is_undone_where_it_clearly_loses(monkeypatch, before, others, expected):
    monkeypatch.setattr(
        "onespike.passes.statistics.divergences", lambda states, *_: torch.tensor([before, *others])
    )
    context = PassContext(nn.Identity(), list(torch.zeros(4, 1).split(1)))
    assert judged("refit", None, list(range(len(others))), context) == expected


@pytest.mark.parametrize("name", ["weigh", "correct", "refit"])
def test_what_is_worse_on_held_out_inputs_is_not_kept(name, monkeypatch):
    plain, context = passed(budget=0.15)
    judges = []

    def worse(states, context, batches):
        judges.extend(batches)
        return torch.tensor([[float(state is not plain)] for state in states])

    monkeypatch.setattr("onespike.passes.statistics.divergences", worse)
    assert PASSES[name].run(plain, context) is plain
    assert 0 < len(judges) < len(context.inputs)


def test_silent_channels_borrow_from_their_site():
    """A channel in which calibration saw nothing gets a step that fits the others, not the finest one."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        model[0].weight[:3] = 0.0
        model[0].bias[:3] = -0.5  # silent, unless an input is unlike all others
    inputs = list(torch.randn(64, 6).split(16))
    state, context = start(model, inputs, budget=0.5)
    result = chain(state, context, ("nearest", "layout", "allocate")).thresholds["2:linear0_input"]
    silent, heard = result.positive[:3], result.positive[3:]
    assert float(silent.min()) > 0.01 * float(heard.median())
    assert float(silent.min()) * result.levels[-1] * 0.25 > 1.0  # such an input does not clip at once


def test_constants_of_products_of_activations_are_charged():
    """q·μ is one product for each row that shares μ: its MACs stand in every column."""
    state, context = ready()
    result = PASSES["center"].run(state, context)
    ledger = counted(result.network(context.model), tokens()[0])
    charged = {str(r.site): r.constant_macs for r in ledger.sites.values() if r.constant_macs}
    assert set(charged) == {f"blocks.{b}:matmul{m}" for b in (0, 1) for m in ("0_lhs", "0_rhs", "1_rhs")}
    images, heads, rows, width = 16, 2, 9, 8
    assert charged["blocks.0:matmul0_lhs"] == images * heads * rows * width
    without = ledger.accumulates("counts") * 0.9 / (ledger.macs * 4.6)
    assert ledger.ratio("counts") == pytest.approx(without + sum(charged.values()) / ledger.macs)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("nearest,centr", "unknown pass 'centr'.*center"),
        ("nearest,nearest", "'nearest' is given twice"),
        ("nearest,tune", "'tune' needs 'allocate'"),
    ],
)
def test_what_cannot_be_asked_for_is_named(names, message):
    with pytest.raises(UsageError, match=message):
        check_passes(names.split(","))
    with pytest.raises(UsageError, match=message):  # before anything runs
        spike(nn.Linear(2, 2), [], passes=tuple(names.split(",")))


def test_fixed_thresholds_and_passes_are_refused_together():
    recipe = preset("sformer", passes=("nearest", "allocate"), budget=0.2, fixed=(("*", 1.0, 1.0),))
    message = r"^fixed '\*' and the passes nearest, allocate would both set thresholds\. Leave fixed out"
    with pytest.raises(UsageError, match=message):
        spike(nn.Linear(2, 2), [torch.zeros(2, 2)], recipe)
    assert check_recipe(recipe.replace(fixed=())) == ("nearest", "allocate")


@pytest.mark.parametrize("steps", [False, True])
def test_a_pass_that_scales_all_steps_keeps_them_or_is_refused(steps):
    """Without a budget, the energy of before would take them back."""

    @calibration_pass("finer", stage="constants", steps=steps)
    def finer(state, context):
        sites = {s: t for s, t in state.spiking.items() if t.role == "activation"}
        return state.with_sites(
            {s: {"positive": t.positive / 2, "negative": t.negative / 2} for s, t in sites.items()}
        )

    state, context = ready()
    before, recipe = state.thresholds, state.recipe.replace(passes=("finer",))
    try:
        assert check_passes(["allocate", "finer", "nearest"]) == ("nearest", "finer", "allocate")
        if not steps:
            with pytest.raises(UsageError, match=r"finer multiplies all steps by one factor.*steps=True"):
                improve(context.model, context.inputs, before, recipe)
            return
        result = improve(context.model, context.inputs, before, recipe)
        fired = [site for site, t in state.spiking.items() if t.role == "activation"]
        assert all(torch.equal(2 * result[s].positive, before[s].positive) for s in fired)
    finally:
        PASSES.pop("finer")


SEVEN = ("nearest", "positions", "center", "allocate", "weigh", "correct", "refit")


def choose(self: Layers, x: Tensor) -> Tensor:
    """A scorer chooses tokens, so no gradient reaches it; `shared` reads eight tokens and then three."""
    x = self.embed(x)
    chosen = self.scores(x).topk(3, dim=1).indices
    few = x.relu().gather(1, chosen.expand(-1, -1, x.shape[-1]))
    few = self.shared(self.inner(few).relu()).mean(1) + self.shared(x.relu()).mean(1)
    return self.head(few.relu())


UNSERVED = ("scores.0:linear0_input", "scores.2:linear0_input", "shared:linear0_input")


def test_they_keep_the_thresholds_of_calibration_with_one_warning() -> None:
    torch.manual_seed(0)
    layers = {"embed": nn.Linear(6, 16), "inner": nn.Linear(16, 16), "shared": nn.Linear(16, 16)}
    scores = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    model, batches = Layers(choose, **layers, scores=scores, head=nn.Linear(16, 5)).eval(), tokens()
    with pytest.warns(OnespikeWarning, match="keep the thresholds of calibration") as caught:
        snn = spike(model, batches, "sformer", passes=SEVEN, budget=0.3)
    assert [str(one.message) for one in caught] == [
        "passes: 3 of 4 sites keep the thresholds of calibration, since their sizes differ from call to call or with the "
        f"length of a text, or no gradient or no input reaches them: {', '.join(UNSERVED)}. Leave them analog with exclude, "
        "or give calibration inputs of one size."
    ]
    before, neurons = onespike.calibrate(model, batches), dict(named_neurons(snn))
    for site, neuron in neurons.items():
        if str(site) in UNSERVED:
            literal = before[str(site)]
            assert torch.equal(neuron.positive, literal.positive)
            assert (neuron.levels, neuron.rounding) == (literal.levels, "paper")
    inner = neurons[Site.parse("inner:linear0_input")]
    assert inner.rounding == "nearest" and inner.positive.numel() == 16
    assert torch.isfinite(snn(batches[0])).all()


def test_where_no_site_can_be_improved_the_error_says_so() -> None:
    batches = [torch.randn(16, length, 6) for length in (8, 9)]
    message = r"no site can be improved: .* Give calibration inputs of one size, or "
    with pytest.raises(UsageError, match=message):
        spike(attention(), batches, "sformer", passes=("positions",))


@pytest.mark.parametrize("integers", [False, True])
def test_another_number_of_tokens_after_positions_is_one_clear_line(integers: bool) -> None:
    snn = spike(attention(), tokens(), "sformer", passes=("positions",))
    snn = onespike.optimize(snn, integer_units=True) if integers else snn
    message = (
        "blocks.0.qkv:linear0_input: its steps are set for 9 positions, and this input has 4. Give inputs as long as those of "
        "calibration, or convert without the pass 'positions'."
    )
    with refused(UsageError, message):
        snn(torch.randn(2, 3, 6))


class Captioner(nn.Module):
    """Reads a picture of nine patches and a text of any length, each with its own map."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.words = nn.Linear(6, 16), nn.Embedding(20, 16)
        self.of_patches, self.of_words = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, pixels: Tensor, ids: Tensor) -> Tensor:
        seen = self.of_patches(self.patches(pixels).relu()).relu().mean(1, keepdim=True)
        read = self.of_words(self.words(ids) * (seen + 1)).relu() + seen
        late = torch.logspace(-2, 2, read.shape[1])[:, None]  # late words matter most
        return self.head((read * late).mean(1))


def test_positions_of_a_text_beside_a_picture_are_left_alone() -> None:
    torch.manual_seed(0)
    model = Captioner().eval()
    batches = [
        (torch.randn(16, 9, 6) * torch.arange(1, 10)[:, None], torch.randint(20, (16, 7))) for _ in range(3)
    ]
    snn = spike(model, batches, "sformer", passes=("positions", "allocate"))
    neurons = {str(s): getattr(n, "gain", None) for s, n in named_neurons(snn)}
    gains = {site: gain.numel() for site, gain in neurons.items() if gain is not None}
    assert gains == {"of_patches:linear0_input": 9}
    assert snn(batches[0][0], torch.randint(20, (16, 2))).shape == (16, 5)


QUICK = ("nearest", "layout", "allocate")
PLAIN = [name for name, entry in PRESETS.items() if not {"passes", "fixed"} & set(entry.settings)]


@pytest.mark.parametrize("name", ["best", *sorted(PLAIN)])
def test_it_is_calibration_passes_and_conversion_by_any_preset_and_changes_of_it(name):
    model, inputs, changes = attention(), tokens(), {"exclude": ("blocks.0.*",)}
    if name == "best":
        changes["passes"] = QUICK
    snn, recipe = spike(model, inputs, name, **changes), preset(name, **changes)
    by_hand = convert(model, improve(model, inputs, calibrate(model, inputs, recipe), recipe), recipe)
    assert torch.equal(run(snn, inputs[0]), run(by_hand, inputs[0]))
    assert not any(row["spikes"] for row in onespike.table(snn) if row["site"].startswith("blocks.0."))
    assert type(snn) is type(model) and not hasattr(model.head, "neurons")


def test_the_best_preset_runs_all_of_its_passes(monkeypatch):
    monkeypatch.setattr(statistics, "HELD", 16)
    monkeypatch.setattr("onespike.passes.tune.STEPS", 2)
    model, inputs, stages = attention(), tokens(), []

    def progress(title, total):
        stages.append((title, total))
        return iter

    with onespike.reporting(progress):
        snn = spike(model, inputs, "best", budget=0.2, energy="counts")
    assert stages[0] == ("calibrating", 6) and ("tuning", 2) in stages
    assert counted(snn, *inputs).ratio("counts") == pytest.approx(0.2, rel=0.05)


def test_an_ordinary_loader_serves_with_passes_too():
    model, inputs = attention(), tokens()
    loader = DataLoader(TensorDataset(torch.cat(inputs), torch.arange(48)), batch_size=16)
    result, expected = (spike(model, batches, passes=QUICK) for batches in (loader, inputs))
    assert torch.equal(run(result, inputs[0]), run(expected, inputs[0]))


def test_passes_that_never_ran_are_refused():
    model, inputs = attention(), tokens()
    recipe = preset("best", passes=QUICK)
    literal = calibrate(model, inputs, recipe)
    message = r"passes nearest, layout, allocate.*onespike\.spike\(model, batches"
    with pytest.raises(UsageError, match=message):
        convert(model, literal, recipe)
    carried = improve(model, inputs, literal, recipe)
    assert carried.passes == QUICK and literal.passes == ()
    with pytest.raises(UsageError, match="passes center, and the thresholds"):
        convert(model, carried, recipe.replace(passes=(*QUICK, "center")))
    convert(model, carried, recipe.replace(scale=0.3))


def test_counts_are_bytes_but_for_attention_weights() -> None:
    """Behind GELU one sign hardly fires, and the other has more levels."""
    state, context = ready()
    result = PASSES["bytes"].run(state, context)
    levels = {str(site): t.levels for site, t in result.spiking.items()}
    assert all(of_site == tuple(range(1, len(of_site) + 1)) for of_site in levels.values())
    softmax = {str(site) for site, t in result.spiking.items() if t.role == "softmax"}
    assert {len(of_site) > 255 for site, of_site in levels.items() if site in softmax} == {True}
    assert {len(of_site) for site, of_site in levels.items() if site not in softmax} <= {63, 112, 127}
    assert {len(of_site) for site, of_site in levels.items() if ".qkv:" in site} == {63}
