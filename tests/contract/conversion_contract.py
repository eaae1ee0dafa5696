"""What conversion promises for every network; a test class inherits this and says how its network is built."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import onespike
from onespike import Recipe, Thresholds
from onespike.conversion.attach import attach_
from onespike.conversion.firing import Analog, Neurons
from onespike.conversion.weights import fold_
from onespike.neurons import Neuron
from onespike.runtime.batches import call
from onespike.runtime.batches import count as count_samples

TOLERANCE = 1e-5
"""Of a network with identity neurons: products are summed in another order than in fused attention."""


def randomize_(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights of order 1 in every place: fresh networks have zero biases and layer scales that hide all else."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() > 1:
                p.copy_(noise * (p[0].numel() if "embed" not in name else p.shape[-1]) ** -0.5)
            else:
                p.copy_(0.1 * noise if name.endswith("bias") else 1 + 0.1 * noise)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.copy_(0.1 * torch.randn(module.running_mean.shape, generator=generator))
                module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=generator))
    return model.eval()


def images(size: int, channels: int = 3, counts: tuple[int, ...] = (2, 3)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, channels, size, size, generator=generator) for n in counts]


def primary(output: Any) -> Tensor:
    """The tensor by which a network is compared."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(output, name, None), Tensor):
            return getattr(output, name)
    return next(x for x in tree_leaves(output) if isinstance(x, Tensor))


def run(model: Callable[..., Any], batch: Any) -> Tensor:
    with torch.no_grad():
        return primary(call(model, batch)).clone()


