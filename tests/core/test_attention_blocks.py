"""Attention in blocks of rows: the same spikes, the same ledger and the same thresholds as all at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import onespike
from comparisons import same_thresholds
from contract.conversion_contract import run
from contract.networks import MASKS, Attention, converted, nine
from onespike import Recipe, calibrate, discover, kernels, metered
from onespike.conversion.firing import Neurons
from onespike.energy.survey import Survey
from onespike.neurons import ScaleFire
from onespike.sites import Sites, Visit, attention
from onespike.sites.site import Rows

KINDS = MASKS | {
    "one mask for all rows": {"attn_mask": torch.arange(9).ge(3)[None]},
    "grouped": {"enable_gqa": True},
}


def network(kind: str = "plain") -> nn.Module:
    return Attention(**KINDS[kind]).eval()


@pytest.fixture
def blocks(monkeypatch):
    """Attention through torch's operations, and in blocks of two rows from when the function is called on."""
    monkeypatch.setattr(kernels, "can_attend", lambda *operands: False)
    return lambda: monkeypatch.setattr(attention, "BLOCK", 2 * 3 * 4 * 9)


def numbers(ledger: onespike.Ledger) -> dict[str, dict[str, object]]:
    return {str(site): {**vars(row), "site": None} for site, row in ledger.sites.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_output_and_ledger_are_those_of_one_block(kind, blocks):
    x = nine()
    snn = converted(network(kind), x)
    with metered(snn) as whole:
        expected = run(snn, x)
    blocks()
    with metered(snn, watch=True) as parts:
        metered_output = run(snn, x)
    torch.testing.assert_close(run(snn, x), expected)
    torch.testing.assert_close(metered_output, expected)
    assert numbers(parts) == numbers(whole)
    assert (parts.functions, parts.unruled) == (whole.functions, {})
    for column in ("counts", "nonzero", "binary"):
        assert parts.accumulates(column, double=True) == whole.accumulates(column, double=True)


@pytest.mark.parametrize("kind", KINDS)
def test_calibration_sees_the_same(kind, blocks):
    model, batches = network(kind), [nine(), 2 * nine(2)]
    recipe = Recipe(softmax="head")
    whole, trace = calibrate(model, batches, recipe), discover(model, *batches)
    blocks()
    parts, other = calibrate(model, batches, recipe), discover(model, *batches)
    same_thresholds(parts, whole)
    first, second = ({s: (f.calls, f.forwards, f.varies) for s, f in t.sites.items()} for t in (trace, other))
    assert first == second
    assert {trace.role(s) for s in trace.sites} == {other.role(s) for s in other.sites}


def test_blocks_are_visited_from_the_first_to_the_last(blocks):
    seen, (q, k, v) = [], (torch.randn(3, 4, 9, 5) for _ in range(3))

    def visit(operand, x):
        seen.append((operand.site.key, x.shape[-2], operand.rows))
        return x

    blocks()
    with Sites(Visit(visit, blockwise=True)):
        got = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, v))
    assert seen[:4] == [
        ("matmul0_lhs", 9, None), ("matmul0_rhs", 5, None), ("matmul1_lhs", 2, Rows(0, 2, 9)), ("matmul1_rhs", 9, None),
    ]  # fmt: skip
    assert seen[4:] == [("matmul1_lhs", min(2, 9 - n), Rows(n, min(n + 2, 9), 9)) for n in (2, 4, 6, 8)]


def test_a_visitor_that_takes_no_rows_gets_all_of_them(blocks):
    shapes = []
    blocks()
    with Sites(Visit(lambda operand, x: shapes.append(x.shape[-2]) or x)):
        F.scaled_dot_product_attention(*(torch.randn(3, 4, 9, 5) for _ in range(3)))
    assert shapes == [9, 5, 9, 9]


def test_steps_by_position_and_by_head_follow_the_rows(blocks):
    """Gains differ by row, thresholds by head: the block's rows have theirs."""
    model, x, recipe = network(), nine(), Recipe(softmax="head")
    snn = converted(model, x, recipe)
    owner = next(m for m in snn.modules() if isinstance(m, Neurons) and "matmul1_lhs" in m)
    old = owner["matmul1_lhs"]
    assert old.positive.shape == (4, 1, 1)
    gain = 2.0 ** torch.arange(-4, 5)[:, None]
    owner["matmul1_lhs"] = ScaleFire(old.positive, levels=old.levels, gain=gain)
    expected = run(snn, x)
    blocks()
    torch.testing.assert_close(run(snn, x), expected)
    assert not torch.allclose(expected, run(converted(model, x, recipe), x))


def test_several_timesteps_and_gradients_keep_one_block(blocks):
    x = nine()
    snn, one = converted(network(), x, Recipe(steps=2)), converted(network(), x)
    expected, gradient = run(snn, x), torch.autograd.functional.jacobian(lambda x: one(x).sum(), x)
    blocks()
    assert torch.equal(run(snn, x), expected)
    assert torch.equal(torch.autograd.functional.jacobian(lambda x: one(x).sum(), x), gradient)


@pytest.mark.compiles
def test_compiling_keeps_one_graph(blocks):
    x = nine()
    snn = converted(network(), x)
    expected = run(snn, x)
    blocks()
    compiled = torch.compile(snn, backend="eager", fullgraph=True)
    torch.testing.assert_close(run(compiled, x), expected)


def test_a_survey_in_blocks_is_the_survey_of_the_whole(blocks):
    x, surveys = nine(), []
    snn = converted(network(), x)
    for _ in range(2):
        with metered(snn, Survey()) as survey:
            run(snn, x)
        surveys.append(survey.details[":matmul1_lhs"])
        blocks()
    whole, parts = (survey.to_dict() for survey in surveys)
    assert (parts.pop("histogram"), parts.pop("levels")) == (whole.pop("histogram"), whole.pop("levels"))
    for name in ("steps", "role"):
        assert parts.pop(name) == whole.pop(name)
    assert parts == pytest.approx(whole, rel=1e-5)
