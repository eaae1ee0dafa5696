"""Work that cannot reach the output, found by gradient, against sums on paper."""

from __future__ import annotations

import pytest
import torch
from test_ledger_again import CLASSES, HIDDEN, TOKENS, WIDTH, ViT
from torch import Tensor, nn

from contract.networks import Layers, converted, mlp, rows
from onespike.energy.dead_work import dead_work
from onespike.errors import UsageError


def images(n: int = 4) -> Tensor:
    return torch.randn(n, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def test_the_last_block_of_all_tokens_but_the_first():
    network = ViT().eval()
    block = TOKENS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN) + 2 * TOKENS * TOKENS * WIDTH
    whole = 2 * block + 9 * WIDTH * 3 * 16 + WIDTH * CLASSES
    others = TOKENS - 1
    expected = {  # of its queries, keys and values the keys and values are needed
        "blocks.1.qkv:linear0": others * WIDTH * WIDTH / whole,
        "blocks.1:matmul0": others * TOKENS * WIDTH / whole,
        "blocks.1:matmul1": others * TOKENS * WIDTH / whole,
        "blocks.1.proj:linear0": others * WIDTH * WIDTH / whole,
        "blocks.1.fc1:linear0": others * WIDTH * HIDDEN / whole,
        "blocks.1.fc2:linear0": others * WIDTH * HIDDEN / whole,
    }
    before = [p.grad for p in network.parameters()]
    assert dead_work(network, images()) == pytest.approx(expected)
    assert [p.grad for p in network.parameters()] == before
    with torch.inference_mode():
        assert dead_work(network, images()) == pytest.approx(expected)


def test_a_rectifier_or_a_pool_that_is_shut_now_is_no_dead_work():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 4, 3), nn.ReLU6(),
        nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2),
    ).eval()  # fmt: skip
    assert dead_work(model, images()) == {}
    assert dead_work(model, 1e3 * images()) == {}


@pytest.mark.parametrize("layer", [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh(), nn.ELU()])
def test_a_function_that_is_flat_here_is_no_dead_work(layer):
    model = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 2))
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([30.0, -30.0]).repeat(4))
    assert dead_work(model, rows()) == {}


def test_a_border_that_no_kernel_meets_is_dead():
    """Of five columns a kernel of two with stride two meets four."""
    model = nn.Sequential(
        nn.Conv1d(1, 1, 1), nn.GELU(), nn.Conv1d(1, 3, 2, stride=2), nn.Flatten(), nn.Linear(6, 1)
    )
    assert dead_work(model, torch.randn(2, 1, 5)) == pytest.approx({"0:conv0": 1 / (5 + 12 + 6)})


def test_where_it_is_unknown_it_says_so():
    with pytest.raises(UsageError, match=r"^dead work is known where the output is a tensor\."):
        dead_work(Layers(lambda self, x: list(self.layer(x)), layer=nn.Linear(6, 2)), torch.randn(2, 6))
    with pytest.raises(UsageError, match=r"^dead work is that of the original network\. Give that one"):
        dead_work(converted(mlp(), rows()), rows())
