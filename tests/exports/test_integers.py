"""The format for chips: NumPy alone reproduces every spike, and integer thresholds decide as the neurons do."""

from __future__ import annotations

import copy
import hashlib
import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import onespike
from exports.small import AFFINE, TOKENS, Attention, Back, Convolutions, Deep, InPlace, Pools, small
from onespike.deploy.exports import Exported
from onespike.deploy.exports.base import hardware, verify
from onespike.deploy.exports.integers import Replay
from onespike.deploy.exports.record import NetworkRecord, schema
from onespike.errors import LoadError, UsageError
from onespike.recipe import Recipe, preset
from onespike.runtime.validated import parse, sealed

SCRIPT = Path(__file__).parents[2] / "examples" / "replay_integers.py"
FILES = ("network.safetensors", "golden.safetensors", "schema.json")
CHIP = preset("chip", passes=("nearest",), budget=None)


CASES = {
    "convolutions": (Convolutions, None),
    "affine attention": (Attention, AFFINE),
    "steps by token": (Attention, TOKENS),
    "affine convolutions": (Convolutions, AFFINE),
    "in place, affine": (InPlace, AFFINE),
    "pools and functions": (Pools, CHIP),
    "convolutions there and back": (Back, CHIP),
    "a chain": (Deep, Recipe(percentile=0.0)),
}


def written(kind: type[nn.Module], recipe: Recipe | None, out: Path) -> Exported:
    snn, batches = small(kind, recipe)
    return onespike.export(snn, "integers", out, batches, facts={"scale": 0.25})


@pytest.mark.parametrize(("kind", "recipe"), CASES.values(), ids=CASES)
def test_numpy_reproduces_every_spike(kind: type[nn.Module], recipe: Recipe | None, tmp_path: Path) -> None:
    done = written(kind, recipe, tmp_path / "a")
    # the network itself rounds to float32 between products
    assert done.comparison.differ <= done.comparison.counts // 1000 and done.comparison.active > 50
    compared, differ, apart = runpy.run_path(str(SCRIPT))["replay"](tmp_path / "a")
    assert compared > 100 and differ == 0 and apart < 1e-5


def test_every_site_of_a_chip_compares_integers(tmp_path: Path) -> None:
    for kind in (Pools, Back):
        done = written(kind, CHIP, tmp_path / kind.__name__)
        record = Replay.read(done.file).record
        assert all(site["thresholds"] is not None for site in record["sites"].values())
        assert not any("mean" in node["op"] or "adaptive" in node["op"] for node in record["nodes"])
        values = [len(site["values"]) for site in record["sites"].values()]
        assert max(values) <= 256 and "levels" not in json.dumps(record["nodes"])


@pytest.mark.parametrize(
    "recipe",
    [CHIP, Recipe(passes=("nearest", "positions"), payload_bits=3), Recipe(levels="linear:3")],
    ids=["chip", "positions", "two populations"],
)
def test_attention_multiplies_counts_with_counts(recipe: Recipe, tmp_path: Path) -> None:
    done = written(Attention, recipe, tmp_path / "a")
    ops = [node["op"] for node in Replay.read(done.file).record["nodes"]]
    assert not {"aten.matmul.default", "aten.bmm.default", "aten.baddbmm.default"} & set(ops)
    assert sum("spikes.matmul" in op for op in ops) >= 2
    assert done.comparison.differ <= done.comparison.counts // 1000
    assert runpy.run_path(str(SCRIPT))["replay"](done.file)[1] == 0
    snn, batches = small(Attention, recipe)
    products = [row.name for row in hardware(snn, batches).operations if "product of two" in row.name]
    assert set(products) == {"product of two counts"}


def test_sums_are_computed_once_for_all_neurons_that_read_them(tmp_path: Path) -> None:
    nodes = Replay.read(written(Attention, CHIP, tmp_path / "a").file).record["nodes"]
    sums = [json.dumps(node["args"]) for node in nodes if node["op"].endswith("_sums")]
    assert len(sums) == len(set(sums)) > 2


def test_neurons_with_the_same_thresholds_share_a_row(tmp_path: Path) -> None:
    recipe = Recipe(passes=("nearest", "positions"), payload_bits=3)
    done = written(Attention, recipe, tmp_path / "a")
    replay = Replay.read(done.file)
    shared = {name: site for name, site in replay.record["sites"].items() if site["rows"] is not None}
    assert shared
    for site in shared.values():
        table, rows = replay.tensors[site["thresholds"]], replay.tensors[site["rows"]]
        assert table.dim() == 2 and len(table.unique(dim=0)) == len(table) < rows.numel()
        assert torch.equal(rows.unique(), torch.arange(len(table)))
    assert done.comparison.differ <= done.comparison.counts // 1000
    assert runpy.run_path(str(SCRIPT))["replay"](done.file)[1] == 0


