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


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def same(tensors, model):
    state = model.state_dict()
    return tensors.keys() == state.keys() and all(torch.equal(tensors[k], state[k]) for k in state)


@pytest.mark.parametrize(
    ("suffix", "wrapper"),
    [
        (".pth", None),
        (".pt", "state_dict"),
        (".bin", "model"),
        (".pth", "model_state_dict"),
        (".pth", "module"),
    ],
)
def test_torch_files_wrapped_or_not(tmp_path, model, suffix, wrapper):
    state = model.state_dict()
    torch.save({wrapper: state, "epoch": 1} if wrapper else state, tmp_path / f"w{suffix}")
    assert same(read_checkpoint(tmp_path / f"w{suffix}"), model)


def test_data_parallel_prefix_inside_a_wrapper_and_the_old_format(tmp_path, model):
    state = nn.DataParallel(model).state_dict()
    assert all(k.startswith("module.") for k in state)
    torch.save({"state_dict": state}, tmp_path / "w.pth")
    torch.save(model.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert same(read_checkpoint(tmp_path / "w.pth"), model) and same(
        read_checkpoint(tmp_path / "old.pth"), model
    )


def test_a_module_that_is_named_module_keeps_its_other_names(tmp_path):
    save_file({"module.a": torch.zeros(1), "b": torch.ones(1)}, tmp_path / "w.safetensors")
    assert set(read_checkpoint(tmp_path / "w.safetensors")) == {"module.a", "b"}


def test_half_precision_weights_become_the_models_type(tmp_path, model):
    half = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    save_file(half, tmp_path / "w.safetensors")
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    load_checkpoint_(other, tmp_path / "w.safetensors")
    assert other[0].weight.dtype == torch.float32
    assert torch.equal(other[0].weight, model[0].weight.half().float())


def refusal(path, read=read_checkpoint) -> str:
    with pytest.raises(LoadError) as error:
        read(path)
    return str(error.value)


def test_files_that_are_no_checkpoint(tmp_path):
    (tmp_path / "folder.pth").mkdir()
    (tmp_path / "w.h5").touch()
    for name, message in (
        ("none.pth", "no such checkpoint file. Check the path given to weights=."),
        ("folder.pth", "no such checkpoint file. Check the path given to weights=."),
        (
            "w.h5",
            "checkpoints of this kind cannot be read. Give a file that ends in .safetensors, .pth, .pt, .bin.",
        ),
    ):
        assert refusal(tmp_path / name) == f"{tmp_path / name}: {message}"


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, 0.99])
@pytest.mark.parametrize("kind", ["w.safetensors", "w.pth", "old.pth"])
def test_cut_short(tmp_path, model, kind, kept):
    path = tmp_path / kind
    if kind == "w.safetensors":
        save_file(model.state_dict(), path)
    else:
        torch.save(model.state_dict(), path, _use_new_zipfile_serialization=kind == "w.pth")
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    message = refusal(path)
    assert message.startswith(f"{path}: the file is damaged or cut short (")
    assert message.endswith(f"){AGAIN}")
    assert "\n" not in message


class Code:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("kind", ["zip", "old", "plain"])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.pth"
    if kind == "plain":
        path.write_bytes(pickle.dumps({"a": Code()}))
    else:
        torch.save({"a": Code()}, path, _use_new_zipfile_serialization=kind == "zip")
    assert refusal(path) == (
        f"{path}: this pickle holds code, which is never run. Convert the file, where you trust it, to "
        "safetensors with safetensors.torch.save_file(state_dict, FILE)."
    )
    assert not (tmp_path / "ran").exists()


def test_a_pickled_model_holds_code_too(tmp_path, model):
    torch.save(model, tmp_path / "w.pth")
    assert "this pickle holds code" in refusal(tmp_path / "w.pth")


@pytest.mark.parametrize("contents", [[1, 2], {}, {"a": 1}, torch.zeros(3), {"state_dict": {}}])
def test_not_a_state_dict(tmp_path, contents):
    path = tmp_path / "w.pth"
    torch.save(contents, path)
    assert refusal(path) == (
        f"{path}: this file holds no state dict. Save one with torch.save(model.state_dict(), FILE)."
    )


def test_plain_pickles_and_text_are_no_checkpoints(tmp_path):
    (tmp_path / "w.pth").write_bytes(pickle.dumps({"a": 1}))
    assert "this file holds no state dict" in refusal(tmp_path / "w.pth")
    for name in ("w.pth", "w.safetensors"):
        (tmp_path / name).write_text("<html>Not found</html>" * 20)
        assert "the file is damaged or cut short" in refusal(tmp_path / name)


def test_another_architecture(tmp_path, model):
    path = tmp_path / "w.pth"
    torch.save(model.state_dict(), path)
    other = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 2))
    before = {k: v.clone() for k, v in other.state_dict().items()}
    assert refusal(path, partial(load_checkpoint_, other)) == (
        f"{path}: the checkpoint is of another architecture than Sequential, which has 6 tensors: 2 missing, first "
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
        f"{path}: the tensor 2.weight is of type {kind}, and the network needs float32. "
        "Save the weights as floating-point numbers, with the scales of quantized ones applied."
    )


def test_double_precision_is_taken_where_float32_holds_it(tmp_path, model):
    path = tmp_path / "w.pth"
    state = {k: v.double() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    torch.save(state, path)
    load_checkpoint_(model, path)
    state["2.weight"][1, 3] = -1e300
    torch.save(state, path)
    assert refusal(path, partial(load_checkpoint_, model)) == (
        f"{path}: the tensor 2.weight holds -1e+300, which float32 does not. Check the weights, or scale them down."
    )


def test_counters_that_were_cast_with_the_weights_are_taken(tmp_path, model):
    path = tmp_path / "w.pth"
    model[1].num_batches_tracked.fill_(7)
    torch.save({k: v.half() for k, v in model.state_dict().items()}, path)
    model[1].num_batches_tracked.zero_()
    load_checkpoint_(model, path)
    assert int(model[1].num_batches_tracked) == 7
    torch.save({**model.state_dict(), "1.num_batches_tracked": torch.tensor(0.5)}, path)
    assert refusal(path, partial(load_checkpoint_, model)) == (
        f"{path}: the tensor 1.num_batches_tracked holds 0.5, which int64 does not. "
        "Check the weights, or scale them down."
    )


def test_a_flipped_bit_in_the_numbers_of_an_archive(tmp_path, model):
    torch.save(model.state_dict(), file := tmp_path / "w.pth")
    data, weight = bytearray(file.read_bytes()), model[0].weight.detach().numpy().tobytes()
    data[data.index(weight) + 5] ^= 4
    file.write_bytes(data)
    assert (
        refusal(file)
        == f"{file}: the file is damaged or cut short (its part w/data/0 has another checksum){AGAIN}"
    )


def test_an_archive_without_checksums(tmp_path, model):
    """As some large trainings choose for speed."""
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(model.state_dict(), tmp_path / "w.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert same(read_checkpoint(tmp_path / "w.pth"), model)
