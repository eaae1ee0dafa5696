"""What is no network, no batch or no label is refused in one line that ends with the remedy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import onespike
from contract.networks import Layers, mlp, refused
from onespike.errors import DataError, UsageError

INPUTS, LABELS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
REMEDY = "prepared as in training; of an image, x.float() / 255."


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return mlp()


@pytest.fixture(scope="module")
def snn(model: nn.Module) -> nn.Module:
    return onespike.spike(model, [INPUTS], "sformer")


def quantized(model: nn.Module) -> nn.Module:
    """Weights that are tensors around others, as torchao's are."""
    other = copy.deepcopy(model)
    for module in other:
        if isinstance(module, nn.Linear):
            weight = module.weight.detach()
            module.weight = nn.Parameter(TwoTensor(weight, weight), requires_grad=False)
    return other


DOORS: dict[str, Callable[[Any, Any], Any]] = {
    "spike": lambda network, snn: onespike.spike(network, [INPUTS]),
    "calibrate": lambda network, snn: onespike.calibrate(network, [INPUTS]),
    "convert": lambda network, snn: onespike.convert(network, snn._conversion.thresholds),
    "evaluate": lambda network, snn: onespike.evaluate(network, snn, [(INPUTS, LABELS)]),
    "optimize": lambda network, snn: onespike.optimize(network),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # torch warns that it will be removed
@pytest.mark.parametrize("verb", DOORS)
@pytest.mark.parametrize("kind", ["none", "traced", "quantized"])
def test_networks(model: nn.Module, snn: nn.Module, verb: str, kind: str) -> None:
    network, text = {
        "none": (None, "the network must be a torch.nn.Module, not NoneType. Give the network itself."),
        "traced": (
            torch.jit.trace(model, INPUTS) if kind == "traced" else None,
            "the network is scripted or traced by torch.jit, which hides its products. Give the network as it was before.",
        ),
        "quantized": (
            quantized(model),
            "0 has weights of type TwoTensor: another library has quantized it already. Give the network as it was before.",
        ),
    }[kind]
    if verb == "evaluate" and network is not None:  # as the original it need not be converted
        assert DOORS[verb](network, snn).images == 8
        return
    with refused(UsageError, f"{verb}: {text}"):
        DOORS[verb](network, snn)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64, torch.float64, torch.complex64])
def test_types_of_inputs(model: nn.Module, snn: nn.Module, kind: torch.dtype) -> None:
    inputs, name = (INPUTS * 10).to(kind), str(kind).removeprefix("torch.")
    text = f"the network cannot compute with inputs of type {name}. Give numbers of the type of its weights, {REMEDY}"
    complex_numbers = (
        "0:linear0_input multiplies complex numbers, and spikes code real ones. Give real inputs, such as "
        "torch.view_as_real(x)."
    )
    with refused(DataError, complex_numbers if kind.is_complex else f"calibrate: {text}"):
        onespike.spike(model, [inputs], "sformer")
    with refused(DataError, f"evaluate: {text}"):
        onespike.evaluate(model, snn, [(inputs, LABELS)])


def test_a_network_may_read_bytes(model: nn.Module) -> None:
    reader = Layers(lambda self, x: self.inner(x.float() / 255), inner=model).eval()
    images = torch.randint(255, (16, 4), dtype=torch.uint8)
    assert onespike.spike(reader, [images], "sformer")(images).shape == (16, 3)


NOT_FINITE = "evaluate: an input holds NaN or infinite values. Check it and its preprocessing."


@pytest.mark.parametrize(("batch", "message"), [
    *(((INPUTS.index_fill(1, torch.tensor(1), value), LABELS), NOT_FINITE) for value in (torch.nan, torch.inf, -torch.inf)),
    (INPUTS, "evaluate: a batch must be (inputs, labels). Without labels, give (inputs, None)."),
])  # fmt: skip
def test_batches(model: nn.Module, snn: nn.Module, batch: Any, message: str) -> None:
    with refused(DataError, message):
        onespike.evaluate(model, snn, [batch])


@pytest.mark.parametrize(
    ("labels", "form"),
    [
        (LABELS[:5], "shape (5,)"),
        (LABELS[:1], "shape (1,)"),
        (LABELS[:, None], "shape (8, 1)"),
        (F.one_hot(LABELS), "shape (8, 3)"),
        (LABELS.tolist(), "type list"),
    ],
    ids=["short", "one", "column", "one-hot", "list"],
)
def test_labels(model: nn.Module, snn: nn.Module, labels: Any, form: str) -> None:
    message = f"the labels of 8 inputs have {form}. Give one class number per input; of one-hot rows, labels.argmax(1)."
    with refused(DataError, message):
        onespike.evaluate(model, snn, [(INPUTS, labels)])
    with refused(DataError, message):
        onespike.spike(model, [INPUTS] * 2, max_drop=0.1, validation=[(INPUTS, labels)])
