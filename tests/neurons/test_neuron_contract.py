"""Every registered neuron keeps the contract; a new one is held to it without a line here."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from contract.neuron_contract import NeuronContract
from onespike.errors import UsageError
from onespike.neurons import NEURONS, Neuron, neuron

for _name in NEURONS:
    _title = "Test" + _name.title().replace("-", "")
    globals()[_title] = type(_title, (NeuronContract,), {"name": _name})


def test_registering_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'sfn' is registered already, as ScaleFire\. Choose another name"):
        neuron("sfn")(type("Other", (Neuron,), {}))


PAGE = Path(__file__).parents[2] / "docs" / "own-network.md"
[_example] = [
    example.source
    for example in doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8"))
    if "@neuron(" in example.source
]
exec("import torch\n" + _example)  # as a module of the reader's own: pickle must find the class
NEURONS.pop("ternary")


class TestTernary(NeuronContract):
    """The neuron of the page that tells its reader to inherit these tests."""

    name = "ternary"

    @pytest.fixture(autouse=True)
    def registered(self, monkeypatch):
        monkeypatch.setitem(NEURONS, "ternary", globals()["Ternary"])
