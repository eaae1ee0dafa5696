"""Batches of any form are moved, cut and counted in one place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from onespike.runtime.batches import count, join, split, take, take_first, to

ROWS = torch.arange(12.0).view(4, 3)
FORMS: list[Any] = [
    ROWS,
    (ROWS, torch.arange(4)),
    [ROWS] * 4,
    {"input_ids": ROWS, "attention_mask": torch.ones(4, 3), "flag": True},
    ([torch.zeros(3, 2), torch.ones(3, 5), torch.ones(3, 1), torch.zeros(3, 4)],),
]


@pytest.mark.parametrize("batch", FORMS)
def test_parts_hold_every_input_once(batch: Any) -> None:
    assert count(batch) == 4
    assert [count(part) for part in split(batch, 3)] == [3, 1]
    assert count(take(batch, torch.tensor([3, 0]))) == 2
    assert [count(part) for part in take_first([batch, batch], 6)] == [4, 2]
    assert type(to(batch, "cpu")) is type(batch)
    assert count(join(list(split(batch, 3)))) == 4


def test_what_has_no_row_for_each_input_stays_whole() -> None:
    shared = {"x": ROWS, "mask": torch.ones(3, 3), "scale": 2.0}
    part = take(shared, slice(1, 2))
    assert part["mask"].shape == (3, 3) and part["scale"] == 2.0
    assert torch.equal(part["x"], ROWS[1:2])


def test_numbers_choose_inputs_in_their_order() -> None:
    chosen = take((ROWS,), torch.tensor([2, 2, 0]))
    assert isinstance(chosen, tuple) and isinstance(chosen[0], Tensor)
    assert chosen[0][:, 0].tolist() == [6.0, 6.0, 0.0]


def test_batches_are_joined_where_their_inputs_have_one_shape() -> None:
    """An argument of another shape keeps them apart: SAM has images of one size and any number of points in a batch."""
    assert torch.equal(join([(ROWS[:1], ROWS[:1]), (ROWS[1:], ROWS[1:])])[1], ROWS)
    assert join([torch.zeros(2, 3), torch.zeros(2, 4)]).shape == (2, 3)
    few, many = ({"image": torch.zeros(2, 3), "points": torch.zeros(2, n, 2)} for n in (1, 4))
    assert {name: tuple(x.shape) for name, x in join([few, many]).items()} == {
        "image": (2, 3),
        "points": (2, 1, 2),
    }
    joined = join([{"x": ROWS, "mask": torch.ones(3, 3)}] * 2)  # a mask that all inputs share
    assert joined["x"].shape == (8, 3) and joined["mask"].shape == (3, 3)
