"""Runs and their records that are damaged, changed and sealed again, or none: one line that names the file."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from command_line import TEST, reseal, stored
from torch import nn

import onespike
from onespike.errors import OnespikeError
from onespike.runs.storage import load
from onespike.runtime.atomic import sha256
from onespike.runtime.validated import sealed

DATA = f"--data {TEST} --limit 2"
AGAIN = "Convert the network again."
DIFFERS = "is not the file that was saved (its SHA-256 differs)"
EDITED = "the file is damaged (it is not what was saved: its SHA-256 differs)"
DAMAGES = {
    "thresholds.safetensors": (lambda data: data[:1000], f"thresholds.safetensors {DIFFERS}"),
    "weights.safetensors": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), f"weights.safetensors {DIFFERS}"),
    "run.json, a number": (lambda data: data.replace(b'"scale": 0.25', b'"scale": 0.5'), EDITED),
    "run.json, a key": (lambda data: data.replace(b'"recipe"', b'"recipes"'), EDITED),
    "run.json, cut": (lambda data: data[:-2], "the file is damaged (invalid JSON: "),
    "weights.safetensors, gone": (None, "weights.safetensors is missing"),
}
COMMANDS = ("inspect {0}", "evaluate {0} {1}", "doctor {0} {1}", "report {0} {1}", "report {0} {0} {1}")


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_run(cli, run, kind):
    (damage, reason), file = DAMAGES[kind], run / kind.partition(",")[0]
    file.write_bytes(damage(file.read_bytes())) if damage else file.unlink()
    place = f"{run / 'run.json'}: " if reason.startswith("the file") else f"{run}: the run is damaged: "
    for words in COMMANDS:
        message = cli(words.format(run, DATA)).message()
        assert message.startswith(place + reason) and message.endswith(f". {AGAIN}")


def test_a_run_that_is_none(cli, run, tmp_path):
    missing = tmp_path / "none"
    for words in (f"inspect {missing}", f"evaluate {missing} {DATA}"):
        assert cli(words).message() == (
            f"{missing}: no run here (run.json is missing). Make one with: onespike convert … --out {missing}"
        )
    file = run / "run.json"
    file.write_text(file.read_text().replace('"version": 1,\n "network"', '"version": 2,\n "network"'))
    other = f"{file}: it has version 2, and this onespike reads 1. {AGAIN}"
    assert cli("inspect", run).message() == other
    reasons = {
        "[]": "input should be an object",
        '{"a":' + "[" * 100_000: "invalid JSON: recursion limit exceeded at line 1 column 206",
    }
    for contents, reason in reasons.items():
        file.write_text(contents)
        assert cli("inspect", run).message() == f"{file}: the file is damaged ({reason}). {AGAIN}"


def test_a_run_that_python_wrote(cli, tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    folder = onespike.spike(model, [torch.randn(8, 4)], "sformer").save_pretrained(tmp_path / "kept")
    assert cli("evaluate", folder, "--data", TEST).message() == (
        f"{folder}: this run holds the weights of a torch.nn.modules.container.Sequential without its code. Give one: "
        "onespike.from_pretrained(FOLDER, model), or --model python:FILE.py:FACTORY, which runs that file."
    )


def test_a_preprocessor_that_makes_no_image(cli, small_run, images, tmp_path):
    """A size of 0, in a run that is sealed again: the first image shows it."""
    run = shutil.copytree(small_run, tmp_path / "run")
    file = run / "network" / "preprocessor_config.json"
    file.write_text(file.read_text().replace('"height": 32', '"height": 0'))
    files = stored(run / "run.json")["files"]
    reseal(run / "run.json", files=files | {"network/preprocessor_config.json": sha256(file)})
    message = cli("evaluate", run, "--data", images).message()
    start = f"transformers:{run / 'network'}: the image processor: what it says does not fit"
    assert message.startswith(start) and message.endswith("). Mend its preprocessor_config.json.")


def variants(value: Any) -> Iterator[Any]:
    """A record with one field missing or mistyped, for every field down to the first of each list or map of sites."""
    if isinstance(value, dict):
        for name in list(value)[:8]:
            if name not in ("version", "sha256"):
                rest = {k: v for k, v in value.items() if k != name}
                yield rest
                others = (None, -1.5, "?", [], {}, [[0]], {"a": {"b": 1}}, *variants(value[name]))
                yield from ({**rest, name: other} for other in others)
    elif isinstance(value, list) and value:
        yield from ([inner, *value[1:]] for inner in (None, "?", [], {}, -7))


def test_fields_of_a_run_that_was_sealed_again(cli, small_run, tmp_path):
    """Refused in one line, or of no consequence: some fields are only shown."""
    run = shutil.copytree(small_run, tmp_path / "run")
    count = 0
    for index, variant in enumerate(variants(stored(run / "run.json"))):
        (run / "run.json").write_text(sealed({k: v for k, v in variant.items() if k != "sha256"}))
        if index % 50 == 0:  # the whole command
            result = cli("inspect", run)
            assert result.code == 0 or result.message()
        try:
            load(run)
        except OnespikeError:  # any other one is a failure
            count += 1
    assert count > 100


RECORDS = {
    "search/search.json": ("evaluate {0} {1}", "report {0} {1}"),
    "ablation/ablation.json": ("doctor {0} {1} --passes run",),
    "report/report.json": ("report {0} {0}",),
}
CONTENTS = {
    "cut": "{",
    "deep": "[" * 100_000,
    "list": "[]",
    "empty": sealed({}),
    "of another form": sealed(
        {"trials": [3], "best": 1, "objective": [], "images": {}, "energy": 5, "used": 0, "source": 1, "measured": [{"rows": 1}],
         "version": 1, "network": "x", "recipe": 3, "evaluation": []}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_other_records_of_a_run(cli, run, name, monkeypatch):
    monkeypatch.chdir(run)
    (run / name).parent.mkdir()
    for contents in CONTENTS.values():
        (run / name).write_text(contents)
        for words in RECORDS[name]:
            message = cli(words.format(run, DATA)).message()
            assert message.startswith(f"{run / name}: the file is damaged (")
    assert not (run / "onespike-compare").exists()


def test_rows_of_an_ablation_that_were_changed_and_sealed_again(cli, run):
    words = f"doctor {run} {DATA} --passes nearest"
    cli(words).good()
    file = run / "ablation" / "ablation.json"
    measured = stored(file)["measured"]
    first = next(iter(measured))
    for changed in ({"ann": {}}, {"snn": {"top1": "much"}}, {"kl": "little"}):
        reseal(file, measured=measured | {first: measured[first] | changed})
        message = cli(words).message()
        assert message.startswith(f"{file}: ") and message.endswith("Remove it to measure again.")


def test_a_damaged_study(cli, run):
    study = run / "search" / "study.db"
    study.parent.mkdir()
    words = f"search {run} --data {TEST} --limit 4 --trials 2 --resume"
    study.write_text("not a database, but long enough to be taken for one" * 100)
    assert cli(words).message().startswith("search: the storage sqlite:… cannot be used (")
    study.unlink()
    cli(words).good()
    with closing(sqlite3.connect(study)) as opened, opened:
        opened.execute("UPDATE trials SET state = 'ODD' WHERE number = 0")
    assert cli(words, "--trials", 3).message().startswith("search: the study onespike-")
