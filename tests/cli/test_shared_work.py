"""Two real processes on one machine, as a launcher starts them: the same numbers as one, one voice, one fate."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import CALIBRATION, VIT
from torch import nn

from contract.networks import mlp, rows, sequences, transformer
from onespike import Recipe
from onespike.errors import UsageError
from onespike.evaluation.side_by_side import evaluate
from onespike.runtime.processes import Processes, launched

WORKER = """
import contextlib, io, json, sys
from pathlib import Path

import onespike.cli

def command(words):
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["onespike", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            onespike.cli.main()
        except SystemExit as exit_:
            return exit_.code or 0, out.getvalue(), err.getvalue()

print(json.dumps([command(words) for words in json.loads(sys.argv[1])]))
"""

CALIBRATED = """
import sys
sys.path[:0] = sys.argv[1:]
from comparisons import same_thresholds
from test_shared_work import CASES
from onespike import calibrate
from onespike.runtime.processes import launched

processes = launched()
for network, batches, recipe in CASES.values():
    mine = batches()[processes.rank :: processes.count]
    with processes.one_fate():
        shared = calibrate(network(), mine, recipe, processes=processes)
    same_thresholds(shared, calibrate(network(), batches(), recipe))
"""


class Norms(nn.Module):
    """A convolution whose BatchNorm can be folded, and one that two read: the batch decides which path runs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.other = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        return (self.other(x) if len(x) % 2 else x).mean((2, 3))


def split(make, sizes):
    def batches():
        torch.manual_seed(7)
        return [make(n) for n in sizes]

    return batches


def seeded(make):
    def network():
        torch.manual_seed(1)
        return make().eval()

    return network


CASES = {
    "uneven shares": (seeded(mlp), split(rows, (4, 3, 1)), Recipe()),
    "an empty share": (seeded(mlp), split(rows, (4,)), Recipe()),
    "channels": (seeded(mlp), split(rows, (4, 4, 4, 1)), Recipe(granularity="channel")),
    "attention": (seeded(transformer), split(sequences, (2, 3, 1)), Recipe(softmax="head")),
    "paths and norms": (seeded(Norms), split(lambda n: torch.randn(n, 3, 6, 6), (2, 3, 2, 1)), Recipe()),
}


def two(words: list[str], second: list[str] | None = None) -> list[subprocess.Popen]:
    """Two processes of one group; the second may run something else."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", *(second if rank and second else words)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **known, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]  # fmt: skip


def ended(processes: list[subprocess.Popen]) -> list[str]:
    """What they printed, once both have ended well."""
    found = [process.communicate(timeout=900) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], found
    return [out for out, _ in found]


@pytest.fixture(scope="module")
def damaged(images, tmp_path_factory):
    """Ten images, of which the third cannot be read: in batches of two, the second process finds it."""
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree(images, folder / "images")
    (folder / "images" / "1" / "2.png").write_bytes(b"no image")
    return folder / "images"


@pytest.fixture(scope="module")
def both(vit_run, vit_weights, images, damaged, tmp_path_factory):
    """All commands below in one pair of processes: (exit code, output, errors) of each, and their folder."""
    folder = tmp_path_factory.mktemp("both")
    evaluated = ["evaluate", str(vit_run), "--batch-size", "2", "--data"]
    commands = [
        [*evaluated, str(images), "--json", str(folder / "evaluated.json")],
        [*evaluated, str(images), "--limit", "2", "--json", str(folder / "few.json")],
        ["convert", VIT, "--preset", "sformer", "--weights", str(vit_weights), "--calibrate", CALIBRATION, "--limit", "10",
         "--batch-size", "4", "--out", str(folder / "run")],
        [*evaluated, str(damaged), "--json", str(folder / "damaged.json")],
        ["evaluate", str(folder / "absent"), "--data", str(images)],
        ["evaluate", str(vit_run), "--data", str(images), "--json", str(folder / "run" / "run.json" / "x")],
        ["inspect", str(vit_run)],
        ["list", "nothing"],
        ["--nonsense"],
    ]  # fmt: skip
    outs = ended(two([WORKER, json.dumps(commands)]))
    return folder, [tuple(map(tuple, pair)) for pair in zip(*map(json.loads, outs), strict=True)]


def assert_same_figures(found: Path, expected: Path) -> None:
    """Equal but for clock and command, and for the order in which 10 images × 10 classes were summed in double precision:
    100 terms below 10, each rounded by at most 2⁻⁵³ of their sum, 100·100·10·2⁻⁵³ ≈ 1e-11 in all. The square of a
    standard error moves by as much, so that one of 10⁻⁴ and more moves by half of 1e-11/10⁻⁴ at most.
    """
    left, right = (json.loads(file.read_text()) for file in (found, expected))
    assert left.pop("kl") == pytest.approx(right.pop("kl"), rel=0, abs=1e-11)
    if "kl_standard_error" in right:
        assert left.pop("kl_standard_error") == pytest.approx(right.pop("kl_standard_error"), rel=0, abs=1e-7)
    bounds = [record.get("intervals", {}).pop("kl", None) for record in (left, right)]
    assert bounds[0] == pytest.approx(bounds[1], rel=0, abs=1e-6)  # an error times 1.96
    del left["seconds"], right["seconds"], left["made"], right["made"]
    assert left == right


@pytest.mark.parametrize(("number", "name", "limit"), [(0, "evaluated", 10), (1, "few", 2)])
def test_evaluation_gives_the_same_numbers(cli, both, vit_run, images, tmp_path, number, name, limit):
    folder, results = both
    assert [code for code, _, _ in results[number]] == [0, 0], results[number]
    one = tmp_path / "one.json"
    words = ("evaluate", vit_run, "--data", images, "--batch-size", 2, "--limit", limit, "--json", one)
    cli(*words).good()
    assert_same_figures(folder / f"{name}.json", one)


def test_calibration_gives_equal_thresholds(cli, both, vit_weights, tmp_path):
    folder, results = both
    assert [code for code, _, _ in results[2]] == [0, 0], results[2]
    words = (f"convert {VIT} --preset sformer --weights {vit_weights} --calibrate {CALIBRATION} --limit 10",)
    cli(*words, "--batch-size", 4, "--out", tmp_path / "run").good()
    for name in ("run.json", "thresholds.safetensors", "weights.safetensors"):
        assert (folder / "run" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_only_the_first_process_speaks(both):
    for first, second in both[1]:
        assert second[1:] == ("", "")
        assert first[0] == second[0]
        assert first[1] or first[2]


@pytest.mark.parametrize(("number", "message"), [
    (3, "1/2.png: the image cannot be read (it is no BMP, GIF, JPEG, PNG, PPM, TIFF or WEBP). Replace or remove it."),
    (4, "absent: no run here (run.json is missing). Make one with: "),
    (5, "run.json/x: a part of this path is a file. Choose another place."),
    (7, "unknown list 'nothing'. Known: columns, fields, formats, models, neurons, passes, presets, profiles."),
])  # fmt: skip
def test_a_failure_is_everyones_and_said_once(both, number, message):
    (code, _, err), (other, _, _) = both[1][number]
    assert (code, other) == (2, 2)
    lines = [line for line in err.splitlines() if not line.endswith(" s left")]
    assert len(lines) == 1
    assert lines[0].startswith("onespike: ") and message in lines[0]
    assert not (both[0] / "damaged.json").exists()


def test_other_commands_run_in_the_first_process(both):
    (code, out, _), (other, _, _) = both[1][6]
    assert (code, other) == (0, 0)
    assert "what stands there" in out
    assert [code for code, _, _ in both[1][8]] == [2, 2]


def test_thresholds_do_not_depend_on_the_split():
    here = Path(__file__).parent
    ended(two([CALIBRATED, str(here), str(here.parent)]))


def test_a_process_that_dies_leaves_nobody_waiting(vit_run, images):
    dying = "import os, onespike.runtime.processes as p; p.launched(); os._exit(7)"
    waiting, gone = two([WORKER, json.dumps([["evaluate", str(vit_run), "--data", str(images)]])], [dying])
    out, _ = waiting.communicate(timeout=900)
    gone.communicate()
    [(code, _, err)] = json.loads(out)
    assert code == 2
    assert "process 0: another process ended before its work was done. See its message" in err


def test_accelerate_launches_it(both, vit_run, images, tmp_path):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    file = tmp_path / "launched.json"
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2",
               "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
               "-m", "onespike", "evaluate", str(vit_run), "--batch-size", "2", "--data", str(images),
               "--json", str(file)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agreement") == 1
    assert_same_figures(file, both[0] / "evaluated.json")


def test_alone(monkeypatch):
    assert launched().part == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(
        UsageError, match=r"^RANK and WORLD_SIZE must be numbers .* set by accelerate launch and torchrun\.$"
    ):
        launched()


def test_processes_that_nobody_started(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = r"^WORLD_SIZE is 2, and the other processes cannot be reached \(.*\)\. Start them with accelerate launch"
    with pytest.raises(UsageError, match=message):
        launched()


def test_a_metric_that_cannot_be_shared():
    class Metric:
        pass

    with pytest.raises(UsageError, match=r"^evaluate: processes cannot share Metric\. Run it in one\.$"):
        evaluate(nn.Identity(), nn.Identity(), [], Metric(), processes=Processes(0, 2))
