"""Networks whose weights stay on disk: one block at a time in memory, and the same figures as in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from comparisons import same_thresholds
from contract.networks import Transformer
from language_folders import llama
from onespike import calibrate, convert, evaluate, preset, spike
from onespike.adapters import load_model
from onespike.errors import CalibrationError, LoadError, UsageError
from onespike.passes.base import PassContext, PassState
from onespike.passes.statistics import Fisher, fisher
from onespike.runtime.batches import call
from onespike.runtime.devices import place_
from onespike.runtime.forward import device_of, evaluating, in_turn
from onespike.runtime.offload import Stored, blocks_of, lie_in_blocks_, parse_size, stored_in, write
from onespike.sites import Site

pytest.importorskip("accelerate", reason="accelerate is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")


PASSES = ("nearest", "layout", "center", "allocate", "weigh", "correct")


def refused(message: str):
    return pytest.raises(UsageError, match=message)


class Stack(nn.Module):
    """Several blocks with a site and a constant of their own between them, and a class token."""

    def __init__(self, block: Callable[[], nn.Module] = lambda: Inner()) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 16)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.stem(x)], 1)
        for number, block in enumerate(self.blocks):
            x = block(x) * (1 + 0.1 * number)
        return self.head(self.norm(x)[:, 0])


class Inner(Transformer):
    """A transformer's block without stem and head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Identity(), nn.Identity()

    forward = Transformer.block


def stack() -> nn.Module:
    torch.manual_seed(0)
    return Stack().eval()


def batches() -> list[Tensor]:
    return list(torch.randn(12, 7, 6, generator=torch.Generator().manual_seed(1)).split(4))


@pytest.fixture
def reads(monkeypatch) -> Counter[int]:
    """How often each tensor was read from its file."""
    numbers, read = Counter[int](), Stored.read

    def counted(self: Stored) -> Tensor:
        numbers[self.start] += 1
        return read(self)

    monkeypatch.setattr(Stored, "read", counted)
    return numbers


def in_memory(model: nn.Module) -> int:
    """Bytes of the parameters that are there."""
    there = [p for p in model.parameters() if not p.is_meta]
    return sum({p.untyped_storage().data_ptr(): p.numel() * p.itemsize for p in there}.values())


def test_what_repeats_is_a_block_and_small_things_stay():
    model = lie_in_blocks_(stack())
    blocks = blocks_of(model)
    assert [unit.name for unit in blocks.units] == ["blocks.0", "blocks.1", "blocks.2"]
    assert {n for n, p in model.named_parameters() if not p.is_meta} == {
        "token", "stem.weight", "stem.bias", "norm.weight", "norm.bias", "head.weight", "head.bias",
    }  # fmt: skip
    assert in_memory(model) == blocks.resident
    assert device_of(model) == torch.device("cpu")


def test_calibration_reads_every_block_once_and_finds_the_same(reads):
    plain, model = stack(), lie_in_blocks_(stack())
    reads.clear()
    expected = calibrate(plain, batches())
    most = list[int]()
    model.blocks[1].register_forward_hook(lambda *_: most.append(in_memory(model)))
    thresholds = calibrate(model, batches())
    assert set(reads.values()) == {1} and len(reads) == 3 * len(list(plain.blocks[0].parameters()))
    assert most == [blocks_of(model).resident + blocks_of(model).largest.size] * 3
    same_thresholds(thresholds, expected)
    assert in_memory(model) == blocks_of(model).resident


def information(model: nn.Module) -> dict[Site, Fisher]:
    recipe = preset("fast").replace(passes=(), budget=None, max_drop=None)
    state = PassState(calibrate(model, batches(), recipe), recipe)
    return fisher(state, PassContext(model, batches()))