def test_golden_inputs_are_as_many_as_asked(tmp_path: Path) -> None:
    snn, batches = small(Deep)
    onespike.export(snn, "integers", tmp_path / "a", batches, golden=7)
    record = json.loads((tmp_path / "a" / "network.json").read_text())
    assert {site["shape"][0] for site in record["sites"].values()} == {7}
    done = verify(tmp_path / "a")
    assert (done.comparison.inputs, done.comparison.differ) == (7, 0)
    assert runpy.run_path(str(SCRIPT))["replay"](tmp_path / "a")[1] == 0
    for golden, words in ((0, "golden=0 is not from 1 to"), (10**6, "Give more inputs with limit=")):
        with pytest.raises(UsageError, match=words):
            onespike.export(snn, "integers", tmp_path / "b", batches, golden=golden)


def test_an_existing_file_is_checked_again(tmp_path: Path) -> None:
    snn, batches = small(Deep)
    integers, program = tmp_path / "a", tmp_path / "a.pt2"
    first = onespike.export(snn, "integers", integers, batches)
    onespike.export(snn, "pt2", program, batches)
    again = verify(integers, snn, batches)
    assert again.comparison == first.comparison
    assert set(again.files) == {*FILES, "network.json"}
    done = verify(program, snn, tuple(batches))
    assert (done.comparison.counts, done.comparison.answers_differ, list(done.files)) == (0, 0, ["."])
    with pytest.raises(UsageError, match=r"a\.pt2 holds no golden spikes\. Give the run"):
        verify(program)
    program.write_bytes(program.read_bytes() + b"0")
    with pytest.raises(
        LoadError, match=r"a\.pt2: the export is damaged: it is not the file .* Export it again\."
    ):
        verify(program, snn, batches)
    record = json.loads((integers / "network.json").read_text())
    resealed(integers, record | {"fraction": 19})
    with pytest.raises(LoadError, match="the export is damaged"):
        verify(integers)
    report = tmp_path / "a.verified.json"
    report.write_text(report.read_text().replace('"integer"', '"float"', 1))
    with pytest.raises(LoadError, match="its SHA-256 differs"):
        verify(integers)
    report.unlink()
    with pytest.raises(LoadError, match="no such file, which says what the export was"):
        verify(integers)


def test_a_wrong_weight_is_found(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    written(Deep, None, tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "network.safetensors")
    weights = {name: -tensor for name, tensor in tensors.items() if tensor.dtype == torch.int8}
    tensors |= weights
    save_file(tensors, tmp_path / "a" / "network.safetensors")
    assert "its SHA-256 differs" in refused(tmp_path / "a")
    assert "a SHA-256 differs" in replayed(tmp_path / "a")
    record = json.loads((tmp_path / "a" / "network.json").read_text())
    resealed(tmp_path / "a", record)
    assert runpy.run_path(str(SCRIPT))["replay"](tmp_path / "a")[1] > 0


def resealed(folder: Path, record: dict[str, Any]) -> None:
    """Write a record with the checksums that fit the folder."""
    digests = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in record["files"]}
    record = {key: value for key, value in record.items() if key != "sha256"} | {"files": digests}
    (folder / "network.json").write_text(sealed(record))


def refused(folder: Path) -> str:
    """The one line with which the library refuses a folder."""
    with pytest.raises(LoadError) as error:
        Replay.read(folder)(small(Deep)[1][0])
    assert "\n" not in str(error.value) and str(error.value).endswith("Export it again.")
    return str(error.value)


def replayed(folder: Path) -> str:
    """The one line with which the script refuses a folder."""
    ended = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert ended.stderr.endswith("Export it again.\n")
    return ended.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "a"
    written(Deep, None, out)
    return out


@pytest.mark.parametrize("name", ["network.json", "network.safetensors", "golden.safetensors", "schema.json"])
def test_any_damage_is_refused(folder: Path, name: str, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "a")
    file = tmp_path / "a" / name
    contents = file.read_bytes()
    random = Random(0)
    for place in random.sample(range(len(contents)), 20):
        # of JSON, digits: another space would say the same
        place = contents.find(b"1", place) if name == "network.json" else place
        file.write_bytes(contents[:place] + bytes([contents[place] ^ 1]) + contents[place + 1 :])
        refused(tmp_path / "a")
    file.unlink()
    assert "is missing" in refused(tmp_path / "a")
    replayed(tmp_path / "a")


RUNS = {
    "a library": ("load_library.__call__", {"path": "canary.so"}),
    "a file that torch makes": ("aten.from_file", {"filename": "canary", "shared": True, "size": 4}),
    "a file that torch saves": ("aten.save", {"self": 1, "f": "canary"}),
    "a pickle that NumPy reads": ("load", {"file": "canary.npy", "allow_pickle": True}),
    "no operation": ("aten.no_such", {}),
    "no such argument": ("aten.relu.default", {"x": 1}),
    "Python": ("__class__.__subclasses__", {}),
}


