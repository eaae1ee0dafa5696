"""Every test and doctest starts from the same random numbers, whatever ran before it."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
