"""Attention in one call is attention by its definition, and steps aside wherever somebody looks at its probabilities."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from contract.networks import MASKS, Attention, converted, nine, threads
from onespike import Recipe, kernels, metered
from onespike.conversion.firing import Neurons, named_neurons
from onespike.neurons import ScaleFire
from onespike.neurons.baselines import DualMultiThreshold
from onespike.spikes import mixed_levels

pytestmark = pytest.mark.skipif(
    not kernels.is_fast(), reason="the kernel is for processors with AVX2, and a compiler"
)
LEVELS = mixed_levels(8)
CELLS = {
    "one step": ScaleFire(0.03, levels=LEVELS),
    "nearest": ScaleFire(0.03, levels=mixed_levels(2), rounding="nearest"),
    "table": ScaleFire(0.05, levels=(1, 2, 5, 9)),
    "by head": ScaleFire(torch.tensor([0.01, 0.02, 0.0])[:, None, None], levels=LEVELS),
    "by row": ScaleFire(0.02, levels=LEVELS, gain=2.0 ** (torch.arange(13) % 5 - 2)[:, None]),
    "both": ScaleFire(torch.tensor([0.01, 0.02, 0.03])[:, None, None], levels=LEVELS, gain=torch.full((13, 1), 2.0)),
    "multi-threshold": DualMultiThreshold(1.0, 1.0, levels=tuple(range(1, 33))),
}  # fmt: skip


def operands(rows: int = 13, keys: int = 21, inner: int = 10, outer: int = 18) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, rows, inner), (2, 3, inner, keys), (2, 3, keys, outer))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def defined(q: Tensor, k: Tensor, v: Tensor, cell: nn.Module, mask: Tensor | float = 0.0) -> Tensor:
    return cell(torch.ops.aten._safe_softmax(q @ k + mask, -1)) @ v


def attend(q: Tensor, k: Tensor, v: Tensor, cell: ScaleFire, mask: Tensor | None = None) -> Tensor:
    step = cell.code().row_steps()
    assert step is not None
    return kernels.attend(q, k, v, mask, step, cell.code())


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("shape", [None, (13, 21), (1, 21), (2, 1, 1, 21), (3, 13, 21), (2, 1, 13, 21)])
def test_the_definition_with_and_without_a_mask(name: str, shape: tuple[int, ...] | None) -> None:
    cell, (q, k, v) = CELLS[name], operands()
    if shape is None:
        torch.testing.assert_close(attend(q, k, v, cell), defined(q, k, v, cell))
        return
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    mask = mask.masked_fill(mask > 0.5, -torch.inf)
    torch.testing.assert_close(attend(q, k, v, cell, mask), defined(q, k, v, cell, mask))


@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1, 1), (6, 16, 16, 16), (7, 17, 3, 1), (50, 40, 64, 64), (3, 5000, 8, 33), (200, 3, 2, 5)],
)
@pytest.mark.parametrize("number", [1, 2])
def test_any_size_and_number_of_threads(sizes: tuple[int, ...], number: int) -> None:
    (q, k, v), cell = operands(*sizes), ScaleFire(0.11 / sizes[1], levels=LEVELS)
    with threads(number):
        found = attend(q, k, v, cell)
    torch.testing.assert_close(found, defined(q, k, v, cell), rtol=1e-4, atol=1e-4)


def test_any_strides_and_the_layout_of_torch() -> None:
    """Heads cut out of one tensor, as networks have them, and the result as torch's fused attention leaves it."""
    qkv = torch.randn(2, 13, 3, 4, 8, generator=torch.Generator().manual_seed(1))
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    cell = CELLS["one step"]
    found = attend(q, k.mT, v, cell)
    torch.testing.assert_close(found, defined(q, k.mT, v, cell))
    assert found.stride() == F.scaled_dot_product_attention(q, k, v).stride()
    odd = q[..., ::2], k.mT[:, :, ::2, ::2], v[:, :, ::2][:, :, :7]
    torch.testing.assert_close(attend(*odd, cell), defined(*odd, cell))


def test_rows_without_a_key_are_zero_and_a_nan_stays_in_its_row() -> None:
    cell, (q, k, v) = CELLS["one step"], operands()
    mask = torch.zeros(13, 21)
    mask[4] = -torch.inf
    q[0, 1, 7, 2] = torch.nan
    found = attend(q, k, v, cell, mask)
    assert (found[:, :, 4] == 0).all()
    assert found[0, 1, 7].isnan().all()
    found[0, 1, 7] = 0
    assert found.isfinite().all()
    q, k, v = operands()
    far = attend(1e4 * q, k, v, cell)  # one key each: exponentials of the others vanish
    torch.testing.assert_close(far, defined(1e4 * q, k, v, cell))


