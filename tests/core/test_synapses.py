"""Fan-out against the unit-weight reference: the same operation with all weights 1 and no bias, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from onespike.sites import fan_out as synapses

CONVOLUTIONS = [
    (F.conv2d, dict(), (2, 4, 7, 6), (6, 4, 3, 3)),
    (F.conv2d, dict(padding=1), (2, 4, 7, 6), (6, 4, 3, 3)),
    (F.conv2d, dict(padding=1, stride=2), (2, 4, 7, 6), (6, 4, 3, 3)),
    (F.conv2d, dict(padding=(2, 1), stride=(3, 2), dilation=(2, 1)), (1, 4, 9, 8), (6, 4, 3, 3)),
    (F.conv2d, dict(padding=1, groups=2), (1, 4, 5, 5), (6, 2, 3, 3)),
    (F.conv2d, dict(padding=1, groups=4), (1, 4, 5, 5), (4, 1, 3, 3)),
    (F.conv2d, dict(padding="same", dilation=2), (1, 2, 6, 6), (3, 2, 4, 3)),
    (F.conv2d, dict(padding="valid"), (1, 2, 6, 6), (3, 2, 4, 3)),
    (F.conv2d, dict(stride=4), (1, 3, 8, 8), (5, 3, 4, 4)),
    (F.conv2d, dict(stride=2, padding=2), (3, 5, 5), (2, 3, 3, 3)),  # an image without a batch dimension
    (F.conv1d, dict(stride=2, padding=2), (2, 3, 9), (4, 3, 5)),
    (F.conv3d, dict(stride=2, padding=2), (1, 2, 4, 5, 6), (3, 2, 3, 3, 3)),
    (F.conv_transpose2d, dict(), (2, 4, 5, 6), (4, 3, 3, 3)),
    (F.conv_transpose2d, dict(stride=2, padding=1, output_padding=1), (2, 4, 5, 6), (4, 3, 3, 3)),
    (F.conv_transpose2d, dict(groups=2, dilation=2), (2, 4, 5, 6), (4, 3, 3, 3)),
]


@pytest.mark.parametrize(("operation", "settings", "shape", "kernel"), CONVOLUTIONS)
def test_convolution(operation, settings, shape, kernel):
    y = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(0)).double()
    weight, transposed = torch.randn(kernel).double(), operation is F.conv_transpose2d
    found = synapses.convolution(operation, y, weight, transposed, **settings)
    expected = operation(y, torch.ones_like(weight), None, **settings)
    assert float((y * found.fan_out).sum()) == float(expected.sum())
    with FlopCounterMode(display=False) as counter:
        operation(y, weight, None, **settings)
    assert 2 * found.macs == counter.get_total_flops()


PRODUCTS = [
    ("...ik,...kj", (2, 3), (3, 4)),
    ("...ik,...kj", (5, 2, 3), (3, 4)),
    ("...ik,...kj", (2, 3), (5, 3, 4)),
    ("...ik,...kj", (7, 1, 2, 3), (5, 3, 4)),
    ("k,k", (3,), (3,)),
    ("k,...kj", (3,), (3, 4)),
    ("ik,kj->ij", (2, 3), (3, 4)),
    ("bik,bkj->bij", (5, 2, 3), (5, 3, 4)),
    ("...k,kj->...j", (7, 3), (3, 4)),
    ("bnd,bmd->bnm", (5, 2, 3), (5, 6, 3)),
]


@pytest.mark.parametrize(("equation", "left", "right"), PRODUCTS)
def test_einsum(equation, left, right):
    y, z = torch.randint(0, 9, left).double(), torch.randint(0, 9, right).double()
    of_y, of_z = (synapses.einsum(equation, (y, z), operand) for operand in (y, z))
    whole = torch.einsum(equation, torch.ones_like(y), torch.ones_like(z))
    assert float((y * of_y.fan_out).sum()) == float(torch.einsum(equation, y, torch.ones_like(z)).sum())
    assert float((z * of_z.fan_out).sum()) == float(torch.einsum(equation, torch.ones_like(y), z).sum())
    assert (of_y.macs, of_y.outputs) == (float(whole.sum()), whole.numel())


@pytest.mark.parametrize(
    ("left", "right"), [((9, 8), (3, 8, 4)), ((8, 9), (9, 4)), ((3, 8, 4), (4, 9)), ((3, 8, 4), (3, 4, 8))]
)
def test_grouped_products(left, right):
    """Groups of 2, 0 and 5 along an axis of 9; what is behind them is in none. Seen from either operand."""
    y = torch.randint(0, 9, left, generator=torch.Generator().manual_seed(0)).float()
    z = torch.randint(0, 9, right, generator=torch.Generator().manual_seed(1)).float()
    ends = None if len(left) == len(right) == 3 else torch.tensor([2, 2, 7], dtype=torch.int32)

    def product(a, b):
        """By the definition, group by group."""
        if ends is None:
            return (a @ b).sum()
        groups = list(zip([0, *ends.tolist()], ends.tolist(), strict=False))
        if a.dim() == b.dim() == 2:
            return sum((a[:, i:j] @ b[i:j]).sum() for i, j in groups)
        if a.dim() == 2:
            return sum((a[i:j] @ b[g]).sum() for g, (i, j) in enumerate(groups))
        return sum((a[g] @ b[:, i:j]).sum() for g, (i, j) in enumerate(groups))

    from_left, from_right = (synapses.grouped(y, z, ends, operand) for operand in (y, z))
    assert float((y * from_left.fan_out).sum()) == float(product(y, torch.ones_like(z)))
    assert float((z * from_right.fan_out).sum()) == float(product(torch.ones_like(y), z))
    macs = float(product(torch.ones_like(y), torch.ones_like(z)))
    assert from_left.macs == from_right.macs == macs
