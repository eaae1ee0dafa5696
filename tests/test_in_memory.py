"""`onespike.doctor`, `report` and `search` of networks that no adapter knows, from a loader."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import onespike
from onespike.errors import DataError, UsageError


class Own(nn.Module):
    """It takes a mapping, which no folder of images gives."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, classes)

    def forward(self, x, shift):
        return self.head(self.body(x + shift))


def batches(inputs: torch.Tensor):
    return [{"x": x, "shift": torch.full((len(x), 1), 0.1)} for x in inputs.split(12)]


@pytest.fixture(scope="module")
def own():
    torch.manual_seed(0)
    model, inputs = Own().eval(), torch.randn(90, 4)
    snn = onespike.spike(model, batches(inputs[:48]), "sformer", scale=1.0)
    loader = [(batch, model(**batch).argmax(-1)) for batch in batches(inputs[48:])]
    return model, snn, loader


def test_the_doctor(own):
    findings = onespike.doctor(*own, images=24)
    assert "scale" in {finding.cause for finding in findings}
    scale = next(finding for finding in findings if finding.cause == "scale")
    recipe = onespike.preset("sformer", scale=1.0)
    model, snn, loader = own
    names = {"onespike": onespike, "model": model, "batches": [x for x, _ in loader], "recipe": recipe}
    better = eval(scale.command, names)  # a call that can be copied
    before, after = (onespike.evaluate(model, network, loader).metrics["kl"] for network in (snn, better))
    assert after < before


def test_a_page(own, tmp_path):
    model, snn, loader = own
    record = onespike.report(model, snn, loader, tmp_path / "page")
    expected = onespike.evaluate(model, snn, loader).to_dict()
    assert record["evaluation"]["energy"] == expected["energy"] and record["evaluation"]["images"] == 42
    assert record["evaluation"]["snn"] == expected["snn"]
    assert record["command"] == "onespike.spike(model, batches, recipe)" and record["examples"]
    assert "Own" in (tmp_path / "page" / "report.html").read_text()
    assert (tmp_path / "page" / "front.pdf").is_file()


def test_the_search_sets_what_it_finds(own):
    model, snn, loader = own
    found = onespike.search(model, snn, loader, objective="kl", trials=4)
    assert len(found.trials) == 4 and {1.0, 0.25} <= {trial.scale for trial in found.trials}
    kl = onespike.evaluate(model, snn, loader).metrics["kl"]
    assert kl == pytest.approx(found.best.value, rel=1e-5)  # float32, summed in another order
    onespike.set_scale_(snn, 1.0)
    within = onespike.search(model, snn, loader, trials=4, budget=0.1, objective="kl")
    assert within.best.energy is not None and within.best.energy <= 0.1
    onespike.set_scale_(snn, 1.0)


def test_a_dataloader_without_labels(own):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    data = torch.randn(32, 4)
    snn = onespike.spike(model, [data], "sformer")
    loader = ((x, None) for (x,) in DataLoader(TensorDataset(data), batch_size=5))
    assert onespike.search(model, snn, loader, trials=3).best.value is not None


@pytest.mark.parametrize("verb", ["doctor", "search"])
def test_what_cannot_be_measured(own, verb):
    model, snn, _ = own
    with pytest.raises(DataError, match=r"the loader gives no inputs\. Give at least one batch"):
        getattr(onespike, verb)(model, snn, [])
    one = Own(classes=1).eval()
    spiking = onespike.spike(one, batches(torch.randn(24, 4)), "sformer")
    with pytest.raises(UsageError, match=r"is not scores of classes\. Give its task"):
        getattr(onespike, verb)(one, spiking, [(batches(torch.randn(4, 4))[0], None)])
    with pytest.raises(UsageError, match=r"^unknown objective 'speed'"):
        onespike.search(*own, objective="speed")