@pytest.mark.parametrize(("op", "args"), RUNS.values(), ids=RUNS)
def test_a_record_runs_operations_only(
    folder: Path, op: str, args: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    record = json.loads((folder / "network.json").read_text())
    record["nodes"][0] |= {"op": op, "args": args}
    resealed(tmp_path / "a", record)
    assert "what it says does not fit together" in refused(tmp_path / "a")
    assert op in replayed(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


class Chain(nn.Sequential):
    """A linear map, a function, and linear maps whose neurons fire behind it, on both signs."""

    def __init__(self, *functions: nn.Module) -> None:
        super().__init__(nn.Linear(6, 16), nn.Sequential(*functions), nn.Linear(16, 12), nn.Linear(12, 3))


FUNCTIONS: dict[str, Callable[[], list[nn.Module]]] = {
    "nothing": list,
    "ReLU": lambda: [nn.ReLU()],
    "GELU": lambda: [nn.GELU()],
    "GELU by tanh": lambda: [nn.GELU("tanh")],
    "SiLU": lambda: [nn.SiLU()],
    "Mish": lambda: [nn.Mish()],
    "sigmoid": lambda: [nn.Sigmoid()],
    "tanh": lambda: [nn.Tanh()],
    "Hardswish": lambda: [nn.Hardswish()],
    "Hardsigmoid": lambda: [nn.Hardsigmoid()],
    "ELU, LeakyReLU": lambda: [nn.ELU(), nn.LeakyReLU()],
    "BatchNorm, GELU": lambda: [nn.BatchNorm1d(16), nn.GELU()],
    "views, ReLU6": lambda: [nn.Unflatten(1, (4, 4)), nn.ReLU6(), nn.Flatten()],
}
CODES = {
    "one step": Recipe(io="spiking", levels="linear:4"),
    "by channel": Recipe(io="spiking", levels="linear:4", granularity="channel"),
    "centers": Recipe(io="spiking", levels="linear:4", passes=("nearest", "center")),
}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_thresholds_fire_as_the_neuron_behind_the_function(function: str, code: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Chain(*FUNCTIONS[function]()).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):  # also channels that it turns over
            nn.init.normal_(module.weight)
            nn.init.normal_(module.running_mean)  # type: ignore[arg-type]
    batches = [torch.randn(16, 6) for _ in range(2)]
    snn = onespike.spike(model, batches, CODES[code])
    done = onespike.export(snn, "integers", tmp_path / "a", batches)
    assert done.comparison.differ <= done.comparison.counts // 500
    record, replay = Replay.read(tmp_path / "a").record, Replay.read(tmp_path / "a")
    site = record["sites"]["2:linear0_input"]
    assert site["fraction"] == 0, "it compares the sums of the product themselves"
    assert not any(node["op"].startswith("aten.gelu") for node in record["nodes"])
    thresholds = replay.tensors[site["thresholds"]]
    rows = None if site["rows"] is None else replay.tensors[site["rows"]]
    thresholds = (thresholds if rows is None else thresholds[rows.long()]).expand(1, 16, -1)
    integer = onespike.optimize(snn, integer_units=True)
    product, expected = integer[0].integer_linear0_input, integer[2].neurons.linear0_input.code()
    largest = product.most * int(product.weight.int().abs().sum(1).max())
    # at every threshold and beside it, [sums, channels]; those beyond the largest sum stand for always and never
    cuts = thresholds[0].double()
    near = torch.cat([cuts + offset for offset in (-1, 0, 1)], -1).clamp(-largest, largest).t()
    sign = None if site["sign"] is None else replay.tensors[site["sign"]]
    fired = torch.ops.spikes.compare(near, thresholds, None, sign, site["values"], 0, "")
    value = near * product.scale.double() + product.bias.double()
    with torch.no_grad():
        behind = copy.deepcopy(snn[1]).double()(value)
        marks = expected._replace(
            **{part: v.double() for part, v in expected._asdict().items() if torch.is_tensor(v)}
        )
        assert torch.equal(fired, marks.fire(behind))
    assert fired.unique().numel() > 2


def test_record_and_schema(tmp_path: Path) -> None:
    written(Convolutions, None, tmp_path / "a")
    text = (tmp_path / "a" / "network.json").read_bytes()
    record = json.loads(text)
    parse(NetworkRecord, text, "network.json", "")
    assert json.loads((tmp_path / "a" / "schema.json").read_text()) == schema()
    published = SCRIPT.parents[1] / "docs" / "integers.schema.json"
    assert json.loads(published.read_text()) == schema()
    assert record["version"] == 5 and record["facts"] == {"scale": 0.25}
    ops = {node["op"] for node in record["nodes"]}
    assert {"spikes.compare", "spikes.conv", "spikes.conv_sums"} <= ops
    events = Replay.read(tmp_path / "a")(small(Convolutions)[1][0]).counts
    assert np.prod(record["sites"][events[0][0]]["shape"]) == events[0][1].numel()
    (tmp_path / "a" / "network.json").write_text('{"version": 5, "format": 1}')
    with pytest.raises(LoadError, match="the file is damaged"):
        Replay.read(tmp_path / "a")
