"""All columns once more, from raw spikes, layer by layer as a skeptic would add them up on paper.

Nothing of onespike.energy is used for what is expected.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onespike
from contract.conversion_contract import randomize_, run
from contract.networks import converted, counted
from onespike import Recipe
from onespike.neurons import Neuron

ADD, MAC, INTEGER_ADD, INT8, INT4, INT32 = 0.9, 4.6, 0.1, 0.3, 0.15, 3.2
HEADS, TOKENS, WIDTH, HIDDEN, CLASSES = 2, 10, 16, 24, 5


def digits(n: int) -> list[int]:
    """Non-adjacent form by the textbook, the lowest digit first."""
    result = []
    while n:
        digit = 2 - n % 4 if n % 2 else 0
        result.append(digit)
        n = (n - digit) // 2
    return result


def naf(y: Tensor) -> Tensor:
    table = torch.tensor([sum(d != 0 for d in digits(n)) for n in range(int(y.max()) + 1)])
    return table.double()[y.long()]


READ = {"counts": lambda y: y.double(), "nonzero": lambda y: (y != 0).double(), "binary": naf}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.gamma = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.gamma * self.proj(mixed)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    """3 × 12 × 12 pixels in nine patches, a class token, two blocks with a layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.patches(x).flatten(2).mT], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def raw(snn: nn.Module, x: Tensor) -> tuple[dict[str, Tensor], dict[str, Neuron]]:
    """|y| of every neuron by its site, and the neuron."""
    seen: dict[str, Tensor] = {}
    cells = {str(s): n for s, n in onespike.named_neurons(snn) if isinstance(n, Neuron)}
    handles = [
        cell.register_forward_pre_hook(
            lambda c, args, site=site: seen.update({site: c.spikes(args[0]).abs()})
        )
        for site, cell in cells.items()
    ]
    run(snn, x)
    for handle in handles:
        handle.remove()
    return seen, cells


