"""A converted transformers network comes back by `AutoModel….from_pretrained(FOLDER)`, in a process that made none of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

import onespike
from language_folders import llama, tokenizer
from onespike.errors import LoadError, UsageError
from onespike.reports.card import write_card

transformers: Any = pytest.importorskip("transformers")

IDS = torch.randint(4, 26, (4, 12), generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
IMAGE = Image.effect_mandelbrot((50, 40), (-2, -1, 1, 1), 20).convert("RGB")
SIZES = dict(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, initializer_range=0.3
)
CLASSES = {
    "llama": "AutoModelForCausalLM",
    "bert": "AutoModelForSequenceClassification",
    "encoder": "AutoModel",
    "vit": "AutoModelForImageClassification",
}
TASKS = {"llama": "text-generation", "bert": "text-classification", "vit": "image-classification"}

FRESH = """
import json, sys
ORDER
assert ("transformers" in sys.modules) == (sys.argv[1] == "after")
import torch, transformers
from PIL import Image
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
folder, classes, tasks, settings = sys.argv[2], *map(json.loads, sys.argv[3:])
inputs, answers, texts = load_file(f"{folder}/inputs.safetensors"), {}, {}
for name, kind in classes.items():
    network = getattr(transformers, kind).from_pretrained(f"{folder}/{name}", **settings)
    with torch.no_grad():
        answers[name] = network(inputs["pixels" if name == "vit" else "ids"])[0].clone()
    if name == "llama":
        answers["written"] = network.generate(inputs["ids"], max_new_tokens=5, do_sample=False)
    if name in tasks:
        made = transformers.pipeline(tasks[name], model=f"{folder}/{name}", **settings)
        texts[name] = made(Image.open(f"{folder}/image.png") if name == "vit" else "the cat sat", **(
            {"max_new_tokens": 5, "do_sample": False} if name == "llama" else {}))
