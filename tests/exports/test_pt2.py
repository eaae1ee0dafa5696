"""Exported programs: the bits of the network, without what only `revert_` needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import onespike
from exports.small import AFFINE, Attention, Convolutions, small
from onespike.recipe import Recipe

CASES = {
    "convolutions on integers": (Convolutions, None, True),
    "affine attention on integers": (Attention, AFFINE, True),
    "steps by token": (Attention, Recipe(passes=("nearest", "tokens")), False),
}


@pytest.mark.parametrize(("kind", "recipe", "integer"), CASES.values(), ids=CASES)
def test_a_program_gives_the_bits_of_the_network(
    kind: type[nn.Module], recipe: Recipe | None, integer: bool, tmp_path: Path
) -> None:
    snn, batches = small(kind, recipe)
    file = tmp_path / "a.pt2"
    done = onespike.export(snn, "pt2", file, batches, integer=integer, facts={"preprocessing": "none"})
    assert done.comparison.active > 100 and done.comparison.differ == 0 and done.notes == ()
    facts = {"onespike.json": ""}
    program = torch.export.load(file, extra_files=facts)
    assert json.loads(facts["onespike.json"]) == {"preprocessing": "none"}
    names = " ".join(program.state_dict)
    assert "folded" not in names and "scale" in names
    one = torch.cat([batches[0], batches[1][:1]])  # another size of batch
    outputs = onespike.deploy.exports.comparison.tensors(program.module()(one))
    expected = onespike.deploy.exports.comparison.reference(
        onespike.optimize(snn, integer_units=True) if integer else snn, one
    )[1].outputs
    assert torch.allclose(outputs[0], expected[0], rtol=0, atol=1e-5)
