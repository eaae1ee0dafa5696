"""What only a real process shows: Ctrl-C, a full disk, and libraries that are not installed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from command_line import CALIBRATION, TEST, VIT, Result


def run(*words: object, **options: object) -> Result:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, **options)
    return Result(done.returncode, done.stdout, done.stderr)


SLOW = """
import time
from onespike.cli import main
from onespike.tasks import Classification

read = Classification.load
def slowly(self, item):
    print("reading", flush=True)
    time.sleep(0.2)
    return read(self, item)
Classification.load = slowly
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way there")
def test_ctrl_c_while_calibrating(tmp_path):
    out = tmp_path / "new" / "run"
    words = f"convert {VIT} --preset sformer --weights random --calibrate {CALIBRATION} --out {out}".split()
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # shells ignore it in the background
    )  # fmt: skip
    assert "reading\n" in iter(process.stdout.readline, "")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    message = Result(process.returncode, "", err).message()
    assert message == "interrupted, nothing was written. Run the same command again."
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, sys
from onespike.cli import main

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
del sys.argv[1]
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the size of files cannot be limited there")
def test_a_full_disk(tmp_path, vit_run):
    file = tmp_path / "new" / "result.json"
    words = ("evaluate", vit_run, "--data", TEST, "--limit", 2, "--json", file)
    result = run(sys.executable, "-c", FULL, 100, *words)
    assert result.message() == f"{file}: the disk is full. Free some space or choose another place."
    assert "agreement" in result.out  # what was measured is not lost
    assert list(tmp_path.iterdir()) == []


BARE = """
import contextlib, io, sys

ABSENT = ("timm", "torchvision", "transformers", "safetensors", "PIL", "matplotlib", "rich", "typer")
for package in ABSENT:
    sys.modules[package] = None  # an import of it raises ImportError

import onespike
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3), torch.nn.ReLU(),
                            torch.nn.Linear(3, 1))
x = torch.randn(64, 2)
print(onespike.convert(model, onespike.calibrate(model, [x]))(x).shape)

def command(*words):
    error = io.StringIO()
    sys.argv = ["onespike", *words]
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        try:
            onespike.cli.main()
        except SystemExit as exit_:
            return exit_.code, error.getvalue().partition("next: ")[0]

import onespike.cli
print(command("--help"))
del sys.modules["typer"], sys.modules["rich"]
print(command("--help"), command("reproduce", "theorems", "--trials", "1"), command("list", "neurons"))
print(command("convert", "timm:resnet18", "--preset", "sformer", "--weights", "random", "--calibrate", "bundled:cifar10-test", "--out", "x"))
"""


def test_with_torch_alone(tmp_path):
    result = run(sys.executable, "-c", BARE, cwd=tmp_path)
    assert result.err == ""
    missing = "onespike: this needs typer. Install it with: pip install 'onespike[all]'\n"
    refused = "onespike: timm:resnet18: it needs timm. Install it with: pip install 'onespike[timm]'\n"
    assert result.out.splitlines() == [
        "torch.Size([64, 1])",
        str((2, missing)),
        "(0, '') (0, '') (0, '')",
        str((2, refused)),
    ]
    assert list(tmp_path.iterdir()) == []
