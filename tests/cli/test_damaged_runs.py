"""Runs and their records that are damaged, changed and sealed again, or none: one line that names the file."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import TEST
from torch import nn

import onespike
from onespike.errors import OnespikeError
from onespike.runtime.atomic import sha256

DATA = f"--data {TEST} --limit 2"
AGAIN = "Convert the network again."


def seal(record: dict[str, Any]) -> str:
    """As the package does it, but for anyone: a seal protects from damage, not from intent."""
    record = {k: v for k, v in record.items() if k != "sha256"}
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    return json.dumps({**record, "sha256": digest})


def refusal(read: Callable[[], object]) -> str | None:
    """What an error of ours says; any other one is a failure."""
    try:
        read()
    except OnespikeError as error:
        return str(error)
    return None


def cut(run: Path) -> None:
    file = run / "thresholds.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def flip(run: Path) -> None:
    file = run / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


def edit(old: str, new: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        text = (run / "run.json").read_text()
        assert old in text
        (run / "run.json").write_text(text.replace(old, new))

    return change


DIFFERS = "is not the file that was saved (its SHA-256 differs)"
EDITED = "the file is damaged (it is not what was saved: its SHA-256 differs)"
DAMAGES = {
    "cut thresholds": (cut, f"thresholds.safetensors {DIFFERS}"),
    "a bit in the weights": (flip, f"weights.safetensors {DIFFERS}"),
    "no weights": (lambda run: (run / "weights.safetensors").unlink(), "weights.safetensors is missing"),
    "an edited number": (edit('"scale": 0.25', '"scale": 0.5'), EDITED),
    "a lost key": (edit('"recipe"', '"recipes"'), EDITED),
    "cut record": (edit("}\n", "\n"), "the file is damaged (invalid JSON: "),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_run(cli, run, kind):
    damage, reason = DAMAGES[kind]
    damage(run)
    place = f"{run / 'run.json'}: " if reason.startswith("the file") else f"{run}: the run is damaged: "
    for words in (
        "inspect {0}",
        "evaluate {0} {1}",
        "doctor {0} {1}",
        "report {0} {1}",
        "report {0} {0} {1}",
    ):
        message = cli(words.format(run, DATA)).message()
        assert message.startswith(place + reason) and message.endswith(f". {AGAIN}")


def test_a_run_that_is_none(cli, run, tmp_path):
    missing = tmp_path / "none"
    for words in (f"inspect {missing}", f"evaluate {missing} {DATA}"):
        assert cli(words).message() == (
            f"{missing}: no run here (run.json is missing). Make one with: onespike convert … --out {missing}"
        )
    edit('"version": 1,\n "network"', '"version": 2,\n "network"')(run)
    other = f"{run}: the run has version 2, and this onespike reads 1. {AGAIN}"
    assert cli("inspect", run).message() == other
    reasons = {
        "[]": "input should be an object",
        '{"a":' + "[" * 100_000: "invalid JSON: recursion limit exceeded at line 1 column 206",
    }
    for contents, reason in reasons.items():
        (run / "run.json").write_text(contents)
        message = f"{run / 'run.json'}: the file is damaged ({reason}). {AGAIN}"
        assert cli("inspect", run).message() == message


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
    record = json.loads((run / "run.json").read_text())
    record["files"]["network/preprocessor_config.json"] = sha256(file)
    (run / "run.json").write_text(seal(record))
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


def test_fields_of_a_run_that_was_sealed_again(cli, run):
    """Refused in one line, or of no consequence: some fields are only shown."""
    from onespike.runs.storage import load

    record = json.loads((run / "run.json").read_text())
    count = 0
    for index, variant in enumerate(variants(record)):
        (run / "run.json").write_text(seal(variant))
        if index % 50 == 0:  # the whole command
            result = cli("inspect", run)
            assert result.code == 0 or result.message()
        count += bool(refusal(lambda: load(run)))
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
    "empty": seal({}),
    "of another form": seal(
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
    record = json.loads(file.read_text())
    first = next(iter(record["measured"]))
    for changed in ({"ann": {}}, {"snn": {"top1": "much"}}, {"kl": "little"}):
        measured = record["measured"] | {first: record["measured"][first] | changed}
        file.write_text(seal(record | {"measured": measured}))
        message = cli(words).message()
        assert message.startswith(f"{file}: ") and message.endswith("Remove it to measure again.")


def test_measurements_of_a_study(cli, tmp_path):
    file = tmp_path / "measured.json"
    for contents in (*CONTENTS.values(), seal({"identity": {}, "measured": {"a": 3}})):
        file.write_text(contents)
        message = cli(f"reproduce table-complexity --limit 2 --out {tmp_path}").message()
        assert message.startswith(f"{file}: the file is damaged (")


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
