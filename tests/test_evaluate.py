"""evaluate(): both networks in one pass, with nothing left behind."""

from __future__ import annotations

import copy
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from image_folders import noise
from onespike import Recipe, calibrate, convert, evaluate, kernels, metered, named_neurons, preset
from onespike.energy.ledger import totals
from onespike.errors import DataError
from onespike.spikes import SpikeCode


@pytest.fixture
def networks():
    torch.manual_seed(0)
    ann = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 6)
    )
    return ann, convert(ann, calibrate(ann, [torch.randn(64, 4)]))


def data(labels: bool = True):
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        yield torch.randn(5, 4, generator=generator), torch.arange(5) if labels else None


def test_figures_are_those_of_each_network_alone(networks):
    ann, snn = networks
    result = evaluate(ann, snn, data())
    ann.eval()
    snn.eval()
    inputs = torch.cat([x for x, _ in data()])
    labels = torch.arange(5).repeat(3)
    with torch.inference_mode():
        outputs = {"ann": ann(inputs)}
        with metered(snn) as ledger:
            outputs["snn"] = snn(inputs)
    for name, output in outputs.items():
        top1 = 100 * float((output.argmax(1) == labels).double().mean())
        assert result.metrics[name]["top1"] == pytest.approx(top1)
    log_p, log_q = (o.double().log_softmax(1) for o in outputs.values())
    assert result.metrics["kl"] == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum(1).mean()))
    assert result.ledger.ratios() == pytest.approx(ledger.ratios())
    assert (result.images, result.scale) == (15, 0.25)


def test_each_neuron_of_a_vit_fires_once(monkeypatch):
    """What the ledger counts is what the products receive: no neuron fires a second time for it."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    ann, images = timm.create_model("vit_tiny_patch16_224").eval(), torch.randn(2, 3, 224, 224)
    snn = convert(ann, calibrate(ann, [images]), share_weights=True)
    elements, kernel, plain = [], kernels.fire, SpikeCode.fire

    def in_kernel(x, *args, **kwargs):
        output = kernel(x, *args, **kwargs)
        elements.append(0 if output is None else x.numel())
        return output

    def as_defined(code, x):
        elements.append(x.numel())
        return plain(code, x)

    monkeypatch.setattr(kernels, "fire", in_kernel)
    monkeypatch.setattr(SpikeCode, "fire", as_defined)
    ledger = evaluate(ann, snn, [(images, None)]).ledger
    assert sum(elements) == sum(row.elements for row in ledger.sites.values() if row.spiking) > 1e7


def test_the_networks_are_left_as_they_were_and_evaluated_without_dropout(networks):
    ann, snn = networks
    ann.train()
    ann[4].eval()
    before = copy.deepcopy(ann.state_dict())
    flags = [m.training for m in (*ann.modules(), *snn.modules())]
    first, second = (evaluate(ann, snn, data()).metrics for _ in range(2))
    assert first == second
    assert [m.training for m in (*ann.modules(), *snn.modules())] == flags
    assert all(torch.equal(before[k], v) for k, v in ann.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in ann.parameters())
    assert all(getattr(m, "meter", None) is None for m in snn.modules())
    assert not torch.is_inference_mode_enabled()


def test_time_is_positive_and_counting_is_left_out(networks, monkeypatch):
    ann, recipe = networks[0], Recipe(io="spiking")
    snn = convert(ann, calibrate(ann, [torch.randn(64, 4)], recipe), recipe)

    def slowly(*args):
        time.sleep(0.05)
        return totals(*args)

    monkeypatch.setattr("onespike.energy.ledger.totals", slowly)
    seconds = evaluate(ann, snn, data()).seconds
    assert seconds.keys() == {"ann", "snn"}
    assert all(s > 0 for s in seconds.values())
    assert seconds["snn"] < 0.2  # beside 3 × 3 × 0.05 s of counting


def test_objects_with_logits_and_networks_without_a_scale_or_labels(networks):
    class Wrapped(nn.Sequential):
        def forward(self, x):
            return SimpleNamespace(logits=super().forward(x))

    assert evaluate(*map(Wrapped, networks), data()).metrics == evaluate(*networks, data()).metrics
    for _, neuron in named_neurons(networks[1]):
        neuron.scale = None
    result = evaluate(*networks, data(labels=False))
    assert (result.scale, result.metrics["ann"]) == (None, {"top1": None, "top5": None})
    assert 0 <= result.metrics["agreement"] <= 100


def test_refusals(networks):
    for batches in ([], [(torch.empty(0, 4), None)]):
        with pytest.raises(DataError, match=r"evaluate: there are no inputs. Give at least one batch."):
            evaluate(*networks, batches)
    networks[0][5].bias.data[0] = float("nan")
    with pytest.raises(DataError, match=r"the original network's output is NaN. Check its weights"):
        evaluate(*networks, data())


def test_class_folders_are_matched_by_name_and_not_by_their_order(tmp_path):
    from onespike import runs
    from onespike.adapters import load_model

    for name in ("cat", "dog"):
        noise(tmp_path / name / "a.png", 0)
    loaded = load_model("bundled:cifar10-vit", random_weights=True)
    items = runs.choose("bundled:cifar10-calibration", 4)
    pair = runs.convert_network(loaded, items, preset("sformer"))
    by_name, matched = runs.choose(str(tmp_path), None), runs.choose_labeled(loaded, str(tmp_path))
    assert [i.label for i in matched] == [3, 5]
    one, other = (runs.evaluate_pair(pair, items).metrics for items in (by_name, matched))
    assert one == other
