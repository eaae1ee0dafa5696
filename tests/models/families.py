"""How the tests of this folder say which networks keep the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from contract.conversion_contract import ConversionContract, randomize_


class Uncompiled(ConversionContract):
    """Networks that are tested as they run, not as one graph."""

    test_compiles_as_one_graph_and_follows_the_scale = None
    test_exports = None


def contract(
    make: Callable[[], nn.Module],
    batches: Callable[[], list[Any]],
    base: type[ConversionContract] = ConversionContract,
    **facts: Any,
) -> type[ConversionContract]:
    """The contract of one network: how it is made, its inputs, and the roles that are expected of its sites."""

    def build(cls: type[ConversionContract]) -> tuple[nn.Module, list[Any]]:
        torch.manual_seed(0)
        return randomize_(make()), batches()

    return type("Contract", (base,), {"build": classmethod(build), **facts})
