"""Names and weights: what is asked for, and what is said when it cannot be had."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from PIL import Image

from language_folders import llama
from onespike.adapters import base, load_model
from onespike.errors import LoadError, UsageError
from onespike.sources import forms

OPTIONS = f"Give one of {base.OPTIONS}."


KNOWN = "bundled, detectron2, python, timm, torchvision, transformers"
FORMS = f"does not name a network. Write {forms()}."
RANDOM = {"random_weights": True}


@pytest.mark.parametrize(
    ("spec", "given", "message"),
    [
        ("resnet18", RANDOM, FORMS),
        ("timm:", RANDOM, FORMS),
        ("tim:resnet18", RANDOM, f"unknown adapter 'tim'. Did you mean 'timm'? Known: {KNOWN}."),
        ("timm:resnet18", {}, f"timm:resnet18: no weights given. {OPTIONS}"),
        ("timm:resnet18", {**RANDOM, "pretrained": True}, f"more than one kind of weights. {OPTIONS}"),
        ("timm:resnet18", {**RANDOM, "attention": "flash"}, "unknown attention 'flash'. Known: eager, sdpa."),
        ("timm:vit_tny_patch16_224", RANDOM, "unknown timm model 'vit_tny_patch16_224'. Did you mean 'vit_tiny"),
        ("timm:vit_tny_patch16_224", RANDOM, " names: onespike list models timm."),
        ("timm:resnet18.a1_in2k", RANDOM, "unknown tag of timm:resnet18 'a1_in2k'. Did you mean 'a1_in1k'"),
        ("torchvision:resnet19", RANDOM, "unknown torchvision model 'resnet19'. Did you mean 'resnet18'"),
        ("torchvision:vit_b_32", {**RANDOM, "attention": "eager"}, "with sdpa only. Use attention='sdpa'."),
        ("bundled:cifar10-vti", {}, "Did you mean 'cifar10-vit' or 'cifar10-resnet18'? Known: cifar10-resnet18"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_what_could(spec, given, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        load_model(spec, **given)


def test_a_folder_that_holds_its_weights_needs_no_option(tmp_path):
    pytest.importorskip("transformers")
    folder = llama(tmp_path / "llama")
    by_itself, asked = (load_model(f"transformers:{folder}", **given) for given in ({}, {"pretrained": True}))
    assert by_itself.weights == asked.weights == "pretrained"
    for mine, other in zip(by_itself.model.parameters(), asked.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="no weights given"):
        load_model(f"transformers:{folder}")


@pytest.mark.parametrize(
    "spec", ["timm:resnet18", "torchvision:resnet18", "transformers:a/b", "bundled:cifar10-vit"]
)
def test_a_missing_package_names_its_extra(monkeypatch, spec):
    package = spec.partition(":")[0].replace("bundled", "timm")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LoadError) as error:
        load_model(spec, random_weights=True)
    remedy = f"Install it with: pip install 'onespike[{package}]'"
    assert str(error.value) == f"{spec}: it needs {package}. {remedy}"


def test_published_weights_without_a_network():
    for spec in ("timm:resnet18", "transformers:nobody/nothing"):
        message = rf"^{spec}: the published weights cannot be fetched \(.*weights=FILE\.$"
        with pytest.raises(LoadError, match=message):
            load_model(spec, pretrained=True)


TORCHVISION = "resize 256 bilinear, center crop 224, mean 0.485 0.456 0.406, std 0.229 0.224 0.225"
TIMM = "resize 168 bicubic, center crop 160, mean 0.5 0.5 0.5, std 0.5 0.5 0.5"


CIFAR10 = "resize 32×32 bilinear, mean 0.4914 0.4822 0.4465, std 0.247 0.2435 0.2616"


@pytest.mark.parametrize(
    ("spec", "attention", "classes", "preprocessing"),
    [
        ("timm:test_vit", "sdpa", 1000, TIMM),
        ("torchvision:resnet18", None, 1000, TORCHVISION),
        ("bundled:cifar10-vit", "sdpa", 10, CIFAR10),
        ("bundled:cifar10-resnet18", None, 10, CIFAR10),
    ],
)
def test_weights_from_a_checkpoint(tmp_path, spec, attention, classes, preprocessing):
    reference, file = load_model(spec, random_weights=True).model, tmp_path / "tiny.pth"
    torch.save({"state_dict": reference.state_dict(), "epoch": 3}, file)
    loaded = load_model(spec, weights=file)
    assert not loaded.model.training
    assert (loaded.spec, loaded.weights, loaded.published_top1) == (spec, "tiny.pth", None)
    assert (loaded.attention, loaded.reading.preprocessing) == (attention, preprocessing)
    assert len(loaded.task.class_names) == classes
    x = loaded.reading.transform(Image.new("RGB", (300, 260), "teal"))[None]
    with torch.inference_mode():
        assert torch.equal(loaded.model(x), reference(x))
        if attention:
            eager = load_model(spec, weights=file, attention="eager")
            assert eager.attention == "eager"
            torch.testing.assert_close(eager.model(x), reference(x))


def test_both_kinds_of_attention_are_fused_throughout():
    loaded = load_model("timm:xcit_nano_12_p16_224", random_weights=True)
    kinds = {m.fused_attn for m in loaded.model.modules() if hasattr(m, "fused_attn")}
    assert (loaded.attention, kinds) == ("sdpa", {True})
    eager = load_model("timm:xcit_nano_12_p16_224", random_weights=True, attention="eager")
    assert eager.attention == "eager"
