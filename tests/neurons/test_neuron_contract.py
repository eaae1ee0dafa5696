"""Every registered neuron keeps the contract; a new one is held to it without a line here."""

from __future__ import annotations

from typing import Any

import pytest

from contract.neuron_contract import DTYPES, NeuronContract
from onespike.errors import UsageError
from onespike.neurons import NEURONS, Neuron, neuron

for _name in NEURONS:
    _title = "Test" + _name.title().replace("-", "")
    globals()[_title] = type(_title, (NeuronContract,), {"name": _name})


def test_the_registry_is_complete() -> None:
    assert sorted(NEURONS) == ["affine-sfn", "dual-if", "dual-mtn", "if", "mean", "mtn", "sfn", "uniform"]
    assert all(kind.name == name for name, kind in NEURONS.items())
    assert sum(name.startswith("Test") for name in globals()) == len(NEURONS)


def test_registering_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'sfn' is registered already, as ScaleFire\. Choose another name"):
        neuron("sfn")(type("Other", (Neuron,), {}))


def test_the_contract_can_fail() -> None:
    """A neuron whose output is not its decoded spikes breaks the first promise."""

    class Careless(NEURONS["sfn"]):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 1.001

    class Broken(NeuronContract):
        name = "careless"

    NEURONS["careless"] = Careless
    try:
        with pytest.raises(AssertionError):
            Broken().test_forward_is_decode_of_spikes_bit_for_bit(DTYPES[0])
    finally:
        del NEURONS["careless"]