def distance(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((a - b).abs().max() / b.abs().max())


def own_forwards(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if "forward" in module.__dict__}


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_state(model: nn.Module, before: dict[str, Tensor]) -> bool:
    after = model.state_dict()
    return list(after) == list(before) and all(torch.equal(after[k], v) for k, v in before.items())


def identity_(model: nn.Module, thresholds: Thresholds) -> nn.Module:
    """Every site passes its operand on; BatchNorms are folded as in a conversion."""
    plan: dict[str, Neurons] = {}
    for site in thresholds:
        plan.setdefault(site.owner, Neurons(site.owner))[site.key] = Analog("identity")
    fold_(model, thresholds.folds)
    attach_(model, plan)
    return model


@contextlib.contextmanager
def unfused() -> Any:
    """torch's own attention as separate products, which an operation counter can see."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _grouped_flops(rows: Tensor, experts: Tensor, ends: Tensor, *_: Any, **__: Any) -> int:
    """Each row that belongs to an expert meets its whole matrix; torch's counter has no formula."""
    return 2 * int(ends[-1]) * experts.shape[1] * experts.shape[2]


_grouped_flops._get_raw = True  # type: ignore[attr-defined]


def counted_macs(model: nn.Module, batches: list[Any]) -> float:
    """Multiply-accumulates of one input, by torch's own counter."""
    samples = 0
    formulas = {torch.ops.aten._grouped_mm: _grouped_flops}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter, unfused(), torch.no_grad():
        for batch in batches:
            call(model, batch)
            samples += count_samples(batch)
    return counter.get_total_flops() / 2 / samples


def nothing_hidden() -> Any:
    """Count all pairs of query and key, those that a mask hides, too."""
    return mock.patch("onespike.sites.attention._visible", return_value=None)


def where_the_original_can(converted: Callable[[], Any], original: Callable[[], Any], what: str) -> Any:
    """What `converted` gives; if it fails, the test is skipped only where the original network fails as well."""
    try:
        return converted()
    except Exception:
        try:
            original()
        except Exception as error:  # noqa: BLE001
            pytest.skip(
                f"the original network does not {what} either: {type(error).__name__}: {str(error)[:200]}"
            )
        raise


@dataclass
class Case:
    model: nn.Module
    batches: list[Any]
    thresholds: Thresholds
    recipe: Recipe
    expected: Tensor
    """What the original gives for the first batch."""

    def convert(self, **changes: Any) -> nn.Module:
        return onespike.convert(self.model, self.thresholds, self.recipe.replace(**changes))


class ConversionContract:
    """Set `build` and the roles that are expected; everything else follows."""

    recipe: ClassVar[Recipe] = Recipe(scale=0.25)
    spiking: ClassVar[int]
    """How many sites spike."""
    softmax: ClassVar[int]
    """How many of them receive attention weights."""
    inputs: ClassVar[tuple[str, ...]] = ()
    """Sites that receive the network's input."""
    heads: ClassVar[tuple[str, ...]] = ()
    """Sites that receive the classifier's input."""
    masked: ClassVar[bool] = False
    """Whether a mask of fused attention hides some pairs of query and key."""
    weights: ClassVar[int] = 0
    """How many sites hold a weight in the form of an operand."""
    analog: ClassVar[tuple[str, ...]] = ()
    """Products without a synapse of their own, listed as `owner:operation`."""

    @classmethod
    def build(cls) -> tuple[nn.Module, list[Any]]:
        """The network, in evaluation mode, and at least two batches that differ."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def case(cls) -> Case:
        model, batches = cls.build()
        assert len(batches) > 1
        return Case(
            model, batches, onespike.calibrate(model, batches, cls.recipe), cls.recipe, run(model, batches[0])
        )

    @pytest.fixture(scope="class")
    @classmethod
    def snn(cls, case: Case) -> nn.Module:
        """A converted network that tests must leave as it is."""
        return case.convert()

    def test_identity_neurons_change_nothing(self, case: Case) -> None:
        model = copy.deepcopy(case.model)
        identity_(model, case.thresholds)
        for batch in case.batches:
            assert distance(run(model, batch), run(case.model, batch)) < TOLERANCE

    def test_every_product_is_at_a_site(self, case: Case) -> None:
        listed = case.thresholds.uncovered
        assert tuple(f"{owner}:{operation}" for owner, operation in listed) == self.analog
        counted, macs = counted_macs(case.model, case.batches), case.thresholds.macs - sum(listed.values())
        if self.masked:  # what a mask hides is not counted by us, and is by torch
            assert macs < counted
            with nothing_hidden():
                macs = onespike.calibrate(case.model, case.batches, case.recipe).macs - sum(listed.values())
        assert macs == pytest.approx(counted, rel=1e-9)

    def test_roles(self, case: Case, snn: nn.Module) -> None:
        roles = {str(site): t.role for site, t in case.thresholds.items()}
        found = SimpleNamespace(
            **{r: tuple(s for s in roles if roles[s] == r) for r in ("input", "head", "softmax", "weight")}
        )
        assert (found.input, found.head) == (self.inputs, self.heads)
        assert (len(found.softmax), len(found.weight)) == (self.softmax, self.weights)
        placed = {str(site): neuron for site, neuron in onespike.named_neurons(snn)}
        listed = [f"{o}:{operation.replace('.', '::')}" for o, operation in case.thresholds.uncovered]
        assert sorted(placed) == sorted([*map(str, case.thresholds), *listed])
        spiking = [site for site, neuron in placed.items() if isinstance(neuron, Neuron)]
        assert len(spiking) == self.spiking
        assert not set(spiking) & {*found.input, *found.head, *found.weight}
        for site in found.softmax:
            threshold = case.thresholds[site]
            assert placed[site].scale is None
            assert float(threshold.negative) == 0
            assert float(threshold.positive) == pytest.approx(threshold.largest / 263)
            assert 0 < threshold.largest <= 1 + 1e-5

    def test_conversion_leaves_the_original_alone(self, case: Case) -> None:
        before, forwards = snapshot(case.model), own_forwards(case.model)
        snn = case.convert()
        assert not torch.equal(run(snn, case.batches[0]), case.expected)
        assert torch.equal(run(case.model, case.batches[0]), case.expected)
        assert same_state(case.model, before)
        assert own_forwards(case.model) == forwards

    def test_weights_may_stand_in_the_same_memory(self, case: Case) -> None:
        before = snapshot(case.model)
        snn = onespike.convert(case.model, case.thresholds, case.recipe, share_weights=True)
        assert torch.equal(run(snn, case.batches[0]), run(case.convert(), case.batches[0]))
        kept = {name for name, module in snn.named_modules() if "folded" not in module._modules}
        places = {name: p.data_ptr() for name, p in case.model.named_parameters()}
        for name, p in snn.named_parameters():
            if name.rpartition(".")[0] in kept:
                assert p.data_ptr() == places[name], name
        snn.double()
        assert same_state(case.model, before)
        assert torch.equal(run(case.model, case.batches[0]), case.expected)

    def test_revert_is_exact(self, case: Case) -> None:
        model = copy.deepcopy(case.model)
        before, forwards, shown = snapshot(model), own_forwards(model), repr(model)
        trains = [p.requires_grad for p in model.parameters()]
        onespike.convert_(model, case.thresholds, case.recipe)
        assert not torch.equal(run(model, case.batches[0]), case.expected)
        assert repr(model) != shown
        assert onespike.revert_(model) is model
        assert torch.equal(run(model, case.batches[0]), case.expected)
        assert same_state(model, before)
        assert own_forwards(model) == forwards
        assert [p.requires_grad for p in model.parameters()] == trains
        assert repr(model) == shown

    def test_every_neuron_takes_part(self, case: Case, snn: nn.Module) -> None:
        found = onespike.verify(snn, case.batches[0])
        assert found.ok, str(found)
        assert len(found.reached) == self.spiking
        assert found.dead == ()

    def test_copies(self, case: Case, snn: nn.Module) -> None:
        expected = run(snn, case.batches[0])
        twin = copy.deepcopy(snn)
        assert torch.equal(run(twin, case.batches[0]), expected)
        onespike.set_scale_(twin, 0.9)
        assert not torch.equal(run(twin, case.batches[0]), expected)
        assert torch.equal(run(snn, case.batches[0]), expected)
        thawed = where_the_original_can(
            lambda: pickle.loads(pickle.dumps(snn)), lambda: pickle.dumps(case.model), "pickle"
        )
        assert torch.equal(run(thawed, case.batches[0]), expected)

    def test_state_dict_carries_weights_and_thresholds(self, case: Case, snn: nn.Module) -> None:
        other = copy.deepcopy(case.model)
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(0.5)
        other = onespike.convert_(other, case.thresholds, case.recipe.replace(scale=0.7))
        for _, neuron in onespike.named_neurons(other):
            if isinstance(neuron, Neuron):
                neuron.positive.mul_(3), neuron.negative.mul_(3)
        expected = run(snn, case.batches[0])
        assert not torch.equal(run(other, case.batches[0]), expected)
        other.load_state_dict(snn.state_dict())
        assert torch.equal(run(other, case.batches[0]), expected)
        names = set(case.model.state_dict())
        added = {n for n in snn.state_dict() if n not in names}
        assert all(".neurons." in f".{n}" or n.endswith(".bias") for n in added), "a weight was renamed"
        assert names <= set(snn.state_dict())

    def test_compiles_as_one_graph_and_follows_the_scale(self, case: Case) -> None:
        snn, batch = case.convert(), case.batches[0]
        torch._dynamo.reset()
        compiled = torch.compile(snn, backend="eager", fullgraph=True)
        before = where_the_original_can(
            lambda: run(compiled, batch),
            lambda: run(torch.compile(case.model, backend="eager", fullgraph=True), batch),
            "compile as one graph",
        )
        assert distance(before, run(snn, batch)) < 1e-6
        onespike.set_scale_(snn, 0.6)
        with torch.compiler.set_stance("fail_on_recompile"):
            after = run(compiled, batch)
        assert not torch.equal(after, before)
        assert distance(after, run(snn, batch)) < 1e-6

    def test_exports(self, case: Case, snn: nn.Module) -> None:
        batch = case.batches[0]
        args = () if isinstance(batch, dict) else batch if isinstance(batch, tuple) else (batch,)
        kwargs = batch if isinstance(batch, dict) else {}

        def export(model: nn.Module) -> Any:
            torch._dynamo.reset()
            with torch.no_grad():
                return torch.export.export(model, args, kwargs).module()

        exported = where_the_original_can(lambda: export(snn), lambda: export(case.model), "export")
        assert distance(run(exported, batch), run(snn, batch)) < 1e-6


def check_folding(case: Case) -> None:
    """Every BatchNorm of a residual network merges; its convolutions receive rectified values."""
    norms = {name for name, m in case.model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    convolutions = {name for name, m in case.model.named_modules() if isinstance(m, nn.Conv2d)}
    assert set(case.thresholds.folds) == convolutions
    assert set(case.thresholds.folds.values()) == norms
    for site, threshold in case.thresholds.items():
        if threshold.role == "activation":
            assert float(threshold.positive) > 0 and float(threshold.negative) == 0, site
    ledgers = []
    for model in (case.convert(), case.convert(fold_batchnorm=False)):
        with onespike.metered(model) as ledger:
            run(model, case.batches[0])
        ledgers.append(ledger)
    assert ledgers[0].functions == {}
    assert ledgers[1].functions["norm"] > 0
    assert ledgers[1].ratio("strict") > ledgers[0].ratio("strict")
