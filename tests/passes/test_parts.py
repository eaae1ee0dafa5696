"""What passes find depends on the inputs and their order: not on batches, not on threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_networks import attention, tokens
from torch.utils._pytree import tree_leaves

from contract.networks import threads
from onespike import preset, runs, spike
from onespike.adapters import load_model
from onespike.calibration.inputs import ELEMENTS, Parts
from onespike.passes import budget, statistics
from onespike.runtime.batches import count, split
from onespike.runtime.forward import LARGE, InOrder
from onespike.tasks import Inferred, limit, list_images

ROWS = torch.arange(60.0).view(20, 3)
LENGTHS = torch.arange(20) % 3 + 1
MASK = (torch.arange(3) < LENGTHS[:, None]).long()
FORMS: list[Any] = [
    ROWS,
    (ROWS, torch.arange(20)),
    {"input_ids": ROWS, "flag": True},
    ([torch.full((3, 1 + i // 5), float(i)) for i in range(20)],),
]


class Texts(Inferred):
    """A task whose inputs may have any length."""

    positional = False


def same(first: Any, *others: Any) -> bool:
    pairs = [pair for other in others for pair in zip(tree_leaves(first), tree_leaves(other), strict=True)]
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs)


@pytest.mark.parametrize("batch", FORMS)
def test_parts_are_the_same_for_all_batches(batch: Any) -> None:
    first, *others = (Parts(list(split(batch, size)), Inferred()) for size in (3, 7, 20))
    assert sum(map(count, first)) == 20 and max(map(count, first)) == 5
    assert same(list(first), *map(list, others))


def test_a_text_is_as_long_as_it_is() -> None:
    """Padding to the longest of a batch depends on the batch."""
    result = []
    for size in (2, 20):
        batches = []
        for part in split({"input_ids": ROWS, "attention_mask": MASK}, size):
            longest = int(part["attention_mask"].sum(1).max())
            batches.append({name: x[:, :longest] for name, x in part.items()})
        result.append(list(Parts(batches, Texts())))
    assert same(*result)
    assert [tuple(part["input_ids"].shape) for part in result[0][:3]] == [(1, 1), (1, 2), (1, 3)]


def test_what_inputs_share_stays_with_them() -> None:
    batch = {"x": ROWS, "mask": torch.ones(3, 3)}
    (part,) = Parts([batch], Inferred())
    assert same(part, batch)


def test_batches_are_read_on_demand_and_large_inputs_come_one_by_one() -> None:
    class Reading(list[Any]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            self.reads += 1
            return super().__getitem__(index)

    large = Reading([torch.zeros(4, 1).expand(4, ELEMENTS // 2 + 1) for _ in range(2)])
    parts = Parts(large, Inferred())
    large.reads = 0
    assert [len(part) for part in parts] == [1] * 8 and large.reads == 2


def test_a_small_network_gets_the_same_steps_from_any_batches() -> None:
    x = torch.cat(tokens(28))
    assert same(*(spike(attention(), list(x.split(size)), "fast").state_dict() for size in (5, 28)))


@pytest.mark.parametrize("name", ["cifar10-vit", "cifar10-resnet18"])
def test_threads_change_no_bit_of_activations_and_gradients(name: str) -> None:
    model = load_model(f"bundled:{name}").model.eval()
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    result = []
    for number in (1, 2, 3):
        x = images.clone().requires_grad_()
        with threads(number), InOrder():
            output = model(x)
            output.log_softmax(-1)[:, 0].sum().backward()
            with torch.inference_mode():
                again = model(images)
        result.append((output, x.grad, again))
    assert same(*result)


def test_sums_and_solutions_have_one_order() -> None:
    x = torch.randn(400, 400, generator=torch.Generator().manual_seed(0))
    square = (x @ x.mT).double() + torch.eye(400)
    result = []
    for number in (1, 2, 3):
        with threads(number), InOrder():
            result.append((x.sum(), x.mean(), x.std(), x.norm(), torch.linalg.solve(square, x.double())))
    assert same(*result)


def test_the_command_cuts_its_images_itself() -> None:
    items = limit(list_images("bundled:cifar10-calibration"), 6)
    recipe = preset("sformer", passes=("nearest", "center"), budget=None)
    networks = [
        runs.convert_network(load_model("bundled:cifar10-vit"), items, recipe, batch_size=size).snn
        for size in (2, 6)
    ]
    assert same(*(snn.state_dict() for snn in networks))


def test_a_vision_transformer_gets_the_same_steps_from_any_batches_and_threads(monkeypatch) -> None:
    """Of `fast`, but for the passes that forward most often: the small network above has all. One block does."""
    loaded = load_model("bundled:cifar10-vit")
    loaded.model.blocks = loaded.model.blocks[:1]
    items = limit(list_images("bundled:cifar10-calibration"), 17)
    images = torch.cat([x for x, _ in loaded.batches(items, 17)])
    monkeypatch.setattr(statistics, "SAMPLES", 2**10)
    monkeypatch.setattr(budget, "IMAGES", 4)
    recipe, made = preset("fast", passes=("nearest", "layout", "center", "allocate", "refit")), []
    for size, number, large in ((5, 1, LARGE), (8, 2, LARGE), (16, 2, 0)):
        monkeypatch.setattr("onespike.runtime.forward.LARGE", large)
        with threads(number):
            made.append(spike(loaded.model.eval(), list(images.split(size)), recipe).state_dict())
    assert same(*made)