class Branched(Stack):
    """Two blocks read one operand, whose gradient has two parts."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.norm(self.blocks[2](self.blocks[0](x) + self.blocks[1](x)))[:, 0])


@pytest.mark.parametrize("kind", [Stack, Branched])
def test_gradients_are_carried_from_block_to_block(reads, kind):
    rows = []
    for place in (nn.Module.eval, lie_in_blocks_):
        torch.manual_seed(0)
        model = place(kind().eval())
        reads.clear()
        rows.append(information(model))
    assert set(reads.values()) == {3}  # of calibration, forward and back
    assert list(rows[0]) and rows[0].keys() == rows[1].keys()
    for site, row in rows[0].items():
        other = rows[1][site]
        assert float(row.information.sum()) > 0
        assert torch.equal(row.information, other.information)
        assert torch.equal(row.magnitude, other.magnitude) and row.elements == other.elements


class Overwriting(Inner):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(1.1))


class Wrapped(SimpleNamespace):
    def __mul__(self, factor: float) -> Tensor:
        return self.value * factor


class Wrapping(Inner):
    def forward(self, x: Tensor) -> Any:
        return Wrapped(value=super().forward(x))


def test_gradients_that_cannot_be_carried_are_refused():
    with refused(r"^blocks: blocks\.0 overwrites its input, .* Leave out the passes that need them, or take"):
        information(lie_in_blocks_(Stack(Overwriting).eval()))
    with refused(r"^blocks: blocks\.0 returns a Wrapped, .* Leave out the passes that need them"):
        information(lie_in_blocks_(Stack(Wrapping).eval()))


def test_passes_and_both_networks_side_by_side(reads):
    records = []
    for model in (stack(), lie_in_blocks_(stack())):
        snn = spike(model, batches(), preset("fast").replace(passes=PASSES), share_weights=True)
        reads.clear()
        labels = torch.zeros(4, dtype=torch.long)
        records.append(evaluate(model, snn, [(x, labels) for x in batches()]).to_dict())
    assert set(reads.values()) == {1}  # for both networks and all batches
    one, other = records
    assert other["images"] == 12 and other["kl"] > 0
    assert other.pop("kl") == pytest.approx(one.pop("kl"), rel=1e-3)
    assert other["energy"] == pytest.approx(one["energy"], rel=1e-3)
    assert other["ann"] == one["ann"] and other["snn"] == one["snn"]


def test_batches_that_do_not_fit_together_go_one_after_the_other(reads):
    model = lie_in_blocks_(stack())
    blocks = blocks_of(model)
    carried = 4 * 8 * 16 * 4  # inputs × tokens × channels × bytes
    blocks.memory = blocks.resident + blocks.largest.size + 2 * carried
    reads.clear()
    thresholds = calibrate(model, batches())
    assert set(reads.values()) == {2}
    same_thresholds(thresholds, calibrate(stack(), batches()))
    blocks.memory = blocks.resident + blocks.largest.size + carried - 1
    with refused(r"^blocks: .* for the largest block, blocks\.0, and 2\.05 KB for one batch do not fit"):
        calibrate(model, batches())
    with refused(r"do not fit into .*\. Give smaller batches, or more memory\.$"):
        place_(stack(), device_map="blocks:1KB")


def test_an_error_in_one_batch_is_everyones_and_leaves_no_weights():
    model = lie_in_blocks_(stack())
    bad = [*batches(), torch.full((4, 7, 6), torch.nan)]
    with pytest.raises(CalibrationError, match="receives NaN"):
        calibrate(model, bad)
    assert in_memory(model) == blocks_of(model).resident
    with evaluating(model):
        results = in_turn(model, (partial(call, model, x) for x in batches()))
        assert next(results).shape == (4, 5)
        results.close()  # the others are not wanted any more
    assert in_memory(model) == blocks_of(model).resident


def test_a_weight_that_is_used_outside_its_block_is_refused():
    class Outside(Stack):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.blocks[0].proj.weight.sum()

    with refused(r"^blocks: a weight is used while its block does not run .*Take another"):
        calibrate(lie_in_blocks_(Outside().eval()), batches())


def test_what_needs_all_weights_is_refused():
    model = lie_in_blocks_(stack())
    with refused(r"^blocks: refit and tune change weights, .* out: passes='nearest,allocate'\.$"):
        spike(model, batches(), preset("fast").replace(passes=("nearest", "allocate", "refit", "tune")))
    norms = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval()
    with refused(r"^blocks: BatchNorm cannot be folded .* Give fold_batchnorm=False\.$"):
        spike(lie_in_blocks_(norms), [torch.randn(2, 3, 8, 8)], "sformer")


def test_a_network_from_its_files(tmp_path):
    folder = llama(tmp_path / "llama", num_hidden_layers=3)
    loaded = load_model(f"transformers:{folder}", pretrained=True, on_disk=True)
    assert all(p.is_meta for p in loaded.model.parameters())
    assert loaded.weights == loaded.with_length(8).weights == "pretrained"
    model = place_(loaded.model, device_map="blocks:1MB")
    plain = load_model(f"transformers:{folder}", pretrained=True).model
    ids = {"input_ids": torch.arange(16).view(2, 8), "use_cache": False}
    thresholds = calibrate(plain, [ids])
    snn = convert(model, calibrate(model, [ids]), share_weights=True)
    with torch.inference_mode():
        assert torch.equal(model(**ids).logits, plain(**ids).logits)
        assert torch.equal(snn(**ids).logits, convert(plain, thresholds)(**ids).logits)


def test_files_of_another_network(tmp_path):
    folder, other = llama(tmp_path / "one"), llama(tmp_path / "other", hidden_size=32)
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(LoadError, match=r"of another architecture .* without device_map=blocks\.$"):
        load_model(f"transformers:{folder}", pretrained=True, on_disk=True)


def test_stored_tensors(tmp_path):
    from safetensors.torch import load_file, save_file

    values = (torch.randn(3, 2).bfloat16(), torch.tensor(7), torch.zeros(0, 4), torch.ones(5) > 0)
    tensors = dict(zip("abcd", values, strict=True))
    save_file(tensors, tmp_path / "one.safetensors")
    stored = stored_in([tmp_path / "one.safetensors"])
    assert all(torch.equal(stored[name].read(), value) for name, value in tensors.items())
    tensors["e"] = torch.arange(3)
    write(tmp_path / "two.safetensors", {**stored, "e": tensors["e"]})
    again = load_file(tmp_path / "two.safetensors")
    assert all(torch.equal(again[name], value) for name, value in tensors.items())
    damaged = (tmp_path / "one.safetensors").read_bytes()
    for cut in (4, 60, len(damaged) - 1):
        (tmp_path / "cut.safetensors").write_bytes(damaged[:cut])
        with pytest.raises(LoadError, match=r"^.*cut\.safetensors: the file is damaged or cut short \("):
            stored_in([tmp_path / "cut.safetensors"])


@pytest.mark.parametrize("text", ["2", "GB", "-1GB", "1.2.3MB", "0KB"])
def test_sizes(text):
    with refused(r"is no size of memory\. Write for example 8GB or 500MB\.$"):
        parse_size(text)


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from onespike import calibrate
from onespike.adapters import load_model
from onespike.runtime.devices import place_

def data():
    return next(1024 * int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))

spec = f"transformers:{sys.argv[1]}"
import transformers, accelerate
loaded = load_model(spec, pretrained=True, on_disk=True)
weights = sum(p.numel() * 4 for p in loaded.model.parameters())
resource.setrlimit(resource.RLIMIT_DATA, (data() + weights // 2, resource.RLIM_INFINITY))
ids = [{"input_ids": torch.arange(16).view(2, 8) + i, "use_cache": False} for i in range(3)]
print(weights, len(calibrate(place_(loaded.model, device_map="blocks"), ids)))
try:
    calibrate(load_model(spec, pretrained=True).model, ids)
except Exception as error:
    print(error)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_weights_that_exceed_the_memory_of_the_process(tmp_path):
    """411 MB of weights in 12 blocks, and a limit that leaves half of that beside what the libraries take.

    A thread's stack, its arena and what the heap keeps for later count as well: one thread, one arena, blocks of
    memory that go back at once.
    """
    size = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 8}
    folder = llama(tmp_path / "llama", initializer_range=0.02, **size)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder)], capture_output=True, text=True, check=False, timeout=600,
        cwd=Path(__file__).parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures, message = done.stdout.splitlines()
    assert figures == f"410692608 {12 * 11 + 1}"
    assert "its weights do not fit into memory" in message and message.endswith(": device_map=blocks.")