save_file(answers, f"{folder}/{sys.argv[1]}.safetensors")
print(json.dumps(texts))
"""


def networks():
    """Networks with random weights, what they are calibrated on, and what reads their inputs."""
    text = dict(vocab_size=32, max_position_embeddings=32, pad_token_id=0, **SIZES)
    bert = transformers.BertConfig(**text, num_labels=3)
    vit = transformers.ViTConfig(**SIZES, image_size=32, patch_size=16, num_labels=3)
    words, ids = tokenizer(), [{"input_ids": IDS}]
    images = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    torch.manual_seed(0)
    return {
        "bert": (transformers.BertForSequenceClassification(bert), ids, words),
        "encoder": (transformers.BertModel(bert), ids, words),
        "vit": (transformers.ViTForImageClassification(vit), [PIXELS], images),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(scope="module")
def spiking(folder):
    """Converted networks, each saved under its name, with its tokenizer or image processor beside it."""
    from safetensors.torch import save_file

    made = networks()
    writer = transformers.AutoModelForCausalLM.from_pretrained(llama(folder / "source"))
    made["llama"] = writer, [{"input_ids": IDS, "use_cache": False}], tokenizer()
    converted = {}
    for name, (network, batches, reader) in made.items():
        converted[name] = onespike.spike(network.eval(), batches, "sformer" if name == "bert" else "fast")
        reader.save_pretrained(converted[name].save_pretrained(folder / name))
    save_file({"ids": IDS, "pixels": PIXELS}, folder / "inputs.safetensors")
    IMAGE.save(folder / "image.png")
    return converted


def answer(name, network):
    with torch.no_grad():
        result: Tensor = network(PIXELS if name == "vit" else IDS)[0]
    return result


@pytest.mark.processes
@pytest.mark.parametrize(
    ("order", "settings"), [("before", {}), ("after", {"device_map": "cpu"})], ids=["before", "after"]
)
def test_a_fresh_process_gives_the_same_bits(folder, spiking, order, settings):
    """With onespike imported before transformers and after it; nothing else is asked of it."""
    lines = (
        "import onespike"
        if order == "before"
        else "from transformers import PreTrainedModel; import onespike"
    )
    words = [json.dumps(value) for value in (CLASSES, TASKS, settings)]
    command = [sys.executable, "-c", FRESH.replace("ORDER", lines), order, str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    answers = load_file(folder / f"{order}.safetensors")
    for name, network in spiking.items():
        assert torch.equal(answers[name], answer(name, network)), name
    written = spiking["llama"].generate(IDS, max_new_tokens=5, do_sample=False)
    assert torch.equal(answers["written"], written)
    texts = json.loads(done.stdout)
    for name, task in TASKS.items():
        reader = {"image_processor" if name == "vit" else "tokenizer": str(folder / name)}
        made = transformers.pipeline(task, model=spiking[name], **reader)
        more = {"max_new_tokens": 5, "do_sample": False} if name == "llama" else {}
        assert texts[name] == made(IMAGE if name == "vit" else "the cat sat", **more), name


def test_it_is_the_network_that_was_saved(folder, spiking, tmp_path):
    """It can be saved, reverted and given to onespike as before, and the folder is still a run."""
    again = transformers.AutoModelForCausalLM.from_pretrained(folder / "llama")
    assert onespike.table(again) == onespike.table(spiking["llama"])
    assert not hasattr(again.config, "quantization_config")
    assert again.lm_head.weight is again.model.embed_tokens.weight
    second = transformers.AutoModelForCausalLM.from_pretrained(again.save_pretrained(tmp_path / "second"))
    assert torch.equal(answer("llama", second), answer("llama", spiking["llama"]))
    original = transformers.AutoModelForCausalLM.from_pretrained(folder / "source")
    given = onespike.from_pretrained(folder / "llama", type(original)(original.config).eval())
    assert torch.equal(answer("llama", given.snn), answer("llama", again))
    assert torch.equal(answer("llama", onespike.revert_(again)), answer("llama", original))
    again.save_pretrained(tmp_path / "original")
    assert "quantization_config" not in json.loads((tmp_path / "original" / "config.json").read_text())


def test_the_form_of_attention_and_the_type_are_kept(tmp_path):
    for name, settings in (("eager", {"attn_implementation": "eager"}), ("half", {"dtype": torch.bfloat16})):
        source = llama(tmp_path / f"{name}-source")
        network = transformers.AutoModelForCausalLM.from_pretrained(source, **settings)
        snn = onespike.spike(network, [{"input_ids": IDS, "use_cache": False}], "sformer")
        again = transformers.AutoModelForCausalLM.from_pretrained(snn.save_pretrained(tmp_path / name))
        kinds = ((each.config._attn_implementation, each.dtype) for each in (again, network))
        assert len(set(kinds)) == 1
        assert torch.equal(answer("llama", again), answer("llama", snn))


def flip(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


DIFFERS = r"is not the file that was saved \(its SHA-256 differs\)\. Convert the network again\."


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("weights.safetensors", flip, f"the run is damaged: weights.safetensors {DIFFERS}"),
        ("weights.safetensors", Path.unlink, r"the run is damaged: weights.safetensors is missing\. Convert"),
        ("config.json", lambda file: file.write_text(file.read_text().replace("10000.0", "1000.0")), f"config.json {DIFFERS}"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("spiking")
def test_damage_is_refused(folder, tmp_path, name, change, message):
    damaged = shutil.copytree(folder / "llama", tmp_path / "damaged")
    change(damaged / name)
    with pytest.raises(LoadError, match=f"^{damaged}.*{message}"):
        transformers.AutoModelForCausalLM.from_pretrained(damaged)


def test_what_is_not_the_run_s_own_is_refused(folder, spiking, tmp_path):
    classifiers = r"architectures \['BertForSequenceClassification'\], and \['BertModel'\] is"
    attention = {"attn_implementation": "eager"}
    for name, kind, settings, message in (
        ("bert", "AutoModel", {}, classifiers),
        ("vit", CLASSES["vit"], attention, "attn_implementation sdpa, and eager is"),
    ):
        message = rf"{name}: this run has {message} asked for\. Load it with the AutoModel class"
        with pytest.raises(LoadError, match=message):
            getattr(transformers, kind).from_pretrained(folder / name, **settings)
    other = shutil.copytree(folder / "llama", tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "transformers_weights": None}))
    torch.save(spiking["llama"].state_dict(), other / "pytorch_model.bin")
    elsewhere = r"other: the weights of a run are in weights\.safetensors, and not in pytorch"
    with pytest.raises(LoadError, match=elsewhere):
        transformers.AutoModelForCausalLM.from_pretrained(other)


def test_tensors_that_transformers_would_draw_at_random_are_refused(folder, spiking, tmp_path, monkeypatch):
    from onespike.runs import quantizer

    fewer = list(quantizer.each_tensor(folder / "bert" / "weights.safetensors"))[:-1]
    monkeypatch.setattr(quantizer, "each_tensor", lambda file: iter(fewer))
    message = r"has loaded 1 tensors otherwise, .* the first\. Load the run with onespike"
    with pytest.raises(LoadError, match=message):
        transformers.AutoModelForSequenceClassification.from_pretrained(folder / "bert")


def test_calibration_while_loading(folder, spiking):
    load = transformers.AutoModelForCausalLM.from_pretrained
    config = onespike.OnespikeConfig("fast", inputs=iter([{"input_ids": IDS, "use_cache": False}]))
    snn = load(folder / "source", quantization_config=config)
    assert torch.equal(answer("llama", snn), answer("llama", spiking["llama"]))
    with pytest.raises(UsageError, match=r"nothing to calibrate on\. Give batches: inputs="):
        load(folder / "source", quantization_config=onespike.OnespikeConfig())


def test_a_repository(folder, spiking, tmp_path, monkeypatch):
    """The Hub's cache as it is after transformers has fetched what it reads; the rest is asked for, and here refused."""
    place = tmp_path / "models--me--llama"
    shutil.copytree(folder / "llama", place / "snapshots" / ("0" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    load = transformers.AutoModelForCausalLM.from_pretrained
    fetched = load("me/llama", cache_dir=tmp_path)
    assert torch.equal(answer("llama", fetched), answer("llama", spiking["llama"]))
    (place / "snapshots" / ("0" * 40) / "run.json").unlink()
    with pytest.raises(LoadError, match=r"^me/llama: neither a folder nor a repository that can be fetched"):
        load("me/llama", cache_dir=tmp_path)


def test_a_card_leaves_the_configuration_alone(folder, spiking, tmp_path):
    copy = shutil.copytree(folder / "vit", tmp_path / "vit")
    write_card(copy, license="mit")
    again = transformers.AutoModelForImageClassification.from_pretrained(copy)
    assert torch.equal(answer("vit", again), answer("vit", spiking["vit"]))
