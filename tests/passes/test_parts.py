"""What passes find depends on the inputs and their order: not on batches, not on threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from small_networks import attention, tokens
from torch import nn
from torch.utils._pytree import tree_leaves

import onespike
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


def same(a: Any, b: Any) -> bool:
    pairs = list(zip(tree_leaves(a), tree_leaves(b), strict=True))
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("batch", FORMS)
def test_parts_are_the_same_for_all_batches(batch: Any) -> None:
    first, *others = (Parts(list(split(batch, size)), Inferred()) for size in (3, 7, 20))
    assert sum(map(count, first)) == 20 and max(map(count, first)) == 5
    assert all(same(list(first), list(other)) for other in others)


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
    x = torch.cat(tokens(44))
    result = [spike(attention(), list(x.split(size)), "fast").state_dict() for size in (5, 16, 44)]
    assert same(result[0], result[1]) and same(result[0], result[2])


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
    assert same(result[0], result[1]) and same(result[0], result[2])


def test_sums_and_solutions_have_one_order() -> None:
    x = torch.randn(400, 400, generator=torch.Generator().manual_seed(0))
    square = (x @ x.mT).double() + torch.eye(400)
    result = []
    for number in (1, 2, 3):
        with threads(number), InOrder():
            result.append((x.sum(), x.mean(), x.std(), x.norm(), torch.linalg.solve(square, x.double())))
    assert same(result[0], result[1]) and same(result[0], result[2])


def test_the_command_cuts_its_images_itself() -> None:
    items = limit(list_images("bundled:cifar10-calibration"), 10)
    recipe = preset("sformer", passes=("nearest", "center"), budget=None)
    networks = [
        runs.convert_network(load_model("bundled:cifar10-vit"), items, recipe, batch_size=size).snn
        for size in (3, 10)
    ]
    assert same(*(snn.state_dict() for snn in networks))


@pytest.fixture(scope="module")
def transformers() -> list[nn.Module]:
    """`fast` on the bundled vision transformer, from the same images in other batches and with other threads.

    One of its blocks does: minutes otherwise.
    """
    loaded = load_model("bundled:cifar10-vit")
    loaded.model.blocks = loaded.model.blocks[:1]
    items = limit(list_images("bundled:cifar10-calibration"), 17)
    images = torch.cat([x for x, _ in loaded.batches(items, 17)])
    with pytest.MonkeyPatch.context() as patch:  # fewer samples and fewer images of the energy
        patch.setattr(statistics, "SAMPLES", 2**10)
        patch.setattr(budget, "IMAGES", 4)
        # the small network below has all passes of `fast`; those that forward most often take minutes here
        recipe, made = preset("fast", passes=("nearest", "layout", "center", "allocate", "refit")), []
        for size, number, large in ((5, 1, LARGE), (8, 2, LARGE), (16, 2, 0)):
            patch.setattr("onespike.runtime.forward.LARGE", large)
            with threads(number):
                made.append(spike(loaded.model.eval(), list(images.split(size)), recipe))
    return made


def test_a_vision_transformer_gets_the_same_steps_from_any_batches_and_threads(transformers) -> None:
    first, *others = (snn.state_dict() for snn in transformers)
    assert all(same(first, other) for other in others)


def test_integer_logits_do_not_depend_on_the_batch(transformers) -> None:
    loaded = load_model("bundled:cifar10-vit")
    items = limit(list_images("bundled:cifar10-test"), 32)
    images = torch.cat([x for x, _ in loaded.batches(items, 32)])
    fast = onespike.optimize(transformers[0])
    with torch.inference_mode():
        result = [torch.cat([fast(x) for x in images.split(size)]) for size in (1, 7, 16)]
    assert same(result[0], result[1]) and same(result[0], result[2])