class Sheet:
    """The sums of one network."""

    def __init__(self, snn: nn.Module, x: Tensor) -> None:
        self.spikes, self.cells = raw(snn, x)
        self.macs = self.analog = self.edges = self.functions = self.updates = self.others = 0
        self.eight_bits = any(cell.dense for cell in self.cells.values())
        self.driven = dict.fromkeys(READ, 0.0)  # products with weights
        self.first = dict.fromkeys(READ, 0.0)  # products of two activations, by their first operand
        self.beyond = dict.fromkeys(READ, 0.0)  # pairs, where a product has more of them
        self.joined, self.compared = dict.fromkeys(READ, 0.0), 0.0
        # functions and values that no threshold takes in, codes of 8-bit edges
        self.left = self.values = self.coded = 0

    def fire(self, site: str, outputs: int) -> Tensor:
        """Count what the neuron does, and what its sums need."""
        y, cell = self.spikes[site], self.cells[site]
        self.updates += y.numel()
        self.compared += y.numel() * math.ceil(math.log2(len(cell.levels) + 1))
        up, down = (float(step) for step in cell.steps())
        signs = 2 if up > 0 and down > 0 and up != down else 1
        lanes = max(len(digits(n)) for n in range(1, cell.levels[-1] + 1))
        for reading in READ:
            self.joined[reading] += outputs * (signs * (lanes if reading == "binary" else 1) - 1)
        return y

    def weighted(self, site: str, layer: nn.Module) -> None:
        """A product with weights: as often as the same layer with unit weights says."""
        shape = self.spikes[site].shape
        with torch.no_grad():
            outputs = layer(torch.zeros(shape)).numel()
        ones = type(layer)(
            *((layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else
              (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding,
               layer.dilation, layer.groups)),
            bias=False,
        ).double()  # fmt: skip
        nn.init.ones_(ones.weight)
        y = self.fire(site, outputs)
        self.macs += outputs * layer.weight[0].numel()
        with torch.no_grad():
            for reading, read in READ.items():
                self.driven[reading] += float(ones(read(y)).sum())

    def product(self, site: str) -> None:
        """A product of two activations."""
        left, right = self.spikes[f"{site}_lhs"], self.spikes[f"{site}_rhs"]
        outputs = (left.double() @ right.double()).numel()
        self.macs += outputs * left.shape[-1]
        for role in ("lhs", "rhs"):
            self.fire(f"{site}_{role}", outputs)
        for reading, read in READ.items():
            first = float((read(left) @ torch.ones_like(right).double()).sum())
            self.first[reading] += first
            self.beyond[reading] += max(float((read(left) @ read(right)).sum()) - first, 0.0)

    def stays(self, macs: int, elements: int = 0) -> None:
        """An edge, and the elements that an integer network brings to 8 bits there: pixels have them already."""
        self.macs += macs
        if self.eight_bits:
            self.edges, self.updates = self.edges + macs, self.updates + elements
            self.coded += elements
        else:
            self.analog, self.others = self.analog + macs, self.others + elements

    def columns(self) -> dict[str, float]:
        whole = self.macs * MAC
        rest = (self.analog + self.functions + self.updates) * MAC + self.edges * INT8
        fixed = self.analog * MAC + (self.left + self.coded) * INT32 + self.edges * INT8
        shifted = 3 * self.values * INTEGER_ADD
        beside = (self.functions + self.updates + self.others) / self.macs
        result = {r: (self.driven[r] + self.first[r]) * ADD / whole for r in READ}
        for name, reading in (("strict", "counts"), ("strict-binary", "binary")):
            additions = (
                self.driven[reading] + self.first[reading] + self.beyond[reading] + self.joined[reading]
            )
            result[name] = ((additions + self.compared) * ADD + rest) / whole
            result[f"{name}-int8"] = ((additions + self.compared) * INTEGER_ADD + fixed + shifted) / whole
            result[f"{reading}-int8"] = (self.driven[reading] + self.first[reading]) * INTEGER_ADD / whole
        for name, price in (("w8a8", INT8), ("w4a4", INT4)):
            result |= {name: price / MAC, f"strict-{name}": price / MAC + beside}
        return result


def compare(model: nn.Module, x: Tensor, recipe: Recipe) -> tuple[Sheet, onespike.Ledger, nn.Module]:
    model.eval()
    snn = converted(model, x, recipe)
    return Sheet(snn, x), counted(snn, x), snn


RECIPES = {
    "literal": Recipe(),
    "all levels": Recipe(levels="linear:8", scale=0.6),
    "sided": Recipe(domain="sided"),
    "8-bit edges": Recipe(io="int8"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_vision_transformer(name):
    model, n = ViT(), 6
    randomize_(model)
    x = torch.randn(n, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    sheet, ledger, snn = compare(model, x, RECIPES[name])
    sheet.stays(n * 9 * WIDTH * 3 * 4 * 4)  # patches
    sheet.stays(n * WIDTH * CLASSES, n * WIDTH)  # head
    for i, block in enumerate(snn.blocks):
        for layer in ("qkv", "proj", "fc1", "fc2"):
            sheet.weighted(f"blocks.{i}.{layer}:linear0_input", getattr(block, layer))
        for product in ("matmul0", "matmul1"):
            sheet.product(f"blocks.{i}:{product}")
        sheet.functions += 2 * 2 * n * TOKENS * WIDTH  # two norms
        sheet.functions += 2 * n * HEADS * TOKENS * TOKENS  # softmax
        sheet.functions += n * TOKENS * WIDTH  # layer scale
        sheet.functions += n * TOKENS * HIDDEN  # gelu
        # thresholds take in gelu and the division of a softmax; scores and what is added to the row are values
        sheet.left += 2 * 2 * n * TOKENS * WIDTH + n * HEADS * TOKENS * TOKENS + n * TOKENS * WIDTH
        sheet.values += n * HEADS * TOKENS * TOKENS + 2 * n * TOKENS * WIDTH
    sheet.functions += 2 * n * TOKENS * WIDTH  # the last norm
    sheet.left, sheet.values = sheet.left + 2 * n * TOKENS * WIDTH, sheet.values + n * 9 * WIDTH
    assert ledger.macs == sheet.macs
    assert ledger.analog_share == pytest.approx((sheet.analog + sheet.edges) / sheet.macs)
    assert ledger.ratios() == pytest.approx(sheet.columns(), rel=1e-9)


@pytest.mark.parametrize("name", RECIPES)
def test_a_convolutional_network_with_groups_and_stride(name):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=4), nn.ReLU(),
        nn.Conv2d(12, 12, 5, stride=3, padding=2, groups=12), nn.SiLU(), nn.Flatten(), nn.Linear(48, 9), nn.Sigmoid(),
        nn.Linear(9, CLASSES),
    )  # fmt: skip
    randomize_(model)
    n = 5
    x = torch.randn(n, 3, 11, 9, generator=torch.Generator().manual_seed(0))
    sheet, ledger, snn = compare(model, x, RECIPES[name])
    sheet.stays(n * 8 * 11 * 9 * 3 * 9)  # the first convolution
    sheet.stays(n * 9 * CLASSES, n * 9)  # head
    for i in (2, 4):
        sheet.weighted(f"{i}:conv0_input", snn[i])
    sheet.weighted("7:linear0_input", snn[7])
    sheet.functions += n * (8 * 11 * 9 + 12 * 2 * 2 + 9)  # silu, silu, sigmoid
    sheet.left, sheet.values = n * 9, n * 9  # the sigmoid before the head, which reads values
    assert ledger.macs == sheet.macs
    assert ledger.ratios() == pytest.approx(sheet.columns(), rel=1e-9)
