"""An exported program: the bits of the network for any batch, without what only `revert_` needs."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import onespike
from exports.small import Convolutions, small


def test_a_program_gives_the_bits_of_the_network(tmp_path: Path) -> None:
    snn, batches = small(Convolutions)
    file = tmp_path / "a.pt2"
    done = onespike.export(snn, "pt2", file, tuple(batches), integer=True, facts={"preprocessing": "none"})
    assert done.comparison.active > 100 and done.comparison.differ == 0 and done.notes == ()
    facts = {"onespike.json": ""}
    program = torch.export.load(file, extra_files=facts)
    assert json.loads(facts["onespike.json"]) == {"preprocessing": "none"}
    names = " ".join(program.state_dict)
    assert "folded" not in names and "scale" in names
    other = torch.cat([batches[0], batches[1][:1]])  # another size of batch
    expected = onespike.optimize(snn, integer_units=True)(other)
    torch.testing.assert_close(program.module()(other), expected, rtol=0, atol=1e-5)
