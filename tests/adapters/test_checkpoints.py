"""Checkpoints: every layout that is read, and every kind that is refused, word by word."""

from __future__ import annotations

import os
import pickle
from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from onespike.adapters import load_checkpoint_, read_checkpoint
from onespike.errors import LoadError

AGAIN = ". Fetch or copy it again."
CODE = (
    "this pickle holds code, which is never run, or is damaged. Fetch or copy it again, or convert it, where you trust it, "
    "to safetensors with safetensors.torch.save_file(state_dict, FILE)."
)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "w.pth"


def same(tensors, model):
    state = model.state_dict()
    return tensors.keys() == state.keys() and all(torch.equal(tensors[k], state[k]) for k in state)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin"])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model", "model_state_dict", "module"])
def test_torch_files_wrapped_or_not(tmp_path, model, suffix, wrapper):
    state = nn.DataParallel(model).state_dict() if wrapper == "state_dict" else model.state_dict()
    torch.save({wrapper: state, "epoch": 1} if wrapper else state, tmp_path / f"w{suffix}")
    assert same(read_checkpoint(tmp_path / f"w{suffix}"), model)


def test_the_old_format_and_archives_without_checksums(file, model):
    """The latter as some large trainings choose for speed."""
    torch.save(model.state_dict(), file, _use_new_zipfile_serialization=False)
    assert same(read_checkpoint(file), model)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(model.state_dict(), file)
    finally:
        torch.serialization.set_crc32_options(True)
    assert same(read_checkpoint(file), model)


def test_a_module_that_is_named_module_keeps_its_other_names(tmp_path):
    save_file({"module.a": torch.zeros(1), "b": torch.ones(1)}, tmp_path / "w.safetensors")
    assert set(read_checkpoint(tmp_path / "w.safetensors")) == {"module.a", "b"}


def refusal(path, read=read_checkpoint) -> str:
    """What is said, after the name of the file."""
    with pytest.raises(LoadError) as error:
        read(path)
    place, _, message = str(error.value).partition(": ")
    assert place == str(path) and "\n" not in message
    return message


def test_files_that_are_no_checkpoint(tmp_path):
    (tmp_path / "folder.pth").mkdir()
    (tmp_path / "w.h5").touch()
    for name in ("none.pth", "folder.pth"):
        assert refusal(tmp_path / name) == "no such checkpoint file. Check the path given to weights=."
    remedy = "Give a file that ends in .safetensors, .pth, .pt, .bin."
    assert refusal(tmp_path / "w.h5") == f"checkpoints of this kind cannot be read. {remedy}"


@pytest.mark.parametrize("length", [0, 4, 100, 0.5, 0.99, "text"])
@pytest.mark.parametrize("kind", ["w.safetensors", "w.pth", "old.pth"])
def test_cut_short_or_something_else(tmp_path, model, kind, length):
    path = tmp_path / kind
    if kind == "w.safetensors":
        save_file(model.state_dict(), path)
    else:
        torch.save(model.state_dict(), path, _use_new_zipfile_serialization=kind == "w.pth")
    whole = path.read_bytes()
    if length == "text":
        path.write_text("<html>Not found</html>" * 20)
    else:
        path.write_bytes(whole[: length if isinstance(length, int) else int(length * len(whole))])
    message = refusal(path)
    # torch says the same of code and of a name that is cut short
    if kind == "w.safetensors" or message != CODE:
        assert message.startswith("the file is damaged or cut short (") and message.endswith(f"){AGAIN}")


class Code:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("kind", ["zip", "old", "plain", "module"])
def test_a_pickle_with_code_is_refused_and_not_run(file, model, monkeypatch, kind):
    monkeypatch.chdir(file.parent)
    if kind == "plain":
        file.write_bytes(pickle.dumps({"a": Code()}))
    else:
        code = model if kind == "module" else {"a": Code()}
        torch.save(code, file, _use_new_zipfile_serialization=kind != "old")
    assert refusal(file) == CODE
    assert not (file.parent / "ran").exists()


@pytest.mark.parametrize("contents", [[1, 2], {}, {"a": 1}, torch.zeros(3), {"state_dict": {}}])
def test_not_a_state_dict(file, contents):
    torch.save(contents, file)
    assert refusal(file) == ("no state dict in it. Save one with torch.save(model.state_dict(), FILE).")


def test_another_architecture(file, model):
    torch.save(model.state_dict(), file)
    other = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 2))
    before = {k: v.clone() for k, v in other.state_dict().items()}
    assert refusal(file, partial(load_checkpoint_, other)) == (
        "the checkpoint is of another architecture than Sequential, which has 6 tensors: 2 missing, first "
        "3.weight; 5 unexpected, first 1.weight; 2 of another shape, first 0.weight (4×3 instead of 5×3). "
        "Name the network that the weights were trained for."
    )
    assert same(before, other)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int8, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_that_are_not_real_numbers_are_refused(tmp_path, model, dtype, suffix):
    path, state = tmp_path / f"w{suffix}", model.state_dict()
    state["2.weight"] = (state["2.weight"] * 10).to(dtype)
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    kind = str(dtype).removeprefix("torch.")
    assert refusal(path, partial(load_checkpoint_, model)) == (
        f"the tensor 2.weight is of type {kind}, and the network needs float32. "
        "Save the weights as floating-point numbers, with the scales of quantized ones applied."
    )


@pytest.mark.parametrize("dtype", [torch.half, torch.double])
def test_other_precisions_become_the_models_type_where_it_holds_them(file, model, dtype):
    model[1].num_batches_tracked.fill_(7)
    torch.save({k: v.to(dtype) for k, v in model.state_dict().items()}, file)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    load_checkpoint_(other, file)
    assert other[0].weight.dtype == torch.float32
    assert torch.equal(other[0].weight, model[0].weight.to(dtype).float())
    assert int(other[1].num_batches_tracked) == 7  # which was cast with the weights


@pytest.mark.parametrize(("name", "value", "target"), [
    ("2.bias", torch.tensor([0.0, -1e300], dtype=torch.double), "-1e+300, which float32"),
    ("1.num_batches_tracked", torch.tensor(0.5), "0.5, which int64"),
])  # fmt: skip
def test_numbers_that_the_model_cannot_hold(file, model, name, value, target):
    torch.save({**model.state_dict(), name: value}, file)
    assert refusal(file, partial(load_checkpoint_, model)) == (
        f"the tensor {name} holds {target} does not. Check the weights, or scale them down."
    )


def test_a_flipped_bit_in_the_numbers_of_an_archive(file, model):
    torch.save(model.state_dict(), file)
    data, weight = bytearray(file.read_bytes()), model[0].weight.detach().numpy().tobytes()
    data[data.index(weight) + 5] ^= 4
    file.write_bytes(data)
    reason = "its part w/data/0 has another checksum"
    assert refusal(file) == f"the file is damaged or cut short ({reason}){AGAIN}"