def spiking(recipe: Recipe | None = None, **options) -> tuple[nn.Module, Tensor]:
    return converted(Attention(**options).eval(), nine(), recipe), nine()


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """One entry for each call of the kernel."""
    made, real = [], kernels.attend
    monkeypatch.setattr(kernels, "attend", lambda *operands: made.append(1) or real(*operands))
    return made


@pytest.mark.parametrize("kind", MASKS)
def test_a_network_takes_it_and_gives_what_a_metered_one_gives(kind: str, calls: list[int]) -> None:
    snn, x = spiking(**MASKS[kind])
    with torch.inference_mode():
        found = snn(x)
        assert len(calls) == 1
        with metered(snn) as ledger:
            torch.testing.assert_close(snn(x), found)
    assert len(calls) == 1, "a ledger has to see the probabilities"
    assert ledger.sites[next(s for s in ledger.sites if s.key == "matmul1_lhs")].macs > 0


@pytest.mark.compiles
def test_where_it_steps_aside(calls: list[int]) -> None:
    snn, x = spiking()
    snn(x)  # its weights want gradients
    with torch.no_grad():
        copy.deepcopy(snn).bfloat16()(x.bfloat16()), torch.func.vmap(snn)(x[:, None])
        torch.export.export(snn, (x,))
        with FlopCounterMode(display=False):
            snn(x)
        snn.options["dropout_p"] = 0.5
        snn(x)
        for recipe in (Recipe(steps=2), Recipe(exclude=("*:matmul1_lhs",))):
            spiking(recipe)[0](x)
    assert calls == []


def test_which_neurons_it_takes(calls: list[int]) -> None:
    snn, x = spiking()
    owner, seen = next(m for m in snn.modules() if isinstance(m, Neurons) and "matmul1_lhs" in m), []
    hooked = ScaleFire(0.1, levels=LEVELS)
    hooked.register_forward_hook(lambda module, args, value: seen.append(value.shape))
    others = (
        ScaleFire(0.1, levels=LEVELS, center=torch.tensor(0.01)),
        ScaleFire(torch.full((9,), 0.1), levels=LEVELS),
        ScaleFire(0.0, 0.1, levels=LEVELS),
        ScaleFire(torch.full((1, 4, 9, 1), 0.1), levels=LEVELS),
        hooked,
    )
    with torch.no_grad():
        for cell in others:
            owner["matmul1_lhs"] = cell
            snn(x)
        assert (calls, seen) == ([], [(3, 4, 9, 9)])
        owner["matmul1_lhs"] = ScaleFire(torch.full((9, 1), 0.1), levels=LEVELS)
        snn(x)
    assert calls == [1]


def test_constants_that_are_loaded_later_are_seen() -> None:
    cell, other = (ScaleFire(0.1, levels=LEVELS, center=torch.tensor(center)) for center in (0.0, 0.5))
    assert cell.code().row_steps() is not None
    cell.load_state_dict(other.state_dict())
    assert cell.code().row_steps() is None


@pytest.mark.compiles
@pytest.mark.parametrize("kind", ["plain", "mask of bits"])
def test_a_compiler_sees_one_operator_and_no_break(kind: str) -> None:
    snn, x = spiking(**MASKS[kind])
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    with torch.inference_mode():
        expected = snn(x)
        found = torch.compile(snn, backend=backend, fullgraph=True)(x)
    assert torch.equal(found, expected)
    assert seen.count("onespike.attend.default") == 1
    others = sum(1 for _ in named_neurons(snn)) - 3  # stem, head, attend
    assert sum("onespike.fire" in name for name in seen) == others


@pytest.mark.compiles
def test_the_operators_keep_their_word() -> None:
    """Shapes, strides and types of the fake results are those of the real ones."""
    q, k, v = operands()
    mask, step, code = torch.zeros(1, 21), torch.tensor(0.1), CELLS["table"].code()
    form = (list(code.levels), code.function.rounding, False)
    torch.library.opcheck(torch.ops.onespike.attend.default, (q, k, v, mask, step, *form))
    for x in (q, k.mT, v[:, :, ::2], q.bfloat16().mT):
        for decoded in (True, False):
            torch.library.opcheck(torch.ops.onespike.fire.default, (x, step, None, *form, decoded))
