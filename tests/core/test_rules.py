"""Every rule, visited without a change, is torch's own function; and no product of torch is without a rule."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onespike.errors import UsageError
from onespike.sites import RULES, Site, Sites, Visit, synaptic


def visited(function, *args, **kwargs):
    """The function under the identity visit, and the keys that were visited."""
    keys: list[str] = []

    def visit(operand, x):
        keys.append(operand.site.key)
        return x

    with Sites(Visit(visit)):
        result = function(*args, **kwargs)
    return result, keys


def rand(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


CALLS = {
    "linear": (F.linear, (rand(2, 3), nn.Parameter(rand(4, 3)), rand(4)), ["linear0_input"]),
    "linear, computed weight": (F.linear, (rand(2, 3), rand(4, 3)), ["linear0_input", "linear0_weight"]),
    "conv1d": (F.conv1d, (rand(1, 2, 5), nn.Parameter(rand(3, 2, 3)), None, 2, 1), ["conv0_input"]),
    "conv2d": (F.conv2d, (rand(1, 4, 5, 5), nn.Parameter(rand(6, 2, 3, 3)), rand(6), 1, "same", 1, 2), ["conv0_input"]),
    "conv3d": (F.conv3d, (rand(1, 2, 3, 3, 3), nn.Parameter(rand(2, 2, 2, 2, 2))), ["conv0_input"]),
    "conv_transpose2d": (F.conv_transpose2d, (rand(1, 2, 4, 4), nn.Parameter(rand(2, 3, 3, 3)), None, 2), ["conv0_input"]),
    "matmul": (torch.matmul, (rand(2, 3), rand(5, 3, 4)), ["matmul0_lhs", "matmul0_rhs"]),
    "@": (Tensor.__matmul__, (rand(2, 3), rand(3, 4)), ["matmul0_lhs", "matmul0_rhs"]),
    "mm": (torch.mm, (rand(2, 3), rand(3, 4)), ["matmul0_lhs", "matmul0_rhs"]),
    "bmm": (Tensor.bmm, (rand(2, 3, 4), rand(2, 4, 1)), ["matmul0_lhs", "matmul0_rhs"]),
    "mv": (torch.mv, (rand(2, 3), rand(3)), ["matmul0_lhs", "matmul0_rhs"]),
    "dot": (torch.dot, (rand(3), rand(3)), ["matmul0_lhs", "matmul0_rhs"]),
    "addmm": (torch.addmm, (rand(2, 4), rand(2, 3), rand(3, 4)), ["matmul0_lhs", "matmul0_rhs"]),
    "baddbmm": (torch.baddbmm, (rand(1, 2, 4), rand(1, 2, 3), rand(1, 3, 4)), ["matmul0_lhs", "matmul0_rhs"]),
    "grouped, rows": (torch._grouped_mm, (rand(6, 8), rand(2, 8, 4), torch.tensor([1, 6], dtype=torch.int32)), ["matmul0_lhs", "matmul0_rhs"]),
    "einsum": (torch.einsum, ("bhik,bhkj->bhij", rand(1, 2, 3, 4), rand(1, 2, 4, 5)), ["einsum0_0", "einsum0_1"]),
    "einsum, list": (torch.einsum, ("...i,ij->...j", [rand(2, 3), rand(3, 4)]), ["einsum0_0", "einsum0_1"]),
    "einsum, one operand": (torch.einsum, ("ii->i", rand(3, 3)), []),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_identity_visit_is_torchs_own_function(name):
    function, args, keys = CALLS[name]
    result, seen = visited(function, *args)
    torch.testing.assert_close(result, function(*args), rtol=1e-5, atol=1e-6)
    assert seen == keys


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2), (0, 1)])
def test_addmm_factors(beta, alpha):
    bias = torch.full((2, 4), float("nan")) if beta == 0 else rand(2, 4)
    args = (bias, rand(2, 3), rand(3, 4))
    expected = torch.addmm(*args, beta=beta, alpha=alpha)
    torch.testing.assert_close(visited(torch.addmm, *args, beta=beta, alpha=alpha)[0], expected)


MASKS = {
    "none": None,
    "bool": torch.tensor([[True, False, True, True]] * 4),
    "float": torch.tensor([[0.0, -1.0, float("-inf"), 2.0]] * 4),
    "row masked altogether": torch.tensor([[False] * 4, *[[True] * 4] * 3]),
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2, torch.float16: 5e-3}


@pytest.mark.parametrize(
    ("dtype", "mask", "causal", "grouped", "scale"),
    [
        case
        for case in itertools.product(TOLERANCE, MASKS, (False, True), (False, True), (None, 0.3))
        if not (case[1] != "none" and case[2])
    ],
)
def test_attention_is_torchs_own(dtype, mask, causal, grouped, scale):
    query, value = rand(2, 4, 4, 8, dtype=dtype), rand(2, 4, 4, 8, dtype=dtype)
    key = rand(2, 2 if grouped else 4, 4, 8, dtype=dtype)
    value = value[:, :2] if grouped else value
    attention_mask = MASKS[mask]
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.to(dtype)
    settings = dict(attn_mask=attention_mask, is_causal=causal, scale=scale, enable_gqa=grouped)
    expected = F.scaled_dot_product_attention(query, key, value, **settings)
    actual, keys = visited(F.scaled_dot_product_attention, query, key, value, **settings)
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert keys == ["matmul0_lhs", "matmul0_rhs", "matmul1_lhs", "matmul1_rhs"]
    assert actual.isfinite().all()


WITHOUT_RULE = {
    # rare in networks; one that runs such a product is refused, with its name (see test_convert.py)
    "convolution", "mm", "addbmm", "addr", "chain_matmul", "conv_tbc", "bilinear", "cdist", "ger", "outer", "inner", "kron", "tensordot",
    "vdot", "multi_dot", "vecdot", "matrix_exp", "matrix_power", "linalg_vecdot", "linalg_matrix_exp",
    "linalg_matrix_power", "linalg_multi_dot", "multi_head_attention_forward", "mm_", "sspaddmm", "smm", "hspmm",
    "grouped_mm", "scaled_mm", "scaled_grouped_mm", "linear_cross_entropy",
}  # fmt: skip


def test_no_product_of_torch_is_forgotten():
    """Fails when torch gains an overridable function with a product's name that has neither rule nor entry."""
    words = ("matmul", "mm", "mv", "dot", "conv", "linear", "einsum", "attention", "bilinear", "prod_of")
    unknown = []
    for function in torch.overrides.get_testing_overrides():
        name = getattr(function, "__name__", "")
        parts = name.strip("_").removeprefix("linalg_").split("_")
        if not name or function in RULES or name.strip("_") in WITHOUT_RULE:
            continue
        private = name.startswith("_") and not name.startswith("__")
        inplace = name.endswith("_") and not name.startswith("_")
        quantized = any(
            w in name for w in ("quantized", "fbgemm", "mkldnn", "cudnn", "miopen", "sparse", "backward")
        )
        hit = any(part == w or (w == "conv" and part.startswith("conv")) for part in parts for w in words)
        other = {"bilinear", "linear"} & set(parts) and "interpolate" in name
        if hit and not (private or inplace or quantized or other):
            unknown.append(name)
    assert unknown == []


def test_nested_sites_visit_a_product_once():
    keys: list[str] = []
    with (
        Sites(Visit(lambda operand, x: keys.append("outer") or x)),
        Sites(Visit(lambda operand, x: keys.append("inner") or x)),
    ):
        torch.matmul(rand(2, 2), rand(2, 2))
    assert keys == ["inner", "inner"]


def test_a_second_rule_is_refused():
    with pytest.raises(UsageError, match=r"has a rule already\. Remove it from RULES first to replace it\.$"):
        synaptic(F.linear)(lambda visit: None)


def test_site_spelling():
    with pytest.raises(UsageError, match=r"^'nonsense' is not a site\. Write OWNER:OPERAND, as "):
        Site.parse("nonsense")
